"""`tokenriver inspect`: look into a shard: header, counts, and its text with the borders of tokens shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.summaries import plural
from tokenriver.errors import UsageError
from tokenriver.files import human_bytes
from tokenriver.storage.paths import is_remote, shown, to_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.shards.documents import Separator
    from tokenriver.shards.reader import Shard

__all__ = ["inspect_command"]

SHOWN_TOKENS = 256
"""How much is shown when neither a document nor a range is asked for."""


@dataclass(frozen=True, slots=True)
class _Excerpt:
    """The part to show: tokens [start, stop) and what to call it."""

    start: int
    stop: int
    title: str


def _refuse_directory(word: str) -> None:
    """UsageError for a directory, naming a shard of it."""
    path = to_path(word)
    if is_remote(path) or not path.is_dir():
        return
    first = min((found.name for found in path.glob("*.bin")), default=None)
    advice = "" if first is None else f"; give one of its shards, such as {first}"
    raise UsageError(f"{path}: a directory, where inspect looks into one shard{advice}")


def inspect_command(
    shard: Annotated[str, typer.Argument(metavar="SHARD", help="A .bin file, or its URL.", show_default=False)],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", metavar="T", help="Decode with this tokenizer (a name, file or folder, as in build)."
        ),
    ] = None,
    document: Annotated[
        int | None,
        typer.Option("--document", metavar="K", min=0, help="Show document K, counted from 0 in this shard."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="A:B",
            help="Show tokens A to B - 1; both ends can be left out (default: the first 256).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything for programs.")] = False,
) -> None:
    """Show a shard's header, counts and ids. With a tokenizer its text, with the borders of tokens."""
    from tokenriver.shards.documents import count_documents, known_separator, known_tokenizer
    from tokenriver.shards.header import ShardHeader
    from tokenriver.shards.reader import open_shard

    if document is not None and tokens is not None:
        raise UsageError("--document and --tokens both choose what to show; give one of them")
    _refuse_directory(shard)
    # Unchecked: a damaged shard is what one most wants to look into; verify is there to judge.
    opened = open_shard(shard, check=False)
    coder = None
    if tokenizer is not None:
        from tokenriver.cli.decoding import load_decoder

        coder = load_decoder(tokenizer, made_with=known_tokenizer(opened.path), what=shown(opened.path))
    separator = known_separator(opened.path, coder)
    documents = None if separator is None else count_documents(opened.ids, separator)
    excerpt = _choose(opened, separator, document=document, tokens=tokens)
    ids = opened.ids[excerpt.start : excerpt.stop]
    facts = {
        "path": shown(opened.path),
        "variant": opened.variant,
        "bytes": ShardHeader(opened.variant, opened.n_tokens).file_bytes,
        "n_tokens": opened.n_tokens,
        "vocab_size": opened.vocab_size,
        "separator_id": separator.id if separator else None,
        "documents": documents,
    }
    if as_json:
        excerpt_facts: dict[str, Any] = {"start": excerpt.start, "stop": excerpt.stop, "ids": ids.tolist()}
        if coder is not None:
            excerpt_facts["text"] = coder.decode(ids)
        print(json.dumps({**facts, "tokens": excerpt_facts}, indent=2, ensure_ascii=False))
        return
    _print_facts(facts)
    if ids.size:
        print(f"{excerpt.title}:")
        _print_ids(ids, None if coder is None else coder.token_bytes_table())


def _choose(shard: Shard, separator: Separator | None, *, document: int | None, tokens: str | None) -> _Excerpt:
    """The tokens that the options ask for. Raises UsageError for what the shard does not have."""
    from tokenriver.shards.documents import document_bounds

    if document is not None:
        if separator is None:
            raise UsageError("--document needs to know the separator: give --tokenizer, or keep the manifest beside")
        start, stop = document_bounds(shard.ids, separator, document)
        return _Excerpt(start, stop, f"document {document}, tokens {start}:{stop}")
    start, stop = parse_range(tokens, shard.n_tokens) if tokens else (0, min(SHOWN_TOKENS, shard.n_tokens))
    return _Excerpt(start, stop, f"tokens {start}:{stop}")


def parse_range(text: str, n_tokens: int) -> tuple[int, int]:
    """'A:B' as a half-open range within [0, n_tokens], with Python's rules for ends left out, negative or too large."""
    first, colon, last = text.partition(":")
    try:
        bounds = slice(int(first) if first else None, int(last) if last else None)
    except ValueError as error:
        raise UsageError(f"--tokens {text!r}: expected A:B with whole numbers, such as 0:100") from error
    if not colon:
        raise UsageError(f"--tokens {text!r}: expected A:B with a colon, such as 0:100")
    start, stop, _ = bounds.indices(n_tokens)
    if start >= stop:
        raise UsageError(f"--tokens {text!r} holds no token; the shard has {n_tokens:,}")
    return start, stop


def _print_facts(facts: dict[str, Any]) -> None:
    vocabulary = f"{facts['vocab_size']:,}" if facts["vocab_size"] else "not recorded"
    print(facts["path"])
    print(f"  {facts['variant']} · {human_bytes(facts['bytes'])} · vocabulary {vocabulary}")
    line = f"  {plural(facts['n_tokens'], 'token')}"
    if facts["documents"] is not None:
        line += f" · {plural(facts['documents'], 'document')} (separator {facts['separator_id']})"
    print(line)


def _print_ids(ids: NDArray[Any], table: list[bytes] | None) -> None:
    """Print ids, or their text: in two alternating colours on a terminal, else with a bar between tokens."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if table is None:
        console.print(Text(" ".join(map(str, ids.tolist()))))
        return
    pieces = token_texts(ids.tolist(), table)
    if console.is_terminal and not console.no_color:
        styles = ("black on bright_cyan", "black on bright_yellow")
        line = Text()
        for i, piece in enumerate(pieces):
            line.append(piece, style=styles[i % 2])
        console.print(line)
    else:
        print("|".join(pieces))


def token_texts(ids: list[int], table: list[bytes]) -> list[str]:
    """The text of each id, for people: bytes of an unfinished character as \\xNN, control characters escaped.

    A control id (no bytes), or one that the tokenizer does not have, is shown as <id>. Line ends stay.
    """
    return [_readable(table[i]) if i < len(table) and table[i] else f"<{i}>" for i in ids]


def _readable(raw: bytes) -> str:
    # Escape sequences in a document must not reach the terminal.
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
