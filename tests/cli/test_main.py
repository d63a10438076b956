"""The command as users start it: exit codes, one line for each mistake, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tokenriver import __version__, cli, open_shard, write_shard
from tokenriver.cli.stopping import StoppedError, Terminated
from tokenriver.errors import CorpusError, UsageError
from tokenriver.tokenizers.base import encoder_failure

SRC = Path(cli.__file__).parents[2]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`tokenriver WORDS` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tokenriver", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8", **environment},
    )


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tokenriver: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Missing command"),
        (["biuld"], "No such command 'biuld'"),
        (["verify"], "Missing argument 'PATH'"),
        (["verify", "--bogus", "x.bin"], "--bogus"),
        (["verify", "--workers", "0", "x.bin"], "--workers"),
        (["inspect", "x.bin", "--document", "0", "--tokens", "0:5"], "give one of them"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_2(words: list[str], expected: str) -> None:
    assert_one_line(run(*words), 2, expected)


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors with a shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error_and_get_into_no_file(closed: str, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "hello"}\n')
    command = f'"{sys.executable}" -m tokenriver build docs.jsonl --tokenizer byte --out data {closed}'
    result = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert b"error" not in result.stderr
    shard = tmp_path / "data" / "tokens" / "byte" / "docs" / "train-00000.bin"
    assert open_shard(shard).tolist() == list(b"hello")


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors with a shell")
def test_reading_a_closed_standard_input_is_one_line(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m tokenriver build - --tokenizer byte --out data <&-'
    result = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert_one_line(result, 1, "standard input is closed")


def test_our_own_errors_are_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12345")
    assert_one_line(run("inspect", str(tmp_path / "a.bin")), 1, "a.bin: 5 bytes", "header of 1024 bytes")
    assert_one_line(run("inspect", str(tmp_path / "none.bin")), 1, "none.bin: No such file or directory")


def test_the_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    result = run("inspect", str(tmp_path / "none.bin"), TOKENRIVER_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("tokenriver: ")


def test_version_and_help_go_to_standard_output_with_exit_0() -> None:
    assert run("--version").stdout == f"tokenriver {__version__}\n"
    result = run("--help")
    assert result.returncode == 0
    for command in ("build", "verify", "inspect"):
        assert f"\n  {command} " in result.stdout


def test_the_help_starts_without_anything_heavy() -> None:
    code = (
        "import sys; from tokenriver.cli import main; main(['--help']); "
        "print('HEAVY', [m for m in ('numpy', 'rich', 'pyarrow', 'msgspec', 'tokenizers', 'gigatoken', 'torch', "
        "'huggingface_hub') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.bin", range(60_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenriver", "inspect", str(tmp_path / "a.bin"), "--tokens", ":"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(300) == 1
    process.stderr.close()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("--shard-tokens is 0"), 2, "tokenriver: --shard-tokens is 0\n"),
        (CorpusError("a.jsonl:2 (byte 9): bad\nrecord"), 1, "tokenriver: a.jsonl:2 (byte 9): bad record\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "tokenriver: /x: Permission denied\n"),
        (OSError("odd"), 1, "tokenriver: odd\n"),
        (KeyboardInterrupt(), 130, "tokenriver: interrupted\n"),
        (Terminated(), 143, "tokenriver: terminated\n"),
        (StoppedError("interrupted; go on", 130), 130, "tokenriver: interrupted; go on\n"),
        (ZeroDivisionError("division by zero"), 1, "internal error, please report it: ZeroDivisionError"),
    ],
)
def test_every_error_becomes_one_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**_options: object) -> None:
        raise error

    monkeypatch.setattr(cli, "make_app", lambda _only: command)
    assert cli.main([]) == code
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_is_no_failure_of_an_encoder_and_ends_the_command(
    number: signal.Signals, code: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def command(**_options: object) -> None:
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raise encoder_failure(error) from error

    monkeypatch.setattr(cli, "make_app", lambda _only: command)
    assert cli.main([]) == code
    assert capsys.readouterr().err == f"tokenriver: {word}\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_a_library_makes_an_interruption_of_its_own_keeps_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**_options: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray's compiled parts do

    monkeypatch.setattr(cli, "make_app", lambda _only: command)
    assert cli.main([]) == 143
    assert capsys.readouterr().err == "tokenriver: terminated\n"
    monkeypatch.setattr(cli, "make_app", lambda _only: lambda **_options: 130)
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "tokenriver: interrupted\n"


def test_an_interruption_that_the_parser_swallowed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "make_app", lambda _only: lambda **_options: 130)
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "tokenriver: interrupted\n"


def test_an_interruption_while_importing_is_one_line() -> None:
    program = (
        "import sys, runpy\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('tokenriver', run_name='__main__')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert (result.returncode, result.stderr) == (130, "tokenriver: interrupted\n")


def test_a_warning_is_one_line_and_quiet_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**_options: object) -> None:
        warnings.warn("slower,\nbecause", stacklevel=1)

    monkeypatch.setattr(cli, "make_app", lambda _only: command)
    filters = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main([]) == 0
    assert capsys.readouterr().err == "tokenriver: warning: slower, because\n"
    monkeypatch.undo()
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"a"}\n')
    words = ["build", str(tmp_path / "a.jsonl"), "--tokenizer", "byte", "--out", str(tmp_path), "--quiet"]
    assert cli.main(words) == 0
    assert capsys.readouterr().err == ""
    assert warnings.filters == filters


LATE = """
import atexit, os, signal, sys, threading
import tokenriver.cli
from tokenriver import __main__ as command
def send(): os.kill(os.getpid(), {signal}); sum(range(1000))
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, {signal})
tokenriver.cli.main = lambda: {code}
code = command.main()
moment = {moment!r}
if moment == "at once": send()
if moment == "at exit": atexit.register(send)
if moment == "last": sys.modules["late"] = Late()
if moment == "while a thread is waited for": threading.Timer(0.05, send).start()
sys.exit(code)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("moment", ["at once", "while a thread is waited for", "at exit", "last"])
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_after_all_is_done_changes_no_exit_code(kind: signal.Signals, code: int, moment: str) -> None:
    script = LATE.format(signal=int(kind), code=code, moment=moment)
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    assert (result.returncode, result.stderr) == (code, "")
