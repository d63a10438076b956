"""Byte-pair ranks as OpenAI publishes them (vocab.bpe + encoder.json, .tiktoken): the reference is `tiktoken`.

Such files hold ranks alone; the pattern that cuts text into words and the special tokens belong to the encoding's
name, and stand here.
"""

from __future__ import annotations

import base64
import tempfile
import threading
from binascii import b2a_base64
from dataclasses import dataclass
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tiktoken

from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.alphabet import BYTE_TO_CHAR, bytes_of_all
from tokenriver.tokenizers.base import Backend, encoder_failure, token_batch
from tokenriver.tokenizers.checked import CheckedTokenizer, FastPath, Vocabulary, with_fast_path
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.marked import MARK
from tokenriver.tokenizers.separator import END_OF_TEXT, choose_separator
from tokenriver.tokenizers.suspects import SuspectFinder
from tokenriver.tokenizers.unicode_suspects import unassigned

if TYPE_CHECKING:
    from tokenriver.batches import TextBatch, TokenBatch

__all__ = [
    "ENCODINGS",
    "Encoding",
    "fetch_ranks",
    "parse_tiktoken_file",
    "parse_vocab_bpe",
    "rank_tokenizer",
    "render_tiktoken",
]

_FETCH_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a ranks file does not hold: the split pattern, the special tokens, gigatoken's name for the pattern."""

    pattern: str
    special: dict[str, int]
    scheme: str


