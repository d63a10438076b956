"""Bits per byte by both definitions, in NumPy and torch, batch by batch and rank by rank."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tokenriver import BitsPerByte, load_tokenizer, text_bytes, token_bytes
from tokenriver.bpb.golf import GolfTable, byte_tables, eval_bpb, eval_val
from tokenriver.bpb.source import SplitBytes
from tokenriver.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from tokenriver.tokenizers.base import Tokenizer

VOCAB = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6, "▁▁": 7, "▁b": 8}
"""A Llama-2 kind of vocabulary: a space before each text, byte pieces from 9 on."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    vocab = VOCAB | {f"<0x{b:02X}>": 9 + b for b in range(256)}
    added = [{"id": i, "content": t, "special": True} for t, i in VOCAB.items() if i < 3]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    spec = {
        "version": "1.0",
        "added_tokens": [one | flags for one in added],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": ["▁ a", "▁ ▁", "▁ b"],
        },
    }
    path = tmp_path_factory.mktemp("llama") / "tokenizer.json"
    path.write_text(json.dumps(spec))
    return load_tokenizer(path)


def test_bytes_of_ids_come_from_raw_pieces(llama: Tokenizer) -> None:
    table = token_bytes(llama)
    assert table.dtype == np.int64
    assert table[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(table[9:].tolist()) == {1}
    assert token_bytes(load_tokenizer("byte")).tolist() == [1] * 256
    assert token_bytes(load_tokenizer("byte260")).tolist() == [0] * 4 + [1] * 256
    assert token_bytes(load_tokenizer("byte", separator="10"))[8:12].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("text", ["a", " a", "  ab a", "", "é", "aé  b", "\n", "   "])
def test_bytes_of_a_document_are_its_utf8_length(llama: Tokenizer, text: str) -> None:
    ids = llama.encode(text)
    assert text_bytes(llama, ids) == len(text.encode())
    stream = np.concatenate([[2], ids, [2], ids, [1], ids])
    assert text_bytes(llama, stream) == 3 * len(text.encode())


def test_an_unknown_id_has_no_bytes_and_begins_no_text(llama: Tokenizer) -> None:
    assert text_bytes(llama, [6, 0, 6]) == 1 + 0 + 2
    with pytest.raises(TokenizerError, match="id 300 at position 1 is outside the vocabulary of 265"):
        text_bytes(llama, [6, 300])
    with pytest.raises(TokenizerError, match="expected integers"):
        text_bytes(llama, [0.5])


@pytest.mark.parametrize("n", [1, 3, 7, 64, 1000, 12_345])
def test_a_uniform_model_has_exactly_8_bits_per_byte_on_bytes(n: int) -> None:
    tokenizer = load_tokenizer("byte")
    rng = np.random.default_rng(n)
    ids = rng.integers(0, 256, n + 1)
    bits = BitsPerByte(tokenizer)
    for a in range(0, n, 500):
        b = min(a + 500, n)
        bits.add(np.full(b - a, math.log(256)), ids[a + 1 : b + 1], ids[a:b])
    assert bits.bits_per_byte("text") == 8.0
    assert bits.bits_per_byte("golf") == 8.0
    assert bits.bits_per_token == 8.0


def test_separators_are_in_neither_sum_of_text_but_in_golf(llama: Tokenizer) -> None:
    ids = np.array([2, 6, 4, 2, 8, 5])  # </s> " a" a </s> " b" b: the texts "aa" and "bb"
    nats = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    bits = BitsPerByte(llama)
    bits.add(nats, ids[1:], ids[:-1])
    assert (bits.n_targets, bits.n_bytes, bits.golf_bytes) == (5, 4, 4)
    assert bits.nats_per_token == 31 / 5
    assert bits.bits_per_token == pytest.approx(31 / 5 / math.log(2))
    assert bits.bits_per_byte() == pytest.approx((31 - 4) / math.log(2) / 4)
    assert bits.bits_per_byte("golf") == pytest.approx(31 / 5 / math.log(2) * 5 / 4)
    with pytest.raises(UsageError, match="definition 'x' is unknown"):
        bits.bits_per_byte("x")  # type: ignore[arg-type]


def test_torch_and_numpy_batches_and_ranks_add_up(llama: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, llama.vocab_size, (6, 9))
    nats = rng.random((6, 8))
    whole = BitsPerByte(llama)
    whole.add(nats, ids[:, 1:], ids[:, :-1])
    tensors = BitsPerByte(llama)
    parts = [BitsPerByte(llama) for _ in range(3)]
    for row in range(6):
        args = (nats[row], ids[row, 1:], ids[row, :-1])
        tensors.add(*(torch.from_numpy(a) for a in args))
        parts[row % 3].add(*args)
    wanted = pytest.approx(whole.as_array())
    assert tensors.as_array() == wanted
    assert sum(parts).as_array() == wanted  # type: ignore[union-attr]
    assert parts[0].merge(parts[1]).merge(parts[2]).as_array() == wanted
    gathered = whole.from_array(sum(part.as_array() for part in parts))
    assert gathered.bits_per_byte() == pytest.approx(whole.bits_per_byte())
    mixed = BitsPerByte(llama)
    mixed.add(torch.from_numpy(nats).float(), ids[:, 1:], ids[:, :-1])
    assert mixed.n_bytes == whole.n_bytes


def test_what_does_not_add_up_is_refused(llama: Tokenizer) -> None:
    bits = BitsPerByte(llama)
    with pytest.raises(UsageError, match="must be alike"):
        bits.add(np.zeros(2), np.zeros(3, int), np.zeros(3, int))
    with pytest.raises(UsageError, match=r"loss of target 1 is not a number"):
        bits.add([0.0, math.nan], [4, 4], [4, 4])
    with pytest.raises(UsageError, match="id 265 is outside"):
        bits.add([0.0], [265], [4])
    with pytest.raises(UsageError, match="do not add up"):
        _ = bits + BitsPerByte(load_tokenizer("byte"))
    with pytest.raises(UsageError, match="expected 6 sums"):
        bits.from_array([1, 2])
    assert math.isnan(bits.bits_per_byte())
    bits.add(torch.tensor([math.nan]), torch.tensor([4]), torch.tensor([4]))
    with pytest.raises(UsageError, match="not a number"):
        bits.as_array()


def test_the_report_shows_both_byte_counts_and_their_difference(llama: Tokenizer) -> None:
    bits = BitsPerByte(llama)
    bits.add([2.0, 2.0], [6, 4], [2, 6])
    lines = bits.report(split=SplitBytes(source=300, ids=200)).splitlines()
    assert lines[0] == "2 targets, 2 bytes of text"
    assert lines[3] == "bits per byte text  2.885390  (bytes that the ids stand for)"
    assert lines[4] == (
        "bits per byte text  1.923593  (source bytes: 300 for 200 by ids; difference -0.961797, -33.3333%)"
    )
    assert lines[5].startswith("bits per byte golf  2.885390")


def test_a_character_that_normalisation_shortens_is_divided_by_its_source_bytes() -> None:
    # U+FE30 has 3 bytes and becomes "..", 2 bytes.
    assert SplitBytes(source=3, ids=2).ratio == 1.5
    assert SplitBytes(source=0, ids=0).ratio == 1.0


class Processor:
    """A SentencePiece processor as far as the tables ask it."""

    pieces = ("<unk>", "<s>", "▁", "▁▁x", "ab", "<0x41>", "<gone>")

    def get_piece_size(self) -> int:
        return len(self.pieces)

    def id_to_piece(self, i: int) -> str:
        return self.pieces[i]

    def is_unknown(self, i: int) -> bool:
        return i == 0

    def is_control(self, i: int) -> bool:
        return i == 1

    def is_byte(self, i: int) -> bool:
        return i == 5

    def is_unused(self, i: int) -> bool:
        return i == 6


def test_golf_s_tables_strip_one_mark_and_count_three_for_each_further_one() -> None:
    table = byte_tables(Processor(), vocab_size=9)
    assert table.base_bytes.tolist() == [0, 0, 0, 4, 2, 1, 0, 0, 0]
    assert table.base_bytes.dtype == np.int16
    assert np.flatnonzero(table.has_leading_space).tolist() == [2, 3]
    assert np.flatnonzero(table.is_boundary).tolist() == [0, 1, 6, 7, 8]


class Mean(torch.nn.Module):
    """The mean loss of a batch as a module: a function of its ids."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.double().mean() + 2 * y.double().mean()) / 7


def test_golf_s_own_names_give_the_same_over_all_ranks() -> None:
    from types import SimpleNamespace

    from tokenriver.golf import build_sentencepiece_luts

    ids = np.random.default_rng(5).integers(2, 6, 101)
    luts = build_sentencepiece_luts(Processor(), 8, "cpu")
    table = GolfTable(*(lut.numpy() for lut in luts))
    model = Mean()
    args = SimpleNamespace(train_seq_len=10, val_batch_size=40)
    loss, bpb = eval_val(args, model, 0, 1, "cpu", 2, torch.from_numpy(ids), *luts)
    assert model.training
    settings: dict[str, Any] = {"seq_len": 10, "batch_tokens": 40, "grad_accum_steps": 2}
    by_hand = [
        eval_bpb(lambda x, y: (x.mean() + 2 * y.mean()) / 7, ids, table, rank=r, world_size=2, **settings)
        for r in range(2)
    ]
    nats, targets, n_bytes = (sum(values) for values in zip(*by_hand, strict=True))
    assert targets == 100
    assert loss == pytest.approx(nats / targets)
    assert bpb == pytest.approx(nats / math.log(2) / n_bytes)
    with pytest.raises(UsageError, match="less than one sequence"):
        eval_bpb(model, ids[:10], table, **settings)
