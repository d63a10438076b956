"""Ids equal the original programs' over every vocabulary and document of ../shared, and over generated Unicode."""

from __future__ import annotations

import gzip
import hashlib
import json
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import shared_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tokenriver import Tokenizer

TOKENIZERS = [
    "gpt2",
    "hf_gpt2",
    "hf_smollm2",
    "hf_mistral_v1",
    "hf_llama3",
    "hf_qwen3",
    "hf_torchtitan_test_2020",
    "spm_fineweb_1024_bpe",
    "spm_fineweb_8192_bpe",
    "spm_mistral_32000",
    "spm_spm_test_unigram_1000",
]
REFERENCE_ONLY = {"hf_torchtitan_test_2020", "spm_spm_test_unigram_1000"}
FAST = [name for name in TOKENIZERS if name not in REFERENCE_ONLY]


def load(name: str) -> Tokenizer:
    kind, _, rest = name.partition("_")
    return shared_folder.load(
        {"hf": f"hf/{rest}.tokenizer.json.gz", "spm": f"sentencepiece/{rest}.model"}.get(kind, name)
    )


@cache
def documents(docs_file: str) -> list[str]:
    path = shared_folder.SHARED.parent / docs_file
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file.read().split("\n") if line]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_decoded_bytes_equal_the_recorded_ones_on_both_paths(shared, name):
    cases = [c for c in json.loads((shared / "vectors/tokenize.json").read_bytes())["cases"] if c["tokenizer"] == name]
    assert cases
    tokenizer = load(name)
    for case in cases:
        texts = documents(case["docs_file"])[: case.get("max_docs")]
        batches = [tokenizer.encode_batch(texts)]
        if name in FAST and len(texts) < 60:
            batches.append(tokenizer.reference_encode_batch(texts))
        for batch in batches:
            assert hashlib.sha256(batch.ids.astype("<u4").tobytes()).hexdigest() == case["ids_sha256_u32le"]
            assert hashlib.sha256(batch.lengths.astype("<u4").tobytes()).hexdigest() == case["counts_sha256_u32le"]
        same = sum(tokenizer.decode_bytes(ids) == text.encode() for ids, text in zip(batch, texts, strict=True))
        assert same == case["docs_that_decode_to_the_same_bytes"]


@pytest.mark.parametrize(
    ("name", "separator", "vocab_size"),
    [
        ("gpt2", 50256, 50257),
        ("hf_gpt2", 50256, 50257),
        ("hf_smollm2", 0, 49152),
        ("hf_llama3", 128001, 128256),
        ("hf_qwen3", 151643, 151669),
        ("hf_mistral_v1", 2, 32000),
        ("spm_mistral_32000", 2, 32000),
        ("spm_fineweb_1024_bpe", 2, 1024),
    ],
)
def test_the_separator_is_the_vocabularys_end_of_text(shared, name, separator, vocab_size):  # noqa: ARG001
    assert (load(name).separator_id, load(name).vocab_size) == (separator, vocab_size)


def test_the_sha256_is_that_of_the_published_tokenizer_json(shared):  # noqa: ARG001
    assert load("hf_smollm2").sha256.startswith("9ca9acdd")
    assert load("hf_smollm2").tokenizer_id == "smollm2"


GPT2_CASES = {
    "a<|endoftext|>b": [64, 27, 91, 437, 1659, 5239, 91, 29, 65],
    "A\u2028B": [32, 447, 101, 33],
    "A\x85B": [32, 126, 227, 33],
    "\ufeffHello": [171, 119, 123, 15496],
    "a\x00b": [64, 188, 65],
    "a\r\nb": [64, 201, 198, 65],
    "Hello world": [15496, 995],
}


@pytest.mark.parametrize("name", ["gpt2", "hf_gpt2"])
def test_gpt2_gives_the_known_ids_on_texts_that_others_got_wrong(shared, name):  # noqa: ARG001
    for batch in (load(name).encode_batch(list(GPT2_CASES)), load(name).reference_encode_batch(list(GPT2_CASES))):
        assert [ids.tolist() for ids in batch] == list(GPT2_CASES.values())


