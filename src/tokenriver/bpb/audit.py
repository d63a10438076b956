"""One page on a data set's bytes: by ids, by Parameter Golf's tables, by the build's record, by the source text.

It proves or disproves that a reported bits per byte is right, which is what Parameter Golf asks of a new tokenizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenriver.bpb.documents import DocumentCheck, check_documents
from tokenriver.bpb.golf import byte_tables
from tokenriver.bpb.source import ByteCounts, TokenSet, count_bytes, open_token_set
from tokenriver.bpb.tables import TextTable, unknown_ids
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tokenriver.bpb.golf import GolfTable
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["Audit", "Claim", "SplitAudit", "audit"]

TOLERANCE = 1e-4
"""How far a reported bits per byte may be from the computed one, relative: reports have four or five digits."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A reported result: mean `loss` in nats per target, `bpb`, and the sequence length that the targets were cut to.

    `seq_len` None: all targets of the split; else the first ⌊(n − 1) / seq_len⌋ · seq_len (docs/bpb.md).
    """

    loss: float
    bpb: float
    seq_len: int | None = None


@dataclass(frozen=True, slots=True)
class SplitAudit:
    """A split's bytes: by ids, what the build recorded, what the source documents have (None: not known)."""

    counts: ByteCounts
    recorded_bytes: int | None
    source_bytes: int | None
    documents: int | None


