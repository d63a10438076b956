"""What users in a hurry get wrong: one line that says what was found, what is expected and what to do, and the code."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from positions import write_data_set
from shard_sets import make_tokens_set

from tokenriver import TrainLoader, write_shard
from tokenriver.cli import main, stopping
from tokenriver.errors import TokenizerError, UsageError
from tokenriver.files import atomic_write
from tokenriver.golfing.specs import read_specs
from tokenriver.recipes.recipe import load_recipe
from tokenriver.storage.paths import to_path
from tokenriver.tokenizers.load import load_tokenizer
from tokenriver.tokenizers.train import train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = """
import numpy as np
def even(inputs):
    return np.zeros((*inputs.shape, 256))
def fails(*given):
    raise ValueError("no such layer")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("docs.jsonl").write_text("".join(json.dumps({"text": f"text {k}"}) + "\n" for k in range(80)))
    Path("cli_mistakes_model.py").write_text(MODEL)
    Path("folder").mkdir()
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(words) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tokenriver: ")]
    assert lines, words
    assert "internal error" not in lines[-1]
    return lines[-1]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("build docs.jsonl --tokenizer byte --out o --shard-tokens 1e6", 2, "'--shard-tokens'.*, not '1e6'"),
        ("verify docs.jsonl --workers 0", 2, "or equal to 1, not '0'"),
        ("mix", 2, r"Missing command\. \(see tokenriver mix --help\)"),
        ("train-tokenizer docs.jsonl --vocab-size 300 --out o", 2, "Choose from: sp-bpe, byte-bpe"),
        ("train-tokenizer docs.jsonl --type byte-bpe --vocab-size 300 --out docs.jsonl", 2, "docs.jsonl: not a dir"),
        ("build docs.jsonl --tokenizer byte --out docs.jsonl", 2, "docs.jsonl is not a directory; name one with --out"),
        (
            "build docs.jsonl --tokenizer byte --out docs.jsonl/x --layout golf",
            2,
            "docs.jsonl is not a directory; name",
        ),
        ("build docs.jsonl --tokenizer byte --out s3://b/x --staging docs.jsonl", 2, "directory; name one with --stag"),
        ("corpus docs.jsonl --out docs.jsonl/x", 2, "docs.jsonl/x: docs.jsonl is not a directory; name one with --out"),
        ("golf select docs.jsonl --docs 2 --seed 1 --out docs.jsonl", 2, "docs.jsonl: not a directory; name one with"),
        ("golf fetch --root docs.jsonl", 2, "docs.jsonl: not a directory; name one with --root"),
        (
            "golf export --docs x --tokenizer-config x --output-root docs.jsonl",
            2,
            "directory; name one with --output-r",
        ),
        ("download me/x --out docs.jsonl", 2, "docs.jsonl: not a directory; name one with --out"),
        ("recipe tinystories --input docs.jsonl --out docs.jsonl", 2, "docs.jsonl: not a directory; name one with"),
        ("cache --cache-dir docs.jsonl/x", 2, "the cache is a directory, and .*docs.jsonl is none; name another"),
        ("tokenizer-file --tokenizer byte --eot 1 --out docs.jsonl/x", 1, "docs.jsonl is no folder to write it in"),
        ("tokenizer-file --tokenizer byte --eot 1 --out folder", 1, "folder: a directory, where a file is to be"),
        ("tokenizer-file --tokenizer byte --eot 1 --out none/x.bin", 1, "none/x.bin: there is no folder none"),
        ("index docs.jsonl", 1, "docs.jsonl: text, not ids: it begins with '{"),
        ("index nowhere.bin", 1, "nowhere.bin: No such file"),
        ("download me/x --shards -1", 2, "--shards is -1"),
        ("download me/x --connections 0", 2, "--connections is 0"),
        ("golf fetch --train-shards -1", 2, "--train-shards is -1"),
        ("publish docs.jsonl me/x/y --dry-run", 2, "'me/x/y' is no repository id"),
        ("golf export --docs folder --tokenizer-config x --output-root o --chunk-tokens 0", 2, "--chunk-tokens is 0"),
        ("golf export --docs folder --tokenizer-config x --output-root o --workers 0", 2, "--workers is 0"),
        ("recipe hellaswag --max-docs 3 --input docs.jsonl", 2, "--max-docs is for data sets"),
        ("recipe hellaswag --shard-tokens 3 --input docs.jsonl", 2, "--shard-tokens is for data sets"),
        ("recipe hellaswag --text-field x --input docs.jsonl", 2, "--text-field is for data sets"),
        ("recipe tinyshakespeare --shard-tokens 0 --tokenizer byte --input docs.jsonl", 2, "--shard-tokens is 0"),
        ("eval make piqa docs.jsonl --tokenizer byte --out x --backend fastest", 2, "choose fast or reference"),
        ("eval make piqa docs.jsonl --tokenizer byte --out none/x", 1, "none/x: there is no folder none"),
        ("golf export --docs docs.jsonl --tokenizer-config x --output-root y --tokenizer-train-docs 0", 2, "1 or more"),
        ("golf fetch --root y --remote-root ../x", 2, "may not lead out"),
        ("recipe tinyshakespeare --max-tokens 0 --input docs.jsonl", 2, "--max-tokens is 0"),
        ("bpb-audit folder --tokenizer byte --loss -1 --bpb 1", 2, "both are numbers above 0"),
        ("train-tokenizer docs.jsonl --type byte-bpe --vocab-size 99999999999 --out o", 2, "at most 2,147,483,647"),
        ("build docs.jsonl --tokenizer byte --out s3:///x", 2, "s3:///x: names no bucket; expected s3://BUCKET/x"),
        ("build docs.jsonl --tokenizer byte --out file://", 2, "a path is empty"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_mistake_is_told_before_any_work(
    capsys: pytest.CaptureFixture[str], words: str, code: int, expected: str
) -> None:
    pytest.importorskip("s3fs")
    line = told(capsys, code, *words.split())
    assert re.search(expected, line), line
    assert not Path("o").exists()


@pytest.mark.usefixtures("here")
def test_a_separator_of_documents_that_is_no_escape_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for separator in ("end\\", "\\x", "\\N{x}"):
        words = ["build", "docs.jsonl", "--tokenizer", "byte", "--out", "o", "--document-separator", separator]
        assert "a backslash begins an escape" in told(capsys, 2, *words)


@pytest.mark.usefixtures("here")
def test_a_file_that_is_not_of_the_kind_that_its_name_says_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    raw = Path("docs.jsonl").read_bytes()
    Path("plain.jsonl.gz").write_bytes(raw)
    Path("plain.jsonl.zst").write_bytes(raw)
    Path("packed.jsonl").write_bytes(gzip.compress(raw))
    Path("array.jsonl").write_bytes(b'[{"text": "a"},\n{"text": "b"}]')
    for name, expected in (
        ("plain.jsonl.gz", "begins with 1f 8b, this with 7b 22 74 65"),
        ("plain.jsonl.zst", "begins with 28 b5 2f fd"),
        ("packed.jsonl", "this looks like gzip"),
        ("array.jsonl", "each line has to be one whole object"),
    ):
        assert expected in told(capsys, 1, "build", name, "--tokenizer", "byte", "--out", "o")


@pytest.mark.usefixtures("here")
def test_a_build_without_train_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "docs.jsonl", "--tokenizer", "byte", "--out", "o", "--layout", "golf"]) == 0
    assert "no train data: the split rule puts all 80 documents on the val side" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_recipe_and_a_golf_specification_may_begin_with_a_byte_order_mark() -> None:
    recipe = (
        '\ufeffname = "notes"\nabout = "a"\nsize = "s"\nlicence = "l"\n[source]\nhub = "a/b"\nfiles = ["*.jsonl"]\n'
    )
    Path("notes.toml").write_text(recipe, encoding="utf-8")
    assert load_recipe("notes.toml").recipe.name == "notes"
    Path("specs.json").write_text('\ufeff[{"name": "b", "dataset_suffix": "byte260"}]', encoding="utf-8")
    assert [spec.name for spec in read_specs(Path("specs.json"), root=Path())] == ["b"]


