"""SentencePiece models encoded word by word: sentencepiece's ids, and whole texts where words would not do."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import sentencepiece

from tokenriver import TokenizerError, load_tokenizer
from tokenriver.batches import TextBatch, TokenBatch
from tokenriver.tokenizers.byte_level_pieces import ByteLevelPieces, ContractionFinder, byte_level_form, joined_pairs
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.sentencepiece_model import NORMAL, USER_DEFINED, ModelFile, Piece, code_point_rules
from tokenriver.tokenizers.settled import Settler
from tokenriver.tokenizers.train import train_tokenizer
from tokenriver.tokenizers.windows import anchored, without_anchors

LINES = [
    f"“The {n}th river’s end,” they said ('{n % 7} dogs' ...) -- don't or they're in; café – hmm." for n in range(400)
]
WORDS = [
    "the", "they", "'re", "'the", "dog's", "dog'there", "o'the", "don't", "DON'T", "O'DELL", "I'm'th", "'s)",
    "x'll'", "\"'s", "('the)", ".'", "''", "...", "?!?", "--", "),", "1'st", "2'd3", "1,234", "naïve",
    "’quote’", "“x”", "…", "½", "™", "ﬁ", "東京", "한국", "é", "e\u0301", "▁a", "\u3000", "\ufeff", "🌊", "𝔘",
    "é'the", "’the", "”.", "，ｆｕｌｌ", "＇s", "a＇the", "x²", "\u2028", "´", "a´b", "<unk>", "</s>", "<0x41>",
    "\x01", "\x7f", "\u0085", "a\x00b", "£9", "ß", "ab\u200dc", "the\x00re", "th\x02ey", "don\x01't",
]  # fmt: skip
BLANKS = [" ", " ", " ", "", "", "  ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u00a0", " \u00a0 ", "\x0b", "\u200b", "'"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("sp")
    train_tokenizer(LINES, kind="sp-bpe", vocab_size=420, out=out)
    return out


@pytest.fixture(scope="module")
def model(folder):
    path = next(folder.glob("*.model"))
    return ModelFile.parse(path.read_bytes(), where=path.name)


def random_text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return "".join(rng.choice("'\"adehlmrstvDRST .,-09’”\n") for _ in range(rng.randrange(25)))
    plain = LINES[rng.randrange(400)].split(" ") if kind < 0.6 else []
    size = rng.choice([0, 1, 2, 5, 12])
    words = [
        rng.choice([*WORDS, *plain, chr(rng.randrange(0x2600)), chr(rng.randrange(0xF900, 0x20000))])
        for _ in range(size)
    ]
    mixed = [word + rng.choice(BLANKS) for word in words] + [word + " " for word in plain]
    rng.shuffle(mixed)
    return rng.choice(BLANKS) + "".join(mixed)


def test_ids_are_the_references_on_texts_of_every_kind(folder):
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer.fast.encoder, ByteLevelPieces)
    rng = random.Random(5)
    texts = [random_text(rng) for _ in range(6000)]
    expected = tokenizer.reference_encode_batch(texts)
    got = tokenizer.encode_batch(texts)
    assert [t for t, a, b in zip(texts, got, expected, strict=True) if a.tolist() != b.tolist()] == []
    _, is_odd = tokenizer.fast.encoder.settle(TextBatch.from_texts(texts))
    assert 0.02 < is_odd.mean() < 0.5
    usual = [t for t, odd in zip(texts, is_odd, strict=True) if not odd]
    by_words = tokenizer.encode_batch(usual)
    kept = [ids for ids, odd in zip(expected, is_odd, strict=True) if not odd]
    assert [t for t, a, b in zip(usual, by_words, kept, strict=True) if a.tolist() != b.tolist()] == []


def test_a_slice_of_a_batch_is_encoded_as_itself(folder):
    tokenizer = load_tokenizer(folder)
    batch = TextBatch.from_texts(LINES)
    shifted = TextBatch(batch.data, batch.offsets[50:61])
    assert tokenizer.encode_batch(shifted).ids.tolist() == tokenizer.reference_encode_batch(LINES[50:60]).ids.tolist()


def test_settled_text_is_what_sentencepiece_normalises_to(folder, model):
    normalizer = sentencepiece.SentencePieceNormalizer(model_file=str(next(folder.glob("*.model"))))
    settler = Settler(code_point_rules(model.charsmap))
    texts = [
        "",
        " ",
        "  a  b ",
        "\t\nx\r\n\r\ny",
        "z" + " " * 40,
        "\u00a0a\u00a0 b\u3000",
        "ﬁ™…＇\x01 \x02 c",
        "\x01",
        "a\x00 b",
    ]
    settled, is_odd = settler.settle(TextBatch.from_texts(texts))
    assert settled.texts() == [normalizer.normalize(t).replace("▁", " ") for t in texts]
    assert not is_odd.any()


def test_code_points_that_grow_or_hold_a_space_are_left_to_the_other_encoder(model):
    settler = Settler(code_point_rules(model.charsmap))
    assert settler.settle(TextBatch.from_texts(["½", "a", "a´b", "™"]))[1].tolist() == [True, False, True, False]


def test_rules_of_single_code_points_are_the_normalisers_own(folder, model):
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_file=str(next(folder.glob("*.model"))), escape_whitespaces=False, remove_extra_whitespaces=False
    )
    rules = code_point_rules(model.charsmap)
    points = [*range(1, 0x300), *range(0x2000, 0x2200), *range(0xFF00, 0xFF9E), *range(0x1D400, 0x1D500)]
    assert [rules.get(c, chr(c).encode()).decode() for c in points] == normalizer.normalize([chr(c) for c in points])
    assert code_point_rules(b"") == {}


def with_piece(model: ModelFile, text: str, kind: int = NORMAL) -> ModelFile:
    return dataclasses.replace(model, pieces=(*model.pieces, Piece(text, -1.0, kind)))


def test_joined_pairs_are_those_inside_pieces(model):
    small = dataclasses.replace(model, pieces=(Piece("▁ab", 0, NORMAL), Piece("xy", 0, USER_DEFINED)))
    assert joined_pairs(small) == {("▁", "a"), ("a", "b")}


def test_a_model_whose_pieces_reach_over_a_cut_has_no_form_of_words(model):
    assert byte_level_form(model, []) is not None
    assert byte_level_form(with_piece(model, "ж"), []) is not None
    for text in ("e1", "e,", ",e", "e▁", "▁▁", "e ", "x\u0378"):
        assert byte_level_form(with_piece(model, text), []) is None, text
    assert byte_level_form(with_piece(model, "жж"), []) is None
    assert byte_level_form(with_piece(model, "word", USER_DEFINED), []) is None
    assert byte_level_form(dataclasses.replace(model, add_dummy_prefix=True), []) is None
    assert byte_level_form(dataclasses.replace(model, remove_extra_whitespaces=False), []) is None
    assert byte_level_form(dataclasses.replace(model, charsmap=b""), []) is None


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("dog'there", True), ("'there", True), ("é'there", True), ("x'reth", True), ("don't", False),
        ("don't the", False), ("a 'there", False), ("('there", False), ("a'tz", False), ("O'THERE", False),
        ("x'There", True),
    ],
)  # fmt: skip
def test_a_contraction_cut_off_a_word_is_found_where_a_piece_could_reach_over_the_cut(text, is_cut):
    finder = ContractionFinder({("t", "h"), ("e", "t"), ("T", "h")})
    assert finder.texts(TextBatch.from_texts(["plain", text, "."])).tolist() == ([1] if is_cut else [])


def test_beginnings_of_characters_become_the_ids_of_their_bytes(folder, model):
    form = byte_level_form(model, [])
    tokens = TokenBatch(np.array([5, len(model.pieces), 7, len(model.pieces)], np.uint32), np.array([0, 1, 1, 3, 4]))
    expanded = form.expanded(tokens)
    parts = load_tokenizer(folder, backend="reference").token_bytes_table()
    assert expanded.lengths.tolist()[0:2] == [1, 0]
    assert expanded.ids[0] == 5
    assert all(len(parts[i]) == 1 for i in expanded[3])
    assert expanded[2].tolist() == [*expanded[3].tolist(), 7]
    assert b"".join(parts[i] for i in expanded[3]) in ("“".encode()[:2], "é".encode()[:1])


def test_anchors_come_and_go():
    batch = TextBatch.from_texts(["xx", "one", " two", "", " three"]).slice(1, 5)
    is_inner = np.array([False, True, False, True])
    with_signs = anchored(batch, is_inner)
    assert with_signs.texts() == ["one", ". two", "", ". three"]
    tokens = TokenBatch(with_signs.data.astype(np.uint32), with_signs.offsets, 3)
    back = without_anchors(tokens, is_inner)
    assert bytes(back.ids.tolist()) == b"one two three"
    assert back.offsets.tolist() == batch.offsets.tolist()
    assert back.n_reference == 3


def test_a_failing_text_is_named_though_signs_stand_before_its_parts(folder, monkeypatch):
    tokenizer = load_tokenizer(folder)

    def fail(self, batch, *, parallel):  # noqa: ARG001
        if any(b"boom" in text for text in batch):
            raise TokenizerError("boom")
        return TokenBatch(np.zeros(len(batch), np.uint32), np.arange(len(batch) + 1))

    monkeypatch.setattr(FastEncoder, "encode", fail)
    with pytest.raises(TokenizerError, match="document 2 of the batch"):
        tokenizer.encode_batch(["one e\u0301 two", "x e\u0301 y", "a e\u0301 boom", "d"])