@pytest.mark.parametrize("name", ["gpt2", "hf_gpt2"])
def test_a_million_equal_characters_are_quick(shared, name):  # noqa: ARG001
    batch = load(name).encode_batch(["^" * 10**6, "a" * 10**6])
    assert batch[0].tolist() == [39397] * 250_000
    assert batch[1].tolist() == [24794] * 250_000


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_that_spells_a_special_token_is_ordinary_text(shared, name):  # noqa: ARG001
    tokenizer = load(name)
    table = tokenizer.token_bytes_table()
    special = tokenizer.special_texts[:40]
    texts = [f"a{text}b {text}" for text in special]
    fast, reference = tokenizer.encode_batch(texts), tokenizer.reference_encode_batch(texts)
    assert fast.ids.tolist() == reference.ids.tolist()
    if name not in REFERENCE_ONLY:
        assert all(table[i] for i in np.unique(fast.ids)), "a special id came out of text"
        assert [tokenizer.decode(ids) for ids in fast] == texts


MARKS = "".join(chr(c) for c in range(0x300, 0x20000) if unicodedata.category(chr(c))[0] == "M")
PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    st.text(st.characters(max_codepoint=0x250), min_size=1, max_size=6),
    st.sampled_from(MARKS),
    st.sampled_from(
        [" ", "  ", "▁", " ▁", "\u0085", "\x00", "\r\n", "\t", "\u00a0", "\u3000", "<|endoftext|>", "</s>", "<s>"],
    ),
    st.sampled_from(
        ["<0x0A>", "'s", "'\u017f", "o\u0302\u0323", "\u09c7\u09be", "\u1112\u1161\u11ab", "\uff8a\uff9f", "e\u0301"],
    ),
    st.sampled_from(
        ["123", "²", "\U000323b0", "\U000e0041", "\x04", "<think>", "\U0001f468\u200d\U0001f469", "❤\ufe0f", "word"]
    ),
    st.builds(lambda c, n: c * n, st.sampled_from("a- =\n▁1"), st.integers(2, 40)),
)
TEXTS = st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=1, max_size=20)


@pytest.mark.parametrize("name", FAST)
def test_ids_equal_the_references_on_generated_unicode(shared, name):  # noqa: ARG001
    tokenizer = load(name)

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(TEXTS)
    def ids_are_equal(texts):
        fast, reference = tokenizer.encode_batch(texts), tokenizer.reference_encode_batch(texts)
        assert fast.offsets.tolist() == reference.offsets.tolist()
        assert fast.ids.tolist() == reference.ids.tolist()

    ids_are_equal()


@pytest.mark.parametrize("name", ["gpt2", "hf_llama3", "hf_qwen3", "hf_smollm2"])
def test_code_points_of_newer_unicode_versions_never_change_the_ids(shared, name):  # noqa: ARG001
    tokenizer = load(name)
    points = [*range(0x370, 0x800, 7), *range(0x10900, 0x12000, 61), *range(0x323A0, 0x33490, 97)]
    texts = [f"a{chr(c)}b 1{chr(c)}2 {chr(c)} .{chr(c)}{chr(c)} x" for c in points]
    assert tokenizer.encode_batch(texts).ids.tolist() == tokenizer.reference_encode_batch(texts).ids.tolist()


def test_one_rare_character_does_not_send_a_long_document_to_the_reference(shared):
    text = (shared / "data/tinyshakespeare/input.txt").read_text()
    tokenizer = load("gpt2")
    marked = text[:500_000] + "\U000323b0" + text[500_000:]
    batch = tokenizer.encode_batch([marked, text])
    assert batch.n_reference == 1
    assert batch.ids.tolist() == tokenizer.reference_encode_batch([marked, text]).ids.tolist()
    assert len(batch[1]) == 338_025
