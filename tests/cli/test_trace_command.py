"""`tokenriver trace`: the shards, tokens and documents of a step, equal to what the loader served."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from positions import write_data_set

from tokenriver import TrainLoader, write_shard
from tokenriver.cli import main
from tokenriver.loader.order import ORDERS
from tokenriver.loader.trace import Separator, trace_step

if TYPE_CHECKING:
    from pathlib import Path


def rows_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["trace", *words, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


@pytest.mark.parametrize("order", ORDERS)
def test_a_traced_step_names_exactly_the_ids_that_were_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str
) -> None:
    root = write_data_set(tmp_path / "data", [100, 57, 200])
    served = [
        list(islice(TrainLoader(root, batch_size=2, seq_len=9, order=order, seed=5, rank=r, world_size=2), 15))
        for r in range(2)
    ]
    options = ["--batch-size", "2", "--seq-len", "9", "--order", order, "--seed", "5", "--world-size", "2"]
    for step in (0, 3, 14):
        rows = rows_of(capsys, str(root), "--step", str(step), *options)
        assert [(row["rank"], row["row"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        for row in rows:
            ids = [i for part in row["parts"] for i in part["ids"]]
            batch = served[row["rank"]][step]
            assert ids[:-1] == batch.inputs[row["row"]].tolist()
            assert ids[1:] == batch.targets[row["row"]].tolist()
            for part in row["parts"]:
                raw = np.fromfile(part["shard"], np.uint16, offset=1024)
                assert raw[part["start"] : part["stop"]].tolist() == part["ids"]
    alone = rows_of(capsys, str(root), "--step", "3", "--rank", "1", "--row", "0", *options)
    assert [(row["rank"], row["row"]) for row in alone] == [(1, 0)]


@pytest.mark.parametrize("position", ["before", "after"])
def test_documents_are_numbered_within_their_shard(tmp_path: Path, position: str) -> None:
    # 9 is the separator; documents of 3 and 4 tokens, the last of the first shard goes on in the second.
    first, second = [9, 1, 1, 9, 2, 2, 2, 9, 3], [3, 9, 4, 4, 9, 5, 5, 5]
    if position == "after":
        first, second = [1, 1, 9, 2, 2, 2, 9, 3], [3, 9, 4, 4, 9, 5, 5, 5, 9]
    write_shard(tmp_path / "a_0.bin", first)
    write_shard(tmp_path / "a_1.bin", second)
    loader = TrainLoader(str(tmp_path / "a_*.bin"), batch_size=1, seq_len=16, order="sequential")
    (row,) = trace_step(loader, 0, separator=Separator(9, position))  # type: ignore[arg-type]
    found = [(part.shard.name, part.start, part.stop, part.document, part.begins) for part in row.parts]
    if position == "before":
        assert found == [
            ("a_0.bin", 0, 3, 0, True),
            ("a_0.bin", 3, 7, 1, True),
            ("a_0.bin", 7, 9, 2, True),
            ("a_1.bin", 0, 1, -1, False),
            ("a_1.bin", 1, 4, 0, True),
            ("a_1.bin", 4, 8, 1, True),
        ]
    else:
        assert [part[:4] for part in found] == [
            ("a_0.bin", 0, 3, 0),
            ("a_0.bin", 3, 7, 1),
            ("a_0.bin", 7, 8, 2),
            ("a_1.bin", 0, 2, 0),
            ("a_1.bin", 2, 5, 1),
            ("a_1.bin", 5, 9, 2),
        ]


@pytest.mark.parametrize("packing", ["concat", "best-fit", "bos-aligned"])
def test_with_separators_behind_a_document_begins_where_the_one_before_ended(tmp_path: Path, packing: Any) -> None:
    # 9 is the separator; the first shard is cut inside a document, the last one behind its end.
    for k, ids in enumerate(([1, 1, 9, 2, 2], [2, 9, 3, 3, 3, 3, 9], [4, 4, 9, 5, 9])):
        write_shard(tmp_path / f"a_train_00000{k}.bin", ids)
    ends = {"a_train_000000.bin": [3, 5], "a_train_000001.bin": [2, 7], "a_train_000002.bin": [3, 5]}
    for name, found in ends.items():
        np.array(found, "<u8").tofile(tmp_path / f"{name}.index")
    files = [{"name": n, "split": "train", "n_tokens": e[-1], "sha256": None} for n, e in ends.items()]
    tokenizer = {"tokenizer_id": "toy", "separator_id": 9, "separator_position": "after"}
    (tmp_path / "a_BUILD.json").write_text(json.dumps({"tokenizer": tokenizer, "files": files}))
    loader = TrainLoader(tmp_path, batch_size=1, seq_len=3, order="sequential", packing=packing, drop_last=False)
    rows = [row for step in range(loader.steps_per_epoch or 0) for row in trace_step(loader, step)]
    found = {(part.shard.name[-5], part.start): part.begins for row in rows for part in row.parts}
    begins = [("0", 0), ("0", 3), ("1", 2), ("2", 0), ("2", 3)]
    assert {place for place, there in found.items() if there} == {place for place in begins if place in found}
    assert len(found) > sum(found.values()) > 2


def test_documents_without_separators_are_told_by_their_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = ["a first one", "two", "three is the longest of all of them", "4", "and the fifth"]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    words = ["build", str(tmp_path / "d.jsonl"), "--tokenizer", "byte", "--dataset", "d", "--split", "train"]
    assert main([*words, "--out", str(tmp_path), "--shard-tokens", "50"]) == 0
    root = tmp_path / "tokens" / "byte" / "d"
    shape = ["--batch-size", "1", "--seq-len", "60", "--order", "sequential", "--tokenizer", "byte"]
    capsys.readouterr()
    (row,) = rows_of(capsys, str(root), "--step", "0", *shape)
    found = [(part["text"], part["shard"][-6:], part["document"], part["begins"]) for part in row["parts"]]
    cut = documents[4][: 61 - sum(map(len, documents[:4]))]
    assert found == [
        (documents[0], "00.bin", 0, True),
        (documents[1], "00.bin", 1, True),
        (documents[2], "00.bin", 2, True),
        (documents[3], "00.bin", 3, True),
        (cut, "01.bin", 0, True),
    ]
    inside = rows_of(capsys, str(root), "--step", "1", "--batch-size", "1", "--seq-len", "5", "--order", "sequential")
    assert [(p["document"], p["begins"], p["stop"]) for p in inside[0]["parts"]] == [(0, False, 11)]
    for index in root.glob("*.index"):
        index.unlink()
    (row,) = rows_of(capsys, str(root), "--step", "0", *shape)
    assert [part["document"] for part in row["parts"]] == [None, None]


def test_a_last_partial_batch_is_traced_where_the_loader_served_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_data_set(tmp_path / "data", [100])  # 9 rows of 11, in batches of 4
    shape = ["--batch-size", "2", "--world-size", "2", "--seq-len", "11", "--no-drop-last"]
    loaders = [TrainLoader(root, batch_size=2, seq_len=11, rank=r, world_size=2, drop_last=False) for r in range(2)]
    for step in (2, 3):
        rows = rows_of(capsys, str(root), "--step", str(step), *shape)
        assert [row["rank"] for row in rows] == ([0] if step == 2 else [0, 0, 1, 1])
        for row in rows:
            ids = [i for part in row["parts"] for i in part["ids"]]
            assert ids[:-1] == loaders[row["rank"]].batch_at(step).inputs[row["row"]].tolist()
    assert main(["trace", str(root), "--step", "2", *shape, "--rank", "1"]) == 0
    assert capsys.readouterr().out == "epoch 0, step 2 of 3: 0 rows, shuffled\n"


def test_a_saved_state_gives_the_settings_and_text_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"It was a dark and stormy night.\x1b[31m The loader went on reading in order." * 3
    write_shard(tmp_path / "t_train.bin", np.frombuffer(text, np.uint8), vocab_size=256)
    loader = TrainLoader(tmp_path, batch_size=1, seq_len=40, order="sequential")
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    words = [str(tmp_path), "--step", "1", "--state", str(tmp_path / "state.json"), "--tokenizer", "byte"]
    assert main(["trace", *words]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "epoch 0, step 1 of 5: 1 row, sequential"
    assert out[1] == "rank 0 row 0: sequence 1, tokens 40:81 of train"
    assert out[2] == "  t_train.bin 40:81"
    assert out[3][4:] == text[40:81].decode().replace("\x1b", "\\x1b")
    assert main(["trace", *words[:2], "0", *words[3:]]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--step", "0"], 2, "give --batch-size and --seq-len"),
        (["--step", "0", "--batch-size", "1", "--seq-len", "5", "--rank", "1"], 2, "ranks count from 0"),
        (["--step", "0", "--batch-size", "1", "--seq-len", "5", "--row", "1"], 2, "no row 1"),
        (["--step", "0", "--batch-size", "99", "--seq-len", "99"], 2, "too little data"),
        (["--step", "0", "--state", "STATE"], 1, "not the state of a loader"),
        (["--batch-size", "1", "--seq-len", "5"], 2, "--step"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    root = write_data_set(tmp_path / "data", [100])
    (tmp_path / "STATE").write_text("{}")
    words = [str(tmp_path / "STATE") if word == "STATE" else word for word in words]
    assert main(["trace", str(root), *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing": 5}, "not the state of a loader: what it says of packing"),
        ({"packing": {"mode": ["best-fit"]}}, "packing is one of concat, bos-aligned, best-fit, not ['best-fit']"),
        ({"packing": {"mode": "bos-aligned", "max_doc_len": "x"}}, "max_doc_len is a whole number, not 'x'"),
        ({"global_batch_size": 0}, "global_batch_size is 0, expected a whole number of 1 or more, below 2^62"),
        ({"seq_len": -4}, "seq_len is -4"),
        ({"seed": 2**64}, "seed is 18446744073709551616, expected a whole number of 0 or more, below 2^64"),
        ({"order": "random"}, "order is one of shuffled, sequential, block-shuffled, not 'random'"),
        ({"split": "test"}, "split is one of train, val, not 'test'"),
        ({"seed": 1}, None),
    ],
)
def test_a_damaged_state_is_no_fault_of_the_command_line_and_its_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str | None
) -> None:
    root, state = write_data_set(tmp_path / "data", [100]), tmp_path / "state.json"
    loader = TrainLoader(root, batch_size=2, seq_len=4)
    state.write_text(json.dumps(loader.state_dict() | change))
    code = main(["trace", str(root), "--step", "0", "--state", str(state)])
    error = capsys.readouterr().err
    if message is None:
        assert code == 0
        return
    assert code == 1
    assert error.startswith(f"tokenriver: {state}: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_state_of_other_data_is_refused_with_advice_for_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, state = write_data_set(tmp_path / "data", [100]), tmp_path / "state.json"
    state.write_text(json.dumps(TrainLoader(root, batch_size=2, seq_len=4).state_dict()))
    other = write_data_set(tmp_path / "other", [120])
    assert main(["trace", str(other), "--step", "0", "--state", str(state)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tokenriver: {state}: the saved state does not belong to this loader: the data changed")
    assert error.endswith("to look at other data give --batch-size, --seq-len and the rest instead of --state\n")
    assert "load_state_dict" not in error
