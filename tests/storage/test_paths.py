"""Words of the user: which are URLs, what is shown of them, and what becomes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenriver.errors import UsageError
from tokenriver.storage.directory import staging_root
from tokenriver.storage.paths import is_remote, is_url, last_name, local_path, shown, to_output, to_path


@pytest.mark.parametrize("word", ["s3://bucket/key", "memory://a", "hf://datasets/a/b", "https://host/a.jsonl"])
def test_words_with_a_scheme_are_urls(word: str) -> None:
    assert is_url(word)


@pytest.mark.parametrize("word", ["file:///a/b", "a/b", "c:/a", "c://a", "-", "a:b", "/x/s3://y"])
def test_other_words_are_paths_here(word: str) -> None:
    assert not is_url(word)


def test_a_file_url_is_the_path_in_it() -> None:
    assert to_path("file:///a/b c") == Path("/a/b c")
    assert not is_remote(to_path("file:///a"))


def test_a_remote_path_keeps_every_character_of_a_key() -> None:
    path = to_path("memory://bucket/a b/x#y?z%2F[1]ü")
    assert is_remote(path)
    assert str(path / "n") == "memory://bucket/a b/x#y?z%2F[1]ü/n"
    assert path.name == "x#y?z%2F[1]ü"


def test_a_scheme_that_nobody_knows_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="foo:// is no storage that fsspec knows"):
        to_path("foo://bucket/key")


def test_credentials_in_a_url_are_never_shown() -> None:
    url = "https://me:pass@host/a.jsonl?x=1&X-Amz-Signature=abc&X-Amz-Credential=AK%2F1&sig=s&access_token=t"
    said = shown(f"GET {url}: failed")
    assert "pass" not in said
    assert "me" not in said.partition("GET ")[2].partition("host")[0]
    assert not any(secret in said for secret in ("=abc", "AK%2F1", "=s&", "=t"))
    assert "x=1" in said


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/a/b.jsonl", "b.jsonl"),
        ("s3://bucket/a/", "a"),
        ("s3://bucket", "bucket"),
        ("s3://bucket/a?b#c", "a?b#c"),
        ("https://host/x/a.jsonl.gz?download=true#top", "a.jsonl.gz"),
    ],
)
def test_the_last_part_of_a_url_is_its_name(url: str, name: str) -> None:
    assert last_name(url) == name


def test_a_url_where_only_a_path_will_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--root s3://bucket/x: a URL"):
        local_path("s3://bucket/x", what="--root")


def test_an_empty_path_is_not_the_working_directory() -> None:
    for give in (to_path, to_output):
        with pytest.raises(
            UsageError, match=r"a path is empty; name a file, a folder or a URL \(the working directory is"
        ):
            give("")
        with pytest.raises(UsageError, match="holds a NUL"):
            give("a\0b")


def test_an_empty_variable_for_the_staging_directory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("TOKENRIVER_STAGING", "")
    assert staging_root() == Path("/cache/tokenriver/staging")


def test_a_tilde_is_the_home_directory_as_it_is_to_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    assert to_path("~/x") == to_path(Path("~/x")) == home / "x"
    assert to_path("~") == home
    assert to_path("a~/~x") == Path("a~/~x")
    assert to_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")
    (tmp_path / "~x").mkdir()
    assert to_path("~x") == Path("~x"), "what is called so here"
