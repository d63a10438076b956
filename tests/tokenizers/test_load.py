"""From a name or path to a tokenizer, its separator, and what a wrong one is told."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import time

import pytest
import tiktoken
from tiktoken_ext import openai_public

from tokenriver import TokenizerError, load_tokenizer
from tokenriver.tokenizers.ranks import ENCODINGS
from tokenriver.tokenizers.train import train_tokenizer

TEXTS = [f"line {n} of some text, with numbers {n * 31} and words\n" for n in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("mine")
    train_tokenizer(TEXTS, kind="byte-bpe", vocab_size=350, out=out)
    return out


def test_a_folder_a_file_and_its_gzip_are_the_same_tokenizer(folder, tmp_path):
    raw = (folder / "tokenizer.json").read_bytes()
    packed = tmp_path / "mine.tokenizer.json.gz"
    packed.write_bytes(gzip.compress(raw))
    loaded = [load_tokenizer(folder), load_tokenizer(str(folder / "tokenizer.json")), load_tokenizer(packed)]
    assert len({t.sha256 for t in loaded}) == 1
    assert [t.tokenizer_id for t in loaded] == [folder.name, folder.name, "mine"]


def test_generation_config_beside_names_the_separator(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert load_tokenizer(tmp_path).separator_id == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "e"}}))
    assert load_tokenizer(tmp_path).decode_bytes([load_tokenizer(tmp_path).separator_id]) == b"e"
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load_tokenizer(tmp_path).separator_id == 7
    assert load_tokenizer(tmp_path, separator="<|endoftext|>").separator_id == 0
    assert load_tokenizer(tmp_path, separator="12").decode_bytes([0]) == b""
    assert load_tokenizer(tmp_path, separator="none").separator_id is None


@pytest.mark.parametrize("separator", ["<|nothing|>", 350, -1])
def test_a_separator_outside_the_vocabulary_is_an_error(folder, separator):
    with pytest.raises(TokenizerError, match=r"separator .*vocabulary"):
        load_tokenizer(folder, separator=separator)


def test_a_tiktoken_file_needs_its_patterns_name(tmp_path):
    pairs = [bytes([b]) for b in range(256)] + [b"th", b"the", b" the"]
    path = tmp_path / "my.tiktoken"
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(p), i) for i, p in enumerate(pairs)))
    with pytest.raises(TokenizerError, match=r"add the pattern's name, as in .*my.tiktoken:cl100k_base"):
        load_tokenizer(path)
    for name in ("cl100k_base", "gpt2", "o200k_base"):
        tokenizer = load_tokenizer(f"{path}:{name}")
        text = "the other the<|endoftext|> 12345 I'LL \n\n  x\u4e00\U000323b0"
        assert tokenizer.encode(text).tolist() == tokenizer.reference_encode_batch([text]).ids.tolist()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.separator_id == ENCODINGS[name].special["<|endoftext|>"]


def test_the_split_patterns_are_tiktokens_own():
    assert ENCODINGS["gpt2"].pattern == openai_public.r50k_pat_str
    assert ENCODINGS["cl100k_base"].pattern in openai_public.cl100k_base.__code__.co_consts
    parts = [c for c in openai_public.o200k_base.__code__.co_consts if isinstance(c, tuple)]
    assert any(ENCODINGS["o200k_base"].pattern == "|".join(part) for part in parts)


def test_an_encoding_name_without_network_says_which_file_to_give(monkeypatch):
    def refuse(_name: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    with pytest.raises(TokenizerError, match=r"cannot be downloaded .*vocab.bpe and encoder.json"):
        load_tokenizer("gpt2")
    with pytest.raises(TokenizerError, match=r"the path of cl100k_base.tiktoken"):
        load_tokenizer("cl100k_base")


def no_network(monkeypatch) -> None:
    """Every connection fails at once, and the wait between two tries would be noticed."""

    def refuse(*_args: object, **_words: object) -> None:
        raise OSError("no network here")

    def wait(_seconds: float) -> None:
        raise AssertionError("a retry loop")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(time, "sleep", wait)


def test_a_hub_id_without_network_says_at_once_which_file_to_give(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    no_network(monkeypatch)
    with pytest.raises(TokenizerError, match=r"some/model: .*give the path of its tokenizer.json"):
        load_tokenizer("some/model")


def test_a_hub_id_in_the_cache_needs_no_network(monkeypatch, folder, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    no_network(monkeypatch)
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("a" * 40)
    (snapshot / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (snapshot / "generation_config.json").write_text('{"eos_token_id": 7}')
    tokenizer = load_tokenizer("some/model")
    assert tokenizer.tokenizer_id == "model"
    assert tokenizer.sha256 == load_tokenizer(folder).sha256
    assert tokenizer.separator_id == 7


@pytest.mark.parametrize("name", ["missing/tokenizer.json", "missing.model", "/no/such/folder", "a b", "./no", "../no"])
def test_a_path_that_is_not_there_is_no_hub_id(name):
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        load_tokenizer(name)


def test_damaged_files_are_named(tmp_path):
    for name, content, message in (
        ("tokenizer.json", b"{", "not valid JSON"),
        ("deep.json", b"[" * 100_000, "not valid JSON"),
        ("x.json", b"{}", 'no "model" object'),
        ("x.model", b"\x00\x01garbage", "not a SentencePiece model"),
        ("cl100k_base.tiktoken", b"YQ== x\n", "line 1"),
        ("cut.tokenizer.json.gz", gzip.compress(b"{}" * 999)[:-9], "not a whole gzip file"),
        ("bad.tokenizer.json.gz", gzip.compress(bytes(range(256)))[:20] + bytes(300), "not a whole gzip file"),
        ("words.txt", b"", "cannot tell a tokenizer"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(tmp_path / name)


def test_a_file_that_gigatoken_is_not_proven_on_warns_once_and_takes_the_reference(folder, tmp_path):
    spec = json.loads((folder / "tokenizer.json").read_bytes())
    spec["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.warns(UserWarning, match="slower, because its normalizer is Lowercase") as caught:
        tokenizer = load_tokenizer(tmp_path)
    assert len(caught) == 1
    assert tokenizer.backend == "reference"
    assert tokenizer.encode_batch(["A b"]).n_reference == 1


def test_both_files_of_gpt2_name_the_pair_and_a_missing_one_is_named(tmp_path):
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    with pytest.raises(TokenizerError, match=r"encoder.json: missing"):
        load_tokenizer(tmp_path / "vocab.bpe")
    (tmp_path / "encoder.json").write_text("{}")
    (tmp_path / "vocab.bpe").unlink()
    with pytest.raises(TokenizerError, match=r"vocab.bpe: missing"):
        load_tokenizer(tmp_path / "encoder.json")


@pytest.mark.parametrize("texts", ["abc", b"abc", ["a", None], ["a", 5], [["a"]]])
def test_what_is_no_batch_of_texts_is_refused(folder, texts):
    for tokenizer in (load_tokenizer("byte"), load_tokenizer(folder)):
        with pytest.raises(TokenizerError, match=r"a batch is a sequence of texts|not a text; expected str or bytes"):
            tokenizer.encode_batch(texts)
