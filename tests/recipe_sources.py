"""A few real documents of ../shared/data in the form in which each recipe's source publishes them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from shared_folder import SHARED

from tokenriver.recipes.recipe import load_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from local_hub import LocalHub

DOCS = SHARED / "data/docs"


@cache
def records(name: str) -> list[dict[str, Any]]:
    """The records of one of the files of documents."""
    path = DOCS / name
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in raw.decode().split("\n") if line]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=7)
    return file.getvalue()


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def stories(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps([{"story": row["text"], "summary": "-", "instruction": {"words": []}} for row in rows]).encode()


def wiki_rows() -> list[dict[str, str]]:
    """Articles as WikiText has them: a row a line, titles between equals signs, blank rows between."""
    rows = []
    for i, record in enumerate(records("dolma_cc_head_20docs.jsonl.gz")[:6]):
        rows += [" \n", f" = Article {i} = \n", " \n", " = = Part = = \n"]
        rows += [f" {line} \n" for line in record["text"].split("\n")[:5]]
    return [{"text": row} for row in rows]


def questions(kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(5):
        if kind == "arc":
            choices = {"text": ["iron", "wood", "glass"], "label": ["A", "B", "C"]}
            rows.append(
                {"id": str(i), "question": f"What is a nail made of ({i})?", "choices": choices, "answerKey": "A"}
            )
        elif kind == "openbookqa":
            choices = {"text": ["the sun", "a stone"], "label": ["A", "B"]}
            rows.append({"id": str(i), "question_stem": f"Plants need {i}", "choices": choices, "answerKey": "A"})
        elif kind == "winogrande":
            sentence = f"The cup {i} did not fit the box because the _ was small."
            rows.append({"sentence": sentence, "option1": "cup", "option2": "box", "answer": "2"})
        else:
            rows.append({"goal": f"boil egg {i}", "sol1": "use hot water", "sol2": "use ice"})
    return rows


def fineweb_files(n: int = 4, *, folder: str = "sample/10BT") -> dict[str, bytes]:
    """The sample's documents in n Parquet files, named as FineWeb's."""
    rows = [{"text": r["text"], "id": str(r["id"]), "url": r["url"]} for r in records("fineweb_sample.jsonl.gz")]
    step = -(-len(rows) // n)
    return {f"{folder}/{k:03d}_00000.parquet": parquet(rows[k * step : (k + 1) * step]) for k in range(n)}


def files_of(name: str) -> dict[str, bytes]:
    """What the source of a recipe holds, files that the recipe leaves out among it."""
    rows = records("dclm_annotated.jsonl.gz")
    if name in ("fineweb", "fineweb-edu"):
        return {**fineweb_files(2), "sample/100BT/000_00000.parquet": parquet(rows[:3]), "README.md": b"# card\n"}
    if name == "tinyshakespeare":
        return {"input.txt": (SHARED / "data/tinyshakespeare/input.txt").read_bytes()}
    if name == "tinystories":
        told = records("tinystories_sample.jsonl.gz")
        inside = {f"./data{k:02d}.json": stories(told[k * 10 : k * 10 + 10]) for k in (2, 0, 1)}
        return {"TinyStories_all_data.tar.gz": tar(inside), "TinyStories-train.txt": b"-"}
    if name == "openwebtext":
        return {f"plain_text/train-0000{k}-of-00002.parquet": parquet(rows[k * 9 : k * 9 + 9]) for k in (0, 1)}
    if name == "wikitext-103":
        folder = "wikitext-103-raw-v1"
        sides = ("test", "train", "validation")
        return {f"{folder}/{side}-00000-of-00001.parquet": parquet(wiki_rows()) for side in sides}
    if name == "c4-en":
        names = ("c4-train.00000-of-01024", "c4-train.00001-of-01024", "c4-validation.00000-of-00008")
        return {f"en/{n}.json.gz": gzip.compress(jsonl(rows[k * 5 : k * 5 + 5])) for k, n in enumerate(names)}
    if name == "dclm-sample":
        folder = "global-shard_01_of_10/local-shard_0_of_10"
        some = records("dclm_baseline_3docs.jsonl")
        return {f"{folder}/shard_0000000{k}_processed.jsonl.zst": zstandard.compress(jsonl(some)) for k in (0, 1)}
    if name == "the-stack-smol":
        code = [{"content": r["text"], "lang": r["lang"]} for r in records("code_sample.jsonl")]
        return {"data/python/data.json": jsonl(code[:9]), "data/c/data.json": jsonl(code[9:])}
    if name == "hellaswag":
        return {"hellaswag_val.jsonl": gzip.decompress((SHARED / "data/eval/hellaswag_val.jsonl.gz").read_bytes())}
    if name == "mmlu":
        folder = SHARED / "data/eval/mmlu/test"
        inside = {f"data/test/{p.name}": p.read_bytes() for p in sorted(folder.glob("*.csv"))[:2]}
        return {"data.tar": tar({**inside, "data/README.txt": b"-"}, "w")}
    if name.startswith("arc-"):
        kind = "Easy" if name == "arc-easy" else "Challenge"
        return {f"ARC-{kind}/test-00000-of-00001.parquet": parquet(questions("arc"))}
    if name == "piqa":
        return {"valid.jsonl": jsonl(questions("piqa")), "valid-labels.lst": b"0\n1\n0\n0\n1\n"}
    if name == "winogrande":
        return {"winogrande_xl/validation-00000-of-00001.parquet": parquet(questions("winogrande"))}
    if name == "openbookqa":
        return {"main/test-00000-of-00001.parquet": parquet(questions("openbookqa"))}
    raise AssertionError(f"recipe {name} has no source in the tests")


def publish(hub: LocalHub, name: str, folder: Path) -> str:
    """Put a recipe's source on the local Hub; what to run: its name, or its own text with local addresses."""
    recipe = load_recipe(name).recipe
    if recipe.source.hub is not None:
        hub.add(recipe.source.hub, files_of(name))
        return name
    hub.add("web/files", files_of(name))
    loaded = load_recipe(name)
    text = loaded.text.decode()
    for url in recipe.source.urls:
        text = text.replace(url, f"{hub.url}/datasets/web/files/resolve/main/{url.rpartition('/')[2]}")
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)
