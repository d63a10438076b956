"""What identifies the data of a split in a saved state: one line of named parts, so that a refusal says what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from tokenriver.errors import ResumeError

__all__ = ["Fingerprint"]

_MEANING = {
    "tokenizer": "the tokenizer",
    "shards": "the number of shards",
    "tokens": "the number of tokens",
    "names": "the shards' names or their order",
    "headers": "the shards' sizes, widths or vocabulary",
    "content": "the shards' content",
    "manifest": "the manifest",
}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests and counts of a split; as text `tokenizer=…;shards=…;…`, under 300 characters."""

    tokenizer: str
    shards: int
    tokens: int
    names: str
    headers: str
    content: str
    manifest: str

    def __str__(self) -> str:
        return ";".join(f"{name}={value}" for name, value in asdict(self).items())

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Read what `str` wrote; ResumeError for anything else."""
        parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
        names = [field.name for field in fields(cls)]
        if sorted(parts) != sorted(names) or not parts["shards"].isdigit() or not parts["tokens"].isdigit():
            raise ResumeError(f"the saved state's fingerprint is not one: {text[:100]!r}")
        return cls(
            parts["tokenizer"],
            int(parts["shards"]),
            int(parts["tokens"]),
            parts["names"],
            parts["headers"],
            parts["content"],
            parts["manifest"],
        )

    @property
    def digests(self) -> dict[str, str]:
        """Of the content, by what they are of: "sample", "sha256", or both."""
        return {kind: digest for kind, _, digest in (part.partition(":") for part in self.content.split(","))}

    def differences(self, saved: Fingerprint) -> list[str]:
        """What changed since `saved`, in words; empty when nothing did.

        Content known by sha256 alone on one side and by samples alone on the other is not compared: the rest decides.
        """
        found = []
        for name, meaning in _MEANING.items():
            old, new = getattr(saved, name), getattr(self, name)
            if name == "content" and all(
                saved.digests.get(kind, known) == known for kind, known in self.digests.items()
            ):
                continue
            if old != new:
                found.append(f"{meaning} ({old} → {new})")
        return found
