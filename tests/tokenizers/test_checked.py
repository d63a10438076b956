"""The fast path beside its reference: errors, threads, bounded memory."""

from __future__ import annotations

import json
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenriver import TokenizerError, load_tokenizer
from tokenriver.batches import TextBatch, TokenBatch
from tokenriver.tokenizers import fast
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

    class Other:
        def __init__(self):
            self.encode_batch = encoder._make().encode_batch

    def make():
        assert not any(one() for one in made), "the one before is gone when the next is made"
        other = Other()
        made.append(weakref.ref(other))
        return other

    watched = FastEncoder(make, cache_budget=100, memory=lambda: next(sizes))
    batch = TextBatch.from_texts(TEXTS)
    ids = [watched.encode(batch, parallel=False).ids.tolist() for _ in range(4)]
    assert len(made) == 3
    assert watched.n_replaced == 2
    assert all(one == ids[0] for one in ids)


class Gated:
    """An encoder that says when it is at work, and works on when it is told."""

    def __init__(self, encoder):
        self.encoder, self.entered, self.go_on = encoder, threading.Event(), threading.Event()

    def encode_batch(self, *arguments, **words):
        self.entered.set()
        assert self.go_on.wait(300)
        return self.encoder.encode_batch(*arguments, **words)


@pytest.mark.parametrize("worth", [1, 1 << 30])
def test_a_thread_waits_for_the_encoder_until_another_one_is_worth_its_making(folder, monkeypatch, worth):
    monkeypatch.setattr(fast, "_WORTH_ANOTHER", worth)
    tokenizer = load_tokenizer(folder)
    made = queue.SimpleQueue()

    def make():
        gated = Gated(tokenizer.fast.encoder._make())
        made.put(gated)
        return gated

    encoder = FastEncoder(make)
    batch = TextBatch.from_texts(TEXTS)
    one = made.get(timeout=300)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(encoder.encode, batch, parallel=False)
        assert one.entered.wait(300)
        second = pool.submit(encoder.encode, batch, parallel=False)
        if worth == 1:
            other = made.get(timeout=300)
            assert other.entered.wait(300)  # both are at work
            other.go_on.set()
            second.result(30)
        one.go_on.set()
        ids = first.result(30).ids.tolist()
        assert ids == second.result(30).ids.tolist() == tokenizer.encode_batch(TEXTS).ids.tolist()
    assert encoder.n_encoders == (2 if worth == 1 else 1)
    encoder.encode(batch, parallel=False)
    assert made.empty()


def test_an_encoder_that_cannot_be_made_again_is_an_error_and_the_others_go_on(folder, monkeypatch):
    monkeypatch.setattr(fast, "_WORTH_ANOTHER", 1)
    tokenizer = load_tokenizer(folder)
    made = [Gated(tokenizer.fast.encoder._make())]
    attempts = []

    def make():
        attempts.append(None)
        if len(attempts) > 1:
            raise TokenizerError("no room for another one")
        return made[0]

    encoder = FastEncoder(make)
    batch = TextBatch.from_texts(TEXTS)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(encoder.encode, batch, parallel=False)
        assert made[0].entered.wait(300)
        with pytest.raises(TokenizerError, match="no room"):
            encoder.encode(batch, parallel=False)
        made[0].go_on.set()
        expected = first.result(30).ids.tolist()
    assert encoder.n_encoders == 1
    assert encoder.encode(batch, parallel=False).ids.tolist() == expected


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