def test_a_tokenizer_s_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(UsageError, match="a path is empty"):
        load_tokenizer("")


def test_an_index_that_contradicts_the_manifest_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next(make_tokens_set(tmp_path).glob("train-*.bin"))
    index = shard.with_name(shard.name + ".index")
    before = index.read_bytes() if index.exists() else None
    for more in (["--separator", "7"], ["--separator-position", "after"]):
        assert "its manifest or build record says separator" in told(capsys, 2, "index", str(shard), *more)
    assert (index.read_bytes() if index.exists() else None) == before
    assert main(["index", str(shard)]) == 0


def test_an_option_that_the_state_contradicts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_data_set(tmp_path / "data", [500])
    loader = TrainLoader(root, batch_size=4, seq_len=8, seed=3)
    list(islice(loader, 2))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    words = ["trace", str(root), "--step", "1", "--state", str(tmp_path / "state.json")]
    for option, value in (("--seed", "4"), ("--batch-size", "8"), ("--order", "sequential"), ("--packing", "best-fit")):
        line = told(capsys, 2, *words, option, value)
        assert f"{option} is " in line
        assert "but the state says" in line
    assert main([*words, "--seed", "3", "--batch-size", "2", "--world-size", "2", "--seq-len", "8"]) == 0


@pytest.fixture
def file(here: Path) -> Path:
    record = {"goal": "To open a jar,", "sol1": "turn the lid.", "sol2": "eat it.", "label": 0}
    (here / "piqa.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["eval", "make", "piqa", "piqa.jsonl", "--tokenizer", "byte", "--out", "piqa.bin", "-q"]) == 0
    return here / "piqa.bin"


def test_what_a_model_raises_is_the_model_s_own_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = told(capsys, 1, "eval", "run", str(file), "--model", "cli_mistakes_model:fails", "-q")
    assert "--model 'cli_mistakes_model:fails' raised ValueError: no such layer" in line
    (file.parent / "cli_mistakes_broken.py").write_text("1 / 0\n")
    line = told(capsys, 1, "eval", "run", str(file), "--model", "cli_mistakes_broken:x", "-q")
    assert "raised ZeroDivisionError" in line


def test_an_evaluation_of_no_example_is_no_score(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "run", str(file), "--model", "cli_mistakes_model:even", "--seq-len", "4", "-q"]
    assert "no example is left: all 1 are longer than the sequence length of 4" in told(
        capsys, 2, *words, "--too-long", "skip"
    )
    assert "(--too-long skip)" in told(capsys, 2, *words)


def test_a_batch_of_more_ids_than_can_be_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "run", str(file), "--model", "cli_mistakes_model:even", "-q"]
    for option in ("--batch-size", "--seq-len"):
        assert "is too large; together they are at most" in told(capsys, 2, *words, option, str(10**21))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], "interrupted; the same command goes on from the last finished shard"),
        (["--overwrite"], "interrupted; what --overwrite was to replace is still there, and the same command goes on"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_was_stopped_says_that_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str], expected: str
) -> None:
    def stopped(*_arguments: object, **_words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenriver.corpus.shards.write_corpus", stopped)
    monkeypatch.setattr("tokenriver.building.build.build", stopped)
    assert expected in told(capsys, 130, "corpus", "docs.jsonl", "--out", "o", *more)
    assert expected in told(capsys, 130, "build", "docs.jsonl", "--tokenizer", "byte", "--out", "o", *more)
    assert "the same command begins anew" in told(capsys, 130, "corpus", "docs.jsonl", "-", "--out", "o", *more)
    monkeypatch.setattr("tokenriver.golfing.select.select_golf", stopped)
    words = ["golf", "select", "docs.jsonl", "--docs", "1", "--seed", "1", "--out", "o", *more]
    assert "the same command begins anew" in told(capsys, 130, *words)


def test_memory_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(*_paths: object, **_options: object) -> None:
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr("tokenriver.shards.verify.verify", greedy)
    assert told(capsys, 1, "verify", ".") == (
        "tokenriver: not enough memory: Unable to allocate 7 TiB; take less at a time"
    )


def test_a_model_that_takes_no_borders_is_told_so_through_the_command(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "run", str(file), "--model", "cli_mistakes_model:even", "--packed", "-q"]
    assert "does not take cu_seqlens" in told(capsys, 2, *words)


def test_a_device_that_is_not_here_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = ["eval", "run", str(file), "--model", "cli_mistakes_model:even", "-q", "--device", "abacus"]
    assert "--device 'abacus': " in told(capsys, 2, *words)


def test_a_tokenizer_with_fewer_ids_than_the_data_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(here / "fineweb_val_000000.bin", np.arange(900, dtype=np.uint16))
    model = ["--model", "cli_mistakes_model:even", "--val", ".", "--tokenizer", "byte", "--seq-len", "8"]
    assert "the validation ids go from 0 to 896, but the tokenizer has 256 ids" in told(
        capsys, 1, "golf", "score", *model
    )
    root = make_tokens_set(here / "set", separator=300)
    assert "is it the tokenizer of this data set?" in told(capsys, 1, "bpb-audit", str(root), "--tokenizer", "byte")


def test_a_vocabulary_without_room_for_the_texts_characters_says_how_many_it_needs(tmp_path: Path) -> None:
    texts = ["".join(map(chr, range(0x4E00 + 20 * k, 0x4E14 + 20 * k))) for k in range(8)]
    with pytest.raises(TokenizerError, match=r"--vocab-size 300 is too small for these texts: .* need \d+"):
        train_tokenizer(texts, kind="sp-bpe", vocab_size=300, out=tmp_path)


def test_the_trainer_s_time_without_python_has_a_context_of_its_own(tmp_path: Path) -> None:
    events: list[str] = []

    @contextmanager
    def training() -> Iterator[None]:
        events.append("begins")
        assert not any(tmp_path.iterdir())
        yield
        events.append("ends")
        assert not any(tmp_path.iterdir())

    def texts() -> Iterator[str]:
        yield from ["one text and another"] * 3
        events.append("read")

    train_tokenizer(texts(), kind="byte-bpe", vocab_size=260, out=tmp_path, training=training)
    assert events == ["read", "begins", "ends"]
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_compiled_code_at_once_and_the_handlers_come_back(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    with stopping.at_once():
        assert signal.getsignal(kind) is signal.SIG_DFL
    assert signal.getsignal(kind) is before
    code = (
        f"from tokenriver.cli.stopping import at_once\nimport signal\nwith at_once(): signal.raise_signal({int(kind)})"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(stopping.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -kind


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, words in (("there", "a directory, where a file"), ("none/x", "there is no folder")):
        with pytest.raises(OSError, match=words) as caught, atomic_write(tmp_path / name) as file:
            file.write(b"x")
        assert caught.value.filename == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_part_that_cannot_be_removed_does_not_hide_why_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, *, missing_ok: bool) -> None:
        assert missing_ok
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(FileNotFoundError, match="there is no folder"), atomic_write(tmp_path / "none/x"):
        pass
    with pytest.raises(OSError, match="Read-only"), atomic_write(tmp_path / "x"):
        raise ValueError


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)  # a rename would replace the link, or the device itself
    monkeypatch.chdir(tmp_path)
    for name, words in (("pipe", "a device or a pipe"), ("null", "a device or a pipe"), (".", "a directory")):
        with pytest.raises(OSError, match=words), atomic_write(Path(name)) as file:
            file.write(b"x")
        with pytest.raises(OSError, match=words):
            write_shard(name, [1, 2])
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]


def test_a_url_of_a_store_with_buckets_names_one() -> None:
    with pytest.raises(UsageError, match="names no bucket"):
        to_path("s3:///shards")
    assert str(to_path("memory:///shards")).startswith("memory:")
