"""URLs on the command line: one line for each failure, the right exit code, and no credentials anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_server import KEY_ID, SECRET, Fault

from tokenriver.cli import main
from tokenriver.storage.directory import STAGING_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from s3_server import Bucket


@pytest.fixture
def bucket(impatient: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "staging"))
    monkeypatch.chdir(tmp_path)
    impatient.put("in/a.jsonl", b'{"text": "a river"}\n' * 100)
    impatient.put("bad/a.jsonl", b'{"text": "a river"}\n{"txt": 1}\n')
    impatient.put("x.png", b"no documents")
    return impatient


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error, which is one line, or none."""
    code = main(words)
    error = capsys.readouterr().err
    assert error.count("\n") == (1 if code else 0), error
    assert "Traceback" not in error
    assert not any(secret in error for secret in (KEY_ID, SECRET))
    return code, error


@pytest.mark.parametrize(
    ("source", "out", "code", "message"),
    [
        ("{url}/in", "{url}/out", 0, ""),
        ("{url}/none", "{url}/out", 1, "{url}/none: no such object, and none below it as a prefix"),
        ("{url}/x.png", "{url}/out", 1, "{url}/x.png: unknown kind of file"),
        ("{url}/bad", "{url}/out", 1, "{url}/bad/a.jsonl:2 (byte 20): no field 'text'"),
        ("s3://no-such-bucket-at-all/in", "{url}/out", 1, "s3://no-such-bucket-at-all/in: the bucket does not exist"),
        ("{url}/in", "s3://no-such-bucket-at-all/out", 1, "out/tokens/byte/in: the bucket does not exist"),
        ("{url}/in/*.jsonl", "{url}/out", 2, "no data set name follows from the input"),
        ("foo://a/b", "{url}/out", 2, "foo:// is no storage that fsspec knows"),
        ("{url}/in", "foo://a/b", 2, "foo:// is no storage that fsspec knows"),
        ("s3://", "{url}/out", 2, "s3://: names no bucket and no path"),
        ("{url}/in", "https://me:word@host/out", 2, "nothing can be written to https://"),
    ],
)
def test_a_build_says_in_one_line_what_is_wrong(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], source: str, out: str, code: int, message: str
) -> None:
    source, out, message = (word.replace("{url}", bucket.url) for word in (source, out, message))
    words = ["build", source, "--tokenizer", "byte", "--out", out, "--quiet"]
    found, error = said(words, capsys)
    assert found == code
    assert message in error
    assert bool(bucket.names("out")) == (code == 0)


def test_refused_access_and_missing_credentials_are_said_without_any(
    bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fresh_clients: Callable[[], None],
) -> None:
    words = ["build", f"{bucket.url}/in", "--tokenizer", "byte", "--out", f"{bucket.url}/out", "--quiet"]
    bucket.server.fail(bucket.name, Fault(status=403), always=True)
    bucket.server.fail(bucket.name, Fault(status=403), method="HEAD", always=True)
    code, error = said(words, capsys)
    assert code == 1
    assert f"{bucket.url}/in: the store refuses access" in error
    bucket.server.mend()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    fresh_clients()
    code, error = said(words, capsys)
    assert code == 1
    assert f"{bucket.url}/in: no usable credentials" in error


def test_a_signature_in_a_url_is_in_no_output(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{bucket.server.url}/{bucket.name}/none.bin?X-Amz-Signature=abcdef&X-Amz-Credential=xyz"
    for words in (["verify", url], ["inspect", url], ["build", url, "--tokenizer", "byte", "--out", "o", "--quiet"]):
        assert main(words) == 1
        output = capsys.readouterr()
        assert "none.bin" in output.out + output.err
        assert "abcdef" not in output.out + output.err
        assert "xyz" not in output.out + output.err


def test_a_build_goes_through_refusals_for_load(s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    s3.put("in/a.jsonl", b'{"text": "a river"}\n' * 100)
    s3.server.fail("a.jsonl", Fault(status=503), Fault(cut=10))
    words = [
        "build",
        f"{s3.url}/in",
        "--tokenizer",
        "byte",
        "--out",
        f"{s3.url}/out",
        "--staging",
        str(tmp_path / "st"),
    ]
    assert main(words) == 0
    assert f"wrote {s3.url}/out/tokens/byte/in/_MANIFEST.json" in capsys.readouterr().out
    assert not list((tmp_path / "st").glob("*"))
