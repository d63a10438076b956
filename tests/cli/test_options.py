"""The command line's names are public: the commands, and every option, stand in docs/cli.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from tokenriver.cli import make_app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = [
    "bpb-audit",
    "build",
    "cache",
    "corpus",
    "download",
    "eval",
    "golf",
    "index",
    "inspect",
    "mix",
    "publish",
    "recipe",
    "tokenizer-file",
    "trace",
    "train-tokenizer",
    "verify",
]


def options_of(name: str) -> set[str]:
    """The long options of a command, or of all commands of a group, as the parser knows them."""
    command = typer.main.get_command(make_app()).commands[name]  # type: ignore[attr-defined]
    commands = [command, *getattr(command, "commands", {}).values()]
    return {word for c in commands for p in c.params for word in p.opts if word.startswith("--")} - {"--help"}


def section(title: str) -> str:
    """A section of the page, and the section on inputs that three commands share."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1] + (section("Inputs") if title in ("build", "corpus", "train-tokenizer") else "")


def test_the_commands_are_those_that_the_page_lists() -> None:
    assert sorted(typer.main.get_command(make_app()).commands) == COMMANDS  # type: ignore[attr-defined]
    assert sorted(re.findall(r"^\| \[`([a-z-]+)`\]", PAGE, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_names_exactly_the_options_of_a_command(name: str) -> None:
    rows = [row.split(" | ")[0] for row in section(name).splitlines() if row.startswith("| `--")]
    documented = set(re.findall(r"`(--[a-z-]+)", "\n".join(rows)))
    assert documented == options_of(name)
