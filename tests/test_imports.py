"""Who may import whom, what loading may cost, and that the public names are sorted and real."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenriver
import tokenriver.errors

SRC = Path(tokenriver.__file__).parent

LAYERS = {
    "errors": -2,
    "storage": -1,
    **dict.fromkeys(["files", "batches", "cpus"], 0),
    **dict.fromkeys(["cache", "cluster", "resuming"], 1),
    **dict.fromkeys(["corpus", "tokenizers", "shards"], 2),
    **dict.fromkeys(["building", "loader", "evals", "bpb", "hub"], 3),
    **dict.fromkeys(["recipes", "llmc", "golf", "golfing", "torch"], 4),
    "cli": 5,
}
"""A module may import its own part and parts of a lower layer. Parts of one layer do not know each other."""

WITHIN_LAYER = {("recipes", "llmc"), ("recipes", "golf"), ("golf", "golfing"), ("golfing", "golf")}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> set[str]:
    """The tokenriver modules that a file imports, also inside functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "tokenriver"}


def modules() -> list[tuple[str, Path]]:
    """Every module below the package with its file, but for the package itself and what runs it."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(["tokenriver", *parts]).removesuffix(".__init__")
        if name not in ("tokenriver", "tokenriver.__main__"):
            found.append((name, path))
    return found


def test_imports_go_one_way() -> None:
    assert len(modules()) > 30
    assert [name for name, _ in modules() if part_of(name) not in LAYERS] == [], "give these a layer"
    wrong = [
        f"{name} imports {other}"
        for name, path in modules()
        for other in imports_of(path)
        if not may_import(part_of(name), part_of(other))
    ]
    assert wrong == []


def may_import(part: str, other: str) -> bool:
    """Whether a part may import another; the package itself (its version) is open to all."""
    return other in ("", part) or (part, other) in WITHIN_LAYER or LAYERS[other] < LAYERS[part]


def test_no_module_is_named_for_nothing() -> None:
    assert [name for name, _ in modules() if name.rsplit(".", 1)[-1] in ("utils", "helpers", "common", "misc")] == []


def loaded_by(code: str) -> set[str]:
    """Top-level packages outside the standard library that a statement loads in a fresh process."""
    script = (
        f"import sys; before = set(sys.modules); {code}; "
        "print(' '.join({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    environment = {"PYTHONPATH": str(SRC.parent), "PATH": ""}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return {name for name in result.stdout.split() if not name.startswith("_")}


def test_importing_the_package_imports_nothing_else() -> None:
    assert loaded_by("import tokenriver") == {"tokenriver"}


@pytest.mark.parametrize(
    "code",
    [
        "import tokenriver.shards.reader",
        "from tokenriver import open_shard, write_shard, Shard",
        "from tokenriver import TrainLoader, Batch",
        "import tokenriver.llmc, tokenriver.golf",
    ],
)
def test_shards_are_read_and_written_with_numpy_alone(code: str) -> None:
    assert loaded_by(code) == {"tokenriver", "numpy"}


def test_verifying_imports_no_tokenizer_and_no_arrow() -> None:
    assert loaded_by("import tokenriver.shards.verify") - {"typing_extensions"} == {"tokenriver", "numpy", "msgspec"}


def test_a_tokenizer_is_loaded_without_what_only_encoding_needs() -> None:
    assert "awkward" not in loaded_by(
        "import tokenriver.tokenizers.ranks, tokenriver.tokenizers.sentencepiece, gigatoken"
    )


def test_public_names_are_sorted_complete_and_there() -> None:
    assert tokenriver.__all__ == sorted(tokenriver.__all__)
    assert set(tokenriver.__all__) == set(tokenriver._HOMES)
    errors = [name for name, kind in vars(tokenriver.errors).items() if isinstance(kind, type)]
    assert len(errors) > 10
    assert set(errors) <= set(tokenriver.__all__), "every error that can be raised can be caught by its public name"
    for name in tokenriver.__all__:
        assert getattr(tokenriver, name) is not None
        assert name in dir(tokenriver)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = tokenriver.absent


def test_every_module_lists_what_it_offers_sorted_and_says_what_it_is() -> None:
    for module in pkgutil.walk_packages([str(SRC)], "tokenriver."):
        if module.ispkg or module.name.endswith(("__main__", ".torch")):
            continue
        path = SRC.parent / Path(*module.name.split(".")).with_suffix(".py")
        assert ast.get_docstring(ast.parse(path.read_bytes())), f"{module.name} has no docstring"
        loaded = importlib.import_module(module.name)
        names = getattr(loaded, "__all__", None)
        assert names is not None, f"{module.name} has no __all__"
        # Constants, then classes, then functions: the order of the linter's RUF022.
        assert all(hasattr(loaded, name) for name in names), module.name
