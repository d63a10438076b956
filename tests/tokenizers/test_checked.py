"""The fast path beside its reference: errors, threads, bounded memory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenriver import TokenizerError, load_tokenizer
from tokenriver.batches import TextBatch, TokenBatch
from tokenriver.tokenizers.checked import CheckedTokenizer, Vocabulary
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.train import train_tokenizer

TEXTS = [f"The {n}th river runs past {n * n} stones, naïve ☃ and all.\n" for n in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("byte-bpe")
    train_tokenizer(TEXTS, kind="byte-bpe", vocab_size=400, out=out)
    return out


def test_several_threads_share_one_tokenizer(folder):
    tokenizer = load_tokenizer(folder)
    batch = TextBatch.from_texts(TEXTS)
    expected = tokenizer.reference_encode_batch(batch).ids.tolist()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: tokenizer.encode_batch(batch, parallel=False).ids.tolist(), range(20)))
    assert all(ids == expected for ids in results)


def test_a_slice_of_a_batch_is_encoded_as_itself(folder):
    tokenizer = load_tokenizer(folder)
    batch = TextBatch.from_texts(TEXTS)
    shifted = TextBatch(batch.data, batch.offsets[50:61])
    assert tokenizer.encode_batch(shifted).ids.tolist() == tokenizer.encode_batch(TEXTS[50:60]).ids.tolist()


def test_no_texts_and_empty_texts_give_no_ids(folder):
    for tokenizer in (load_tokenizer(folder), load_tokenizer(folder, backend="reference")):
        assert len(tokenizer.encode_batch([])) == 0
        assert tokenizer.encode_batch(["", ""]).offsets.tolist() == [0, 0, 0]


class Fragile:
    """Encodes a text as its length, except one that holds "boom"."""

    version = "fragile 1"

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:  # noqa: ARG002
        if any(b"boom" in text for text in batch):
            raise TokenizerError("PanicException: boom")
        return TokenBatch(batch.lengths.astype(np.uint32), np.arange(len(batch) + 1), len(batch))


def test_a_failure_in_an_encoder_names_the_document():
    tokenizer = CheckedTokenizer(Vocabulary("x", "0", [b"a"], (), None), Fragile(), None)
    texts = ["fine"] * 7 + ["boom"] + ["fine"] * 5
    with pytest.raises(TokenizerError, match=r"document 7 of the batch \(4 bytes\) cannot be encoded: PanicException"):
        tokenizer.encode_batch(texts)


class Panic(BaseException):
    """Like a panic in Rust: not an Exception."""


class Panicking:
    def encode_batch(self, *_args: object, **_kwargs: object) -> None:
        raise Panic("index out of bounds")


def test_a_panic_is_an_ordinary_tokenizer_error():
    with pytest.raises(TokenizerError, match="Panic: index out of bounds"):
        FastEncoder(Panicking).encode(TextBatch.from_texts(["x"]), parallel=False)


def test_the_encoder_is_replaced_when_the_process_has_grown(folder):
    tokenizer = load_tokenizer(folder)
    encoder = tokenizer.fast.encoder
    sizes = iter([0, 50, 150, 0, 50, 120, 0])
    made = []

    def make():
        made.append(len(made))
        return encoder._make()

    watched = FastEncoder(make, cache_budget=100, memory=lambda: next(sizes))
    batch = TextBatch.from_texts(TEXTS)
    ids = [watched.encode(batch, parallel=False).ids.tolist() for _ in range(4)]
    assert len(made) == 3
    assert watched.n_replaced == 2
    assert all(one == ids[0] for one in ids)


def test_special_text_and_added_tokens_that_are_not_special(folder, tmp_path):
    spec = json.loads((folder / "tokenizer.json").read_bytes())
    spec["added_tokens"].append(
        {"id": 400, "content": "<think>", "special": False, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    )
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    tokenizer = load_tokenizer(path)
    text = "a<|endoftext|>b<think>c"
    assert tokenizer.encode(text).tolist() == tokenizer.reference_encode_batch([text]).ids.tolist()
    assert 400 in tokenizer.encode(text)
    assert tokenizer.separator_id not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.special_texts == ("<|endoftext|>",)
