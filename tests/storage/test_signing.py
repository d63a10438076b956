"""Signed URLs: which stores give them, how long they are used, and that nobody gets to see one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import fsspec

from tokenriver.storage import signing
from tokenriver.storage.paths import filesystem_of
from tokenriver.storage.signing import SignedUrl, SignedUrls, signer_of

if TYPE_CHECKING:
    import pytest
    from s3_server import Bucket


def counting(seconds: float) -> tuple[list[str], SignedUrls]:
    made: list[str] = []

    def sign(path: str) -> SignedUrl:
        made.append(path)
        return SignedUrl(f"http://h/{path}?n={len(made)}", time.monotonic() + seconds)

    return made, SignedUrls(sign)


def test_a_url_is_signed_once_and_again_when_it_was_refused_or_its_time_is_over() -> None:
    made, urls = counting(60)
    first = urls.of("a")
    assert urls.of("a") is first
    urls.drop("a", first)
    assert urls.of("a").url == "http://h/a?n=2"
    urls.drop("a", first)
    assert urls.of("a").url == "http://h/a?n=2", "what another thread has had signed meanwhile is kept"
    made, urls = counting(-1)
    urls.of("a")
    urls.of("a")
    assert made == ["a", "a"]


def test_no_more_urls_are_kept_than_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_KEPT", 3)
    made, urls = counting(60)
    for path in "abcda":
        urls.of(path)
    assert made == list("abcda")
    assert urls.of("d").url.endswith("n=4")


def test_a_signed_url_is_not_shown() -> None:
    assert "secret" not in repr(SignedUrl("https://h/a?X-Amz-Signature=secret", 0.0))


def test_s3_signs_by_version_4_for_whatever_endpoint_and_characters(s3: Bucket) -> None:
    fs, path = filesystem_of(f"{s3.url}/a b#?ü.bin")
    sign = signer_of(fs)
    assert sign is not None
    signed = sign(path)
    assert signed.url.startswith(f"{s3.server.url}/{s3.name}/a%20b%23%3F%C3%BC.bin?X-Amz-Algorithm=AWS4-HMAC-SHA256&")
    assert 3600 < signed.until - time.monotonic() < signing.SIGNED_SECONDS


def test_a_signature_version_that_the_user_chose_is_kept(s3: Bucket) -> None:
    fs = type(filesystem_of(s3.url + "/a")[0])(endpoint_url=s3.server.url, config_kwargs={"signature_version": "s3"})
    sign = signer_of(fs)
    assert sign is not None
    assert "AWSAccessKeyId=" in sign(f"{s3.name}/a").url


def test_who_reads_without_credentials_gets_a_url_without_a_signature(s3: Bucket) -> None:
    fs = type(filesystem_of(s3.url + "/a")[0])(endpoint_url=s3.server.url, anon=True)
    sign = signer_of(fs)
    assert sign is not None
    assert sign(f"{s3.name}/a").url == f"{s3.server.url}/{s3.name}/a"


def test_whose_requests_need_more_than_a_url_has_none_signed(s3: Bucket) -> None:
    assert signer_of(type(filesystem_of(s3.url + "/a")[0])(endpoint_url=s3.server.url, requester_pays=True)) is None
    assert signer_of(fsspec.filesystem("http", headers={"Authorization": "mine"})) is None


def test_a_web_servers_urls_are_their_own_and_some_stores_have_none() -> None:
    fs: Any = fsspec.filesystem("http")
    sign = signer_of(fs)
    assert sign is not None
    assert sign("http://h/a b.bin").url == "http://h/a%20b.bin"
    assert signer_of(fsspec.filesystem("memory")) is None