@dataclass(slots=True)
class Audit:
    """The findings: `problems` disprove, everything else is figures. `lines()` is the page."""

    directory: str
    tokenizer_id: str
    splits: dict[str, SplitAudit] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing was disproved."""
        return not self.problems

    def lines(self) -> list[str]:
        """The page."""
        page = [f"{self.directory}, tokenizer {self.tokenizer_id}"]
        for split, one in self.splits.items():
            counts = one.counts
            page.append(
                f"{split}: {counts.tokens:,} ids, {counts.text_tokens:,} of text, {counts.separators:,} separators, "
                f"{counts.unknown:,} unknown"
            )
            page.append(f"  bytes by ids (text)      {counts.text_bytes:>15,}")
            page.append(f"  bytes by golf's tables   {counts.golf_bytes:>15,}{_apart(counts.golf_bytes, counts)}")
            for name, value in (("the build's record", one.recorded_bytes), ("the source text", one.source_bytes)):
                if value is not None:
                    page.append(f"  bytes by {name:<19}{value:>12,}{_apart(value, counts)}")
        page += [f"proven: {line}" for line in self.proofs]
        page += [f"disproved: {line}" for line in self.problems]
        if not self.problems and not self.proofs:
            page.append("nothing to prove: give --docs, or --loss and --bpb")
        return page


def _apart(value: int, counts: ByteCounts) -> str:
    if value == counts.text_bytes:
        return "  the same"
    share = f", {value / counts.text_bytes - 1:+.4%}" if counts.text_bytes else ""
    return f"  {value - counts.text_bytes:+,}{share}"


def audit(
    dataset: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer,
    docs: Sequence[str | os.PathLike[str]] = (),
    claim: Claim | None = None,
    claim_split: str = "val",
    progress: ProgressSink | None = None,
) -> Audit:
    """Count a data set's bytes from its ids, compare them with what the build recorded, with the source text where
    `docs` names it, and with a reported result where `claim` gives one.

    Reads every shard once; with `docs` it encodes all documents again, of which `progress` is told. Raises what opening
    a data set raises.
    """
    token_set = open_token_set(dataset, tokenizer)
    result = Audit(str(token_set.directory), tokenizer.tokenizer_id)
    if token_set.tokenizer_sha256 not in (None, tokenizer.sha256):
        result.problems.append(
            f"the data set was built with another tokenizer: sha256 {token_set.tokenizer_sha256}, this one has "
            f"{tokenizer.sha256}"
        )
    text, golf = TextTable.of(tokenizer, separator_id=token_set.separator_id), byte_tables(tokenizer)
    check = check_documents(token_set, docs, tokenizer, progress=progress) if docs else None
    unknown = unknown_ids(tokenizer)
    for split in ("val", "train"):
        if not token_set.splits[split]:
            continue
        counts = count_bytes(token_set, split, text, golf, unknown=unknown, previous=token_set.before(split))
        record = token_set.record.splits.get(split) if token_set.record else None
        is_known = check is not None and check.difference is None
        result.splits[split] = SplitAudit(
            counts,
            None if record is None else record.text_bytes,
            check.source_bytes[split] if check is not None and is_known else None,
            check.documents[split] if check is not None and is_known else None,
        )
    if check is not None:
        _judge_documents(result, check)
    if claim is not None:
        _judge_claim(result, token_set, text, golf, claim, claim_split)
    return result


def _judge_documents(result: Audit, check: DocumentCheck) -> None:
    if check.difference is not None:
        result.problems.append(f"the source text does not give these ids: {check.difference}")
        return
    total = sum(check.documents.values())
    result.proofs.append(f"all {total:,} source documents, encoded again, give exactly the ids in the shards")
    recorded = {name: one.recorded_bytes for name, one in result.splits.items()}
    parts = {"all": (sum(check.source_bytes.values()), _total(recorded))} if check.shared else {}
    if not check.shared:
        parts = {name: (check.source_bytes[name], recorded[name]) for name in recorded}
    for name, (source, of_record) in parts.items():
        if of_record is not None and source != of_record:
            result.problems.append(f"{name}: the record says {of_record:,} bytes of text, the sources have {source:,}")
    for name, one in result.splits.items():
        if one.source_bytes is not None and not check.shared:
            same = one.source_bytes == one.counts.text_bytes
            ratio = one.source_bytes / one.counts.text_bytes if one.counts.text_bytes else math.nan
            result.proofs.append(
                f"{name}: the ids stand for exactly the source's bytes; the tokenizer loses nothing here"
                if same
                else f"{name}: the tokenizer changes the text: bits per byte of source = bits per byte by ids / "
                f"{ratio:.6f}"
            )


def _total(recorded: dict[str, int | None]) -> int | None:
    values = list(recorded.values())
    return None if None in values else sum(v for v in values if v is not None)


def _judge_claim(
    result: Audit, token_set: TokenSet, text: TextTable, golf: GolfTable, claim: Claim, split: str
) -> None:
    """Compare a reported bits per byte with loss / ln 2 · targets / bytes, by golf's bytes and by the source's."""
    if split not in result.splits:
        raise UsageError(f"the data set has no {split} split to compare the reported figure with")
    available = token_set.n_tokens(split) - 1
    targets = available if claim.seq_len is None else available // claim.seq_len * claim.seq_len
    if targets < 1:
        raise UsageError(f"{split} has {available + 1:,} ids, less than one sequence of {claim.seq_len}")
    counts = count_bytes(token_set, split, text, golf, targets=targets)
    sides = [result.splits[side] for side in token_set.counted_with(split)]
    known = [one.recorded_bytes if one.source_bytes is None else one.source_bytes for one in sides]
    source_bytes, by_ids = sum(n or 0 for n in known), sum(one.counts.text_bytes for one in sides)
    candidates = {"golf's tables": float(counts.golf_bytes), "bytes by ids": float(counts.text_bytes)}
    if None not in known and by_ids:
        candidates["source bytes"] = counts.text_bytes * source_bytes / by_ids
    figures = {name: claim.loss / math.log(2) * targets / n for name, n in candidates.items() if n}
    shown = ", ".join(f"{value:.6f} by {name}" for name, value in figures.items())
    matching = [name for name, value in figures.items() if abs(claim.bpb / value - 1) <= TOLERANCE]
    line = f"loss {claim.loss} over {targets:,} targets of {split} is bits per byte {shown}; reported {claim.bpb}"
    if matching:
        result.proofs.append(f"{line} agrees with {' and '.join(matching)}")
    else:
        result.problems.append(line)