_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
ENCODINGS = {
    "gpt2": Encoding(_GPT2, {END_OF_TEXT: 50256}, "gpt2"),
    "r50k_base": Encoding(_GPT2, {END_OF_TEXT: 50256}, "gpt2"),
    "cl100k_base": Encoding(
        _CL100K,
        {
            END_OF_TEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        "gpt4",
    ),
    "o200k_base": Encoding(_O200K, {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}, "o200k"),
}
"""Encodings by name; the patterns are compared with tiktoken's own in the tests."""


@dataclass(frozen=True, slots=True)
class TiktokenReference:
    """`tiktoken`, with special-token text taken as ordinary text."""

    encoding: tiktoken.Encoding

    @property
    def version(self) -> str:
        """Library and version."""
        return f"tiktoken {version('tiktoken')}"

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:  # noqa: ARG002
        """Ids of every text, one after the other (the library's own batches are a Python list a text)."""
        try:
            ids = [self.encoding.encode_to_numpy(text, disallowed_special=()) for text in batch.texts()]
        except BaseException as error:
            raise encoder_failure(error) from error
        return token_batch(ids)


def parse_tiktoken_file(raw: bytes, *, where: str) -> dict[bytes, int]:
    """Ranks by bytes from lines of "base64 rank"; raises TokenizerError naming the line."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except ValueError:
            raise TokenizerError(f"{where}, line {number}: expected a base64 piece and a rank") from None
    if not ranks:
        raise TokenizerError(f"{where}: no ranks in it")
    missing = [b for b in range(256) if bytes([b]) not in ranks]
    if missing:
        raise TokenizerError(f"{where}: {len(missing)} of the 256 single bytes have no rank")
    return ranks


def render_tiktoken(ranks: dict[bytes, int]) -> bytes:
    """Ranks as the lines of a .tiktoken file."""
    ordered = sorted(ranks, key=ranks.__getitem__)
    return b"".join([b"%b %d\n" % (b2a_base64(piece, newline=False), ranks[piece]) for piece in ordered])


def parse_vocab_bpe(vocab_bpe: bytes, encoder_json: bytes, *, where: str) -> dict[bytes, int]:
    """Ranks by bytes from GPT-2's two files, which must agree: merge k made id 256 + k."""
    try:
        vocab = msgspec.json.decode(encoder_json, type=dict[str, int])
        merges = [line for line in vocab_bpe.decode().split("\n")[1:] if line]
    except (ValueError, msgspec.MsgspecError) as error:
        raise TokenizerError(f"{where}: vocab.bpe or encoder.json cannot be read ({error})") from None
    # Calls of C functions over whole lists: 100,000 lines of Python would take a tenth of a second.
    made = list(map(vocab.get, "\n".join(merges).replace(" ", "").split("\n"))) if merges else []
    spaces = list(map(str.count, merges, repeat(" ")))
    if made != list(range(256, 256 + len(merges))) or spaces.count(1) != len(merges):
        k = next(k for k in range(len(merges)) if spaces[k] != 1 or made[k] != 256 + k)
        raise TokenizerError(
            f"{where}: merge {k} of vocab.bpe ({merges[k]!r}) is not id {256 + k} in encoder.json; "
            "the two files do not belong together"
        )
    vocab.pop(END_OF_TEXT, None)
    ranks = dict(zip(bytes_of_all(list(vocab)), vocab.values(), strict=True))
    if len(ranks) != 256 + len(merges) or any(c not in vocab for c in BYTE_TO_CHAR):
        raise TokenizerError(f"{where}: encoder.json has {len(ranks):,} pieces for {len(merges):,} merges")
    return ranks


def rank_tokenizer(
    ranks: dict[bytes, int],
    encoding: Encoding,
    *,
    where: str,
    tokenizer_id: str,
    sha256: str,
    separator: int | str | None,
    configured: int | str | None,
    backend: Backend,
) -> CheckedTokenizer:
    """Build the tokenizer of ranks. `where` names it in errors and in the fallback warning."""
    special = {text: i for text, i in encoding.special.items() if i not in ranks.values()}
    try:
        reference = TiktokenReference(
            tiktoken.Encoding(tokenizer_id, pat_str=encoding.pattern, mergeable_ranks=ranks, special_tokens=special)
        )
    except BaseException as error:
        raise TokenizerError(f"{where}: the tiktoken library refuses it: {encoder_failure(error)}") from error
    table = [b""] * (1 + max([*ranks.values(), *special.values()]))
    for piece, i in ranks.items():
        table[i] = piece
    by_name = isinstance(separator, str) or isinstance(configured, str)
    ids = {piece.decode(errors="replace"): i for piece, i in ranks.items()} if by_name else {}
    chosen = choose_separator(
        separator,
        ids=ids,
        special=special,
        vocab_size=len(table),
        configured=configured,
        where=where,
    )
    names = {i: text for text, i in special.items()}
    vocabulary = Vocabulary(tokenizer_id, sha256, table, tuple(special), chosen, special_ids=names)
    return with_fast_path(
        vocabulary, reference, lambda: _fast_path(ranks, encoding, mark_id=len(table)), backend=backend, where=where
    )


def _fast_path(ranks: dict[bytes, int], encoding: Encoding, *, mark_id: int) -> FastPath:
    encoder = FastEncoder(lambda: _load_fast(ranks, encoding, mark_id=mark_id), mark_id=mark_id)
    return FastPath(encoder, SuspectFinder(unassigned()), cuts_at_space=True)


def _load_fast(ranks: dict[bytes, int], encoding: Encoding, *, mark_id: int) -> Any:
    """gigatoken reads ranks from a .tiktoken file only, so they are written to one."""
    import gigatoken

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranks.tiktoken"
        path.write_bytes(render_tiktoken(ranks))
        try:
            return gigatoken.Tokenizer.from_tiktoken(path, encoding.scheme, {MARK: mark_id})
        except BaseException as error:
            raise encoder_failure(error) from error


def fetch_ranks(name: str) -> dict[bytes, int]:
    """Ranks of a published encoding, from tiktoken's cache or its download.

    Raises TokenizerError naming the local file to give where that fails or takes longer than a minute: the
    library's download has no time limit of its own.
    """
    found: list[dict[bytes, int]] = []
    failure: list[BaseException] = []

    def fetch() -> None:
        try:
            found.append(tiktoken.get_encoding(name)._mergeable_ranks)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=fetch, name="tiktoken-download", daemon=True)
    thread.start()
    thread.join(_FETCH_SECONDS)
    if found:
        return found[0]
    reason = type(failure[0]).__name__ if failure else f"no answer in {_FETCH_SECONDS} s"
    local = "a folder with vocab.bpe and encoder.json" if name == "gpt2" else f"the path of {name}.tiktoken"
    raise TokenizerError(
        f"{name}: its ranks are not in tiktoken's cache and cannot be downloaded ({reason}); "
        f"give {local}, or set TIKTOKEN_CACHE_DIR to a folder that has them"
    )
