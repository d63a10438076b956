"""The data set card (README.md) of a repository: a section for each data set, written from its manifest.

What stands between a section's marks is ours and is replaced at the next publication; all else is the user's, the
licence above all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenriver.files import human_bytes

__all__ = ["CardFacts", "SideFacts", "render_card"]

_FRONT = """---
# license: yours to say: the licence of the documents, for example odc-by
tags:
- tokenriver
---

# {title}

Token shards made with tokenriver. Every file's SHA-256 stands in the manifest or build record beside it.
"""


@dataclass(frozen=True, slots=True)
class SideFacts:
    """Documents, tokens and shards of one side."""

    documents: int
    tokens: int
    shards: int


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the card says of one data set. `select` is what `--dataset` takes; `golf` the variant of an export."""

    path: str
    select: str
    layout: str
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    separator: int | None
    sides: dict[str, SideFacts]
    n_bytes: int
    example: str
    golf: str | None = None


def render_card(existing: str | None, repo_id: str, facts: list[CardFacts]) -> str:
    """The card with a section for each of `facts`: those of the same data sets replaced, the others kept."""
    card = existing if existing is not None and existing.strip() else _FRONT.format(title=repo_id.rpartition("/")[2])
    for one in facts:
        begin, end = f"<!-- tokenriver: {one.path} -->", f"<!-- end of {one.path} -->"
        section = f"{begin}\n{_section(one, repo_id)}{end}\n"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end) + r"\n?", re.DOTALL)
        if pattern.search(card):
            card = pattern.sub(lambda _: section, card, count=1)  # noqa: B023 (used at once)
        else:
            card = card.rstrip("\n") + "\n\n" + section
    return card


def _section(facts: CardFacts, repo_id: str) -> str:
    separator = "none" if facts.separator is None else f"id {facts.separator} for each document"
    lines = [
        f"## {facts.select}",
        "",
        "| split | documents | tokens | shards |",
        "|---|---|---|---|",
        *(f"| {side} | {n.documents:,} | {n.tokens:,} | {n.shards:,} |" for side, n in facts.sides.items() if n.shards),
        "",
        f"- tokenizer: {facts.tokenizer}, {facts.vocab_size:,} ids, SHA-256 `{facts.tokenizer_sha256}`",
        f"- separator: {separator}",
        f"- layout: {facts.layout}, {human_bytes(facts.n_bytes)}",
        "",
        "```sh",
        _command(facts, repo_id),
        "```",
        "",
        "```python",
        "import tokenriver",
        "",
        f'loader = tokenriver.TrainLoader("data/{facts.example}", seq_len=1024, batch_size=8)',
        "```",
        "",
    ]
    return "\n".join(lines)


def _command(facts: CardFacts, repo_id: str) -> str:
    if facts.golf is not None:
        return f"tokenriver golf fetch --repo-id {repo_id} --variant {facts.golf} --root data"
    return f"tokenriver download {repo_id} --dataset {facts.select} --out data"
