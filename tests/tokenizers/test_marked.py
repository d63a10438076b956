"""Texts encoded as one with marks between them, beside the same texts as an array."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tokenriver import load_tokenizer
from tokenriver.batches import TextBatch, distinct
from tokenriver.tokenizers import fast
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.marked import MARK, encode_marked
from tokenriver.tokenizers.train import train_tokenizer
from tokenriver.tokenizers.unicode_suspects import unassigned

PIECES = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "'s",
    "'",
    "river",
    " stones",
    "1",
    "123",
    "é",
    "e\u0301",
    "☃",
    "\u200d",
    "<|",
    "x ",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("byte-bpe")
    texts = [f"The {n}th river runs past {n * n} stones, naïve ☃ and all.\n" for n in range(200)]
    train_tokenizer(texts, kind="byte-bpe", vocab_size=400, out=out)
    return out


@pytest.fixture
def without_arrays(monkeypatch):
    monkeypatch.setattr(fast, "sys", SimpleNamespace(modules={}))  # whatever other tests have imported


def random_texts(rng: random.Random, more: list[str]) -> list[str]:
    return ["".join(rng.choices([*PIECES, *more], k=rng.choice([0, 1, 2, 9]))) for _ in range(rng.choice([1, 2, 7]))]


def test_marks_give_the_ids_that_arrays_give(folder):
    made = load_tokenizer(folder).fast.encoder
    encoder, rng = made._make(), random.Random(1)
    for _ in range(300):
        batch = TextBatch.from_texts(random_texts(rng, []))
        batch = TextBatch(batch.data, batch.offsets[rng.randrange(len(batch)) :])
        found = encode_marked(encoder, batch, made._mark_id)
        expected = FastEncoder(lambda: encoder).encode(batch, parallel=False)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.usefixtures("without_arrays")
def test_a_text_that_holds_the_mark_is_a_text_like_any_other(folder):
    assert unassigned()[ord(MARK)]
    tokenizer, rng = load_tokenizer(folder), random.Random(2)
    for _ in range(100):
        texts = random_texts(rng, [MARK, MARK + MARK])
        expected = tokenizer.reference_encode_batch(texts)
        for parallel in (False, True):
            found = tokenizer.encode_batch(texts, parallel=parallel)
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.usefixtures("without_arrays")
def test_arrays_are_used_once_much_was_encoded(folder, monkeypatch):
    used = []
    monkeypatch.setattr(fast, "_with_awkward", lambda encoder, batch, parallel: used.append(parallel))  # noqa: ARG005
    monkeypatch.setattr(fast, "_MARKED_BYTES", 2000)
    encoder = load_tokenizer(folder).fast.encoder
    batch = TextBatch.from_texts(["river" * 100])
    for _ in range(5):
        encoder.encode(batch, parallel=False)
    assert used == [False] * 3


def test_a_small_build_needs_neither_awkward_nor_masked_arrays(folder, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "the river"}\n{"text": "runs"}\n')
    code = (
        "import sys, tokenriver\n"
        f"tokenriver.build({str(tmp_path / 'x.jsonl')!r}, tokenizer={str(folder)!r}, out={str(tmp_path / 'out')!r})\n"
        "assert not {'awkward', 'numpy.ma'} & set(sys.modules), set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_distinct_values_of_an_ascending_array_are_those_of_unique():
    for values in ([], [3], [3, 3, 3], [0, 1, 1, 5, 5, 5, 9]):
        expected = np.unique(np.array(values, np.int32), return_counts=True)
        assert [part.tolist() for part in distinct(np.array(values, np.int32))] == [part.tolist() for part in expected]
