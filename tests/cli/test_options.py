"""The command line's names are public: the commands, and every option, stand in docs/cli.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

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


def commands_of(name: str) -> dict[str, Any]:
    """A command by its full name, or the commands of a group by theirs."""
    command = typer.main.get_command(make_app()).commands[name]  # type: ignore[attr-defined]
    return {f"{name} {sub}": c for sub, c in getattr(command, "commands", {}).items()} or {name: command}


def rows_of(name: str) -> list[tuple[str, str, str, str]]:
    """Every option that the page has a row for: command, option, metavar, default."""
    found, commands = [], commands_of(name)
    for table in re.findall(r"(?:^\|.*\n)+", section(name), re.MULTILINE):
        head, _, *rows = table.splitlines()
        title, second, _ = (cell.strip(" `|") for cell in head.split(" | "))
        assert second == "default"
        command = next((c for c in commands if c == title), [*commands][-1])
        for row in rows:
            cells = row.strip("|").split(" | ")
            options = re.findall(r"`(--[a-z-]+)(?: ([^`]+))?`", cells[0])
            defaults = cells[1].split(", ") if len(options) > 1 else [cells[1]]
            for k, (option, metavar) in enumerate(options):
                default = defaults[min(k, len(defaults) - 1)].strip()
                found.append((command, option, metavar.replace("\\|", "|"), default))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_the_metavars_and_the_defaults_of_the_page(name: str) -> None:
    commands = commands_of(name)
    for command, option, metavar, default in rows_of(name):
        (found,) = (p for p in commands[command].params if option in p.opts)
        where = f"{command} {option}"
        assert (found.metavar or "") == metavar, where
        assert found.required == (default == "required"), where
        literal = default.strip("`")
        if default in ("required", "off", "on", "on in the tokens layout", "none", "all"):
            continue  # a switch, or nothing that stands for something else
        if found.default is None:
            assert "(default: " in found.help, f"{where} does not say that it is {default}"
        elif default == "8 MiB":
            assert found.default == 8 << 20, where
        else:
            assert str(found.default) == literal.replace(",", ""), where


@pytest.mark.parametrize("name", ["", "eval", "golf", "mix"])
def test_lists_of_commands_say_what_each_does_in_one_whole_line(name: str) -> None:
    shown = CliRunner().invoke(make_app(), [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if not re.fullmatch(r"  [a-z-]+  +[A-Z].*[^.]\.", line)] == []
