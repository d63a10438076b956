"""The commands that talk to the Hub: what they print, their exit codes, and that no token is ever shown."""

from __future__ import annotations

import io
import json
import socket
from typing import TYPE_CHECKING

import golf_roots
import pytest
import shard_sets
from local_hub import Fault, LocalHub

from tokenriver.cli import main
from tokenriver.cli.transfers import Transfers

if TYPE_CHECKING:
    from pathlib import Path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, which never hold the token."""
    code = main(list(words))
    captured = capsys.readouterr()
    assert "hf_secret" not in captured.out + captured.err
    return code, captured.out, captured.err


def test_publish_and_download_say_what_they_did(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(shard_sets.make_tokens_set(tmp_path / "made"))
    code, out, _ = run(capsys, "publish", made, "me/tales", "--dry-run")
    assert code == 0
    assert "tokens/toy/tales/train-00000.bin" in out
    assert "tokenriver download me/tales --dataset toy/tales" in out
    assert "would send 6 files" in out
    code, out, _ = run(capsys, "publish", made, "me/tales", "--private")
    assert code == 0
    assert f"published {hub.url}/datasets/me/tales/commit/" in out
    got = str(tmp_path / "got")
    code, out, err = run(capsys, "download", "me/tales", "--out", got, "--shards", "1")
    assert code == 0
    assert out.startswith("2 shards, ")
    assert "3 files fetched, every one checked" in out
    assert err.startswith("fetching: 100 % · 3 files")
    code, out, err = run(capsys, "download", "me/tales", "--out", got, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["fetched"] == 1
    assert run(capsys, "publish", made, "me/tales", "--quiet") == (0, "", "")


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["download", "me/none"], 1, "repository me/none: there is no such data set repository"),
        (["download", "a b"], 2, "'a b' is no repository id"),
        (["download", "me/tales", "--shards", "7"], 2, "--shards is 7, but tokens/toy/tales/ was published with 2"),
        (["download", "me/tales", "--split", "test"], 2, "--split"),
        (["publish", "nowhere", "me/x"], 1, "nowhere"),
        (["golf", "fetch", "--repo-id", "me/tales"], 1, "holds no Parameter Golf export"),
        (["golf", "export", "--tokenizer-config", "x", "--output-root", "y"], 2, "--docs"),
        (["golf", "export", "--docs", "d", "--tokenizer-config", "x", "--output-root", "y", "--reuse-sp-model", "z"],
         2, "expected VOCAB=MODEL"),
        (["golf", "select", "x.jsonl", "--docs", "1", "--seed", "1", "--out", "o"], 1, "x.jsonl"),
        (["golf", "score", "--model", "m", "--val", "v", "--tokenizer", "byte260"], 2, "--model"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_the_right_exit_code(
    hub: LocalHub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shard_sets.make_tokens_set(tmp_path / "made")
    hub.add_folder("me/tales", folder, "tokens/toy/tales/")
    found, _, err = run(capsys, *words)
    assert found == code, err
    assert expected in err
    assert err.count("\n") == 1
    assert err.startswith("tokenriver: ")


@pytest.mark.usefixtures("waits")
def test_golf_commands_name_what_cannot_be_had(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golf_roots.make_root(tmp_path)
    assert run(capsys, "publish", str(tmp_path / "export"), "me/golf")[0] == 0
    root = str(tmp_path / "data")
    code, out, _ = run(capsys, "golf", "fetch", "--repo-id", "me/golf", "--root", root, "--check")
    assert (code, out.splitlines()[-1].endswith("0 cannot be had")) == (0, True)
    name = "datasets/fineweb10B_sp300/fineweb_val_000000.bin"
    hub.vanished.add(f"datasets/{name}")
    code, out, _ = run(capsys, "golf", "fetch", "--repo-id", "me/golf", "--root", root, "--check")
    assert code == 1
    assert out.startswith(f"{name}: ")
    check = ["golf", "fetch", "--repo-id", "me/golf", "--root", root, "--check", "--quiet"]
    assert run(capsys, *check) == (1, out.splitlines(keepends=True)[0], "")
    hub.vanished.clear()
    assert run(capsys, *check) == (0, "", "")
    words = ["golf", "fetch", "--repo-id", "me/golf", "--root", root, "--variant", "sp300", "--train-shards", "1"]
    hub.fail(f"datasets/{name}", *[Fault(flip=1100)] * 2)
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "fineweb_val_000000.bin: the Hub's copy arrived 2 times with sha256" in err
    assert not (tmp_path / "data" / name).exists()
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "fineweb10B_sp300: " in out
    code, out, _ = run(capsys, "download", "me/golf", "--dataset", "fineweb10B_sp300", "--out", str(tmp_path / "set"))
    assert code == 0
    assert main(["verify", str(tmp_path / "set")]) == 0


def test_progress_shows_the_whole_and_each_file() -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock, lines = Clock(), io.StringIO()
    with Transfers(stream=lines, clock=clock) as progress:
        progress("a/one.bin", 10, 100)
        progress("a/two.bin", 50, 100)
        assert lines.getvalue() == "", "at most a line in ten seconds"
        clock.now = 10.0
        progress("a/one.bin", 40, 100)
        progress("a/one.bin", 100, 100)
        progress("a/two.bin", 100, 100)
    assert lines.getvalue().splitlines() == [
        "fetching: 90 B of 200 B begun · one.bin 40 %, two.bin 50 %",
        "fetching: 100 % · 2 files · 200 B · 0.0 MB/s",
    ]
    silent = io.StringIO()
    with Transfers(stream=silent, quiet=True) as progress:
        progress("a", 1, 1)
    assert silent.getvalue() == ""


def test_on_a_terminal_every_file_under_way_has_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    with Transfers(stream=shown, clock=iter(range(1000)).__next__) as progress:
        progress("a/one.bin", 10, 100)
        progress("a/two.bin", 50, 100)
        progress("a/one.bin", 100, 100)
    for word in ("all begun", "two.bin"):
        assert word in shown.getvalue()


def test_publish_draws_no_bars_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shard_sets.make_tokens_set(tmp_path / "made")
    asked: list[str] = []
    monkeypatch.setattr("huggingface_hub.utils.disable_progress_bars", lambda: asked.append("off"))
    assert run(capsys, "publish", str(made), "me/tales", "--dry-run")[0] == 0
    assert asked == ["off"]


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize("command", ["download me/tales", "golf fetch --repo-id me/tales", "recipe hub:me/tales"])
def test_what_the_hubs_client_says_is_a_line_as_of_any_warning_and_quiet_leaves_it_out(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    hub.add("me/tales", {"a.json": b"{}"})
    words = [*command.split(), "--root" if "golf" in command else "--out", str(tmp_path)]
    hub.api_faults.extend([Fault(status=429, headers={"Retry-After": "7"})])
    _, _, err = run(capsys, *words)
    lines = err.splitlines()
    assert [line for line in lines if not line.startswith("tokenriver: ")] == []
    assert [line for line in lines if line.startswith("tokenriver: warning: ") and "trying again in" in line] != []
    hub.api_faults.extend([Fault(status=429, headers={"Retry-After": "7"})])
    _, _, err = run(capsys, *words, "--quiet")
    assert "warning" not in err


@pytest.mark.usefixtures("waits")
@pytest.mark.usefixtures("hub")
def test_no_answer_says_what_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        code, _, err = run(capsys, "download", "me/tales", "--out", str(tmp_path), "--quiet")
    assert code == 1
    assert err.startswith("tokenriver: repository me/tales: no answer from the Hub (")
    assert err.endswith("; look at the network, and at HF_ENDPOINT where it is set, and try again later\n")
    assert err.count("\n") == 1


def test_a_server_that_is_waited_for_is_a_warning_of_one_line(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], waits: list[float]
) -> None:
    made = shard_sets.make_tokens_set(tmp_path / "made")
    hub.add_folder("me/tales", made, "tokens/toy/tales/")
    hub.fail("tokens/toy/tales/train-00000.bin", Fault(status=429, headers={"Retry-After": "7"}), Fault(status=503))
    code, _, err = run(capsys, "download", "me/tales", "--out", str(tmp_path / "got"))
    assert code == 0
    first, second = (line for line in err.splitlines() if "warning" in line)
    assert first.startswith("tokenriver: warning: http://")
    assert first.endswith("HTTP 429; trying again in 8 s")
    assert second.endswith("HTTP 503; trying again in 2 s")
    assert waits == [8.0, 2.0]
