"""Choose and shuffle documents once and for all: `docs_selected.jsonl` and its sidecar, out of core.

Document i of the inputs has a key, a bijection of (seed, i); the documents with the N smallest keys are chosen, in
the order of their keys. So the choice depends on the documents' order and the seed alone. The texts are read twice
(to count, then to choose) and once sorted on disk, so memory does not grow with them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.building.pipeline import default_workers, in_order, read_ahead
from tokenriver.corpus.documents import SourceOptions, find_sources, parse_block, read_blocks
from tokenriver.corpus.inputs import InputFacts, InputHasher
from tokenriver.corpus.splits import mix64
from tokenriver.errors import IntegrityError, UsageError
from tokenriver.files import atomic_write, file_exists, remove_file
from tokenriver.golfing.documents import DEFAULT_VAL_DOCS
from tokenriver.shards.golf_manifest import GOLF_DOCS, GOLF_SIDECAR
from tokenriver.shards.manifest import render_json
from tokenriver.storage.directory import staging_directory
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.corpus.documents import RawBlock, Source

__all__ = ["GolfSelected", "document_keys", "select_golf", "threshold_key"]

_GAMMA = 0x9E3779B97F4A7C15
"""splitmix64's step, odd: seed + (i + 1) · gamma differs for every i below 2^64."""

_KEYS_AT_ONCE = 1 << 22
_BUCKET_BYTES = 64 << 20
_MOST_BUCKETS = 400
"""Files open at the same time while the chosen documents are dealt out; each is then sorted in memory."""

_BLOCK_BYTES = 8 << 20
_BUCKETS = ".buckets"
_HEAD = np.dtype([("key", "<u8"), ("n_bytes", "<u8")])


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfSelected:
    """What was chosen. `skipped` counts records that gave no document, by kind; sizes are bytes."""

    docs: Path
    sidecar: Path
    num_docs: int
    docs_val: int
    docs_sha256: str
    docs_bytes: int
    documents_read: int
    skipped: dict[str, int] = field(default_factory=dict)


def document_keys(seed: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Keys of the documents [start, stop): uint64, no two alike for one seed."""
    origin = int(mix64(np.array([seed % 2**64], np.uint64))[0])
    steps = np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return mix64(steps + np.uint64(origin))


def threshold_key(seed: int, n: int, n_documents: int) -> int:
    """The n-th smallest key of all documents, in memory that does not depend on their number: counted by the
    keys' first 16 bits, then sorted where it must lie.
    """
    counts = np.zeros(1 << 16, np.int64)
    for keys in _all_keys(seed, n_documents):
        counts += np.bincount((keys >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
    bin_of_nth = int(np.searchsorted(np.cumsum(counts), n))
    before = int(counts[:bin_of_nth].sum())
    near = [keys[(keys >> np.uint64(48)) == bin_of_nth] for keys in _all_keys(seed, n_documents)]
    return int(np.sort(np.concatenate(near))[n - before - 1])


def _all_keys(seed: int, n_documents: int) -> Iterator[NDArray[np.uint64]]:
    for start in range(0, n_documents, _KEYS_AT_ONCE):
        yield document_keys(seed, start, min(start + _KEYS_AT_ONCE, n_documents))


def select_golf(
    inputs: Sequence[str | os.PathLike[str]] | str,
    *,
    docs: int,
    seed: int,
    out: str | os.PathLike[str],
    docs_val: int | None = None,
    text_field: str = "text",
    on_bad_record: str = "error",
    workers: int | None = None,
    overwrite: bool = False,
    block_bytes: int = _BLOCK_BYTES,
    bucket_bytes: int = _BUCKET_BYTES,
    progress: Callable[[int], None] | None = None,
) -> GolfSelected:
    """Choose `docs` documents of the inputs by `seed` into `out`; the same files for any workers and block sizes.

    `docs_val` (None: 50,000, or a tenth where fewer than 500,000 are chosen) is written into the sidecar: so many
    documents at the front are val. `progress` is told input bytes read, of twice their size in all. Raises UsageError
    when there are fewer documents, CorpusError for a bad record, IntegrityError when a selection is there already.
    """
    if docs < 1:
        raise UsageError(f"--docs is {docs}; it must be 1 or more")
    n_val = min(DEFAULT_VAL_DOCS, docs // 10) if docs_val is None else docs_val
    if not 0 <= n_val <= docs:
        raise UsageError(f"--docs-val is {n_val}; it must be from 0 to --docs, {docs}")
    options = SourceOptions(text_field=text_field, on_bad_record=on_bad_record)  # type: ignore[arg-type]
    sources = find_sources([inputs] if isinstance(inputs, str) else inputs, options)
    if any(source.stream is not None for source in sources):
        raise UsageError("the inputs are read twice, so standard input (-) cannot be one of them; give a file")
    folder = to_path(out)
    if file_exists(folder / GOLF_SIDECAR) and not overwrite:
        raise IntegrityError(f"{folder}: holds a selection already ({GOLF_SIDECAR}); --overwrite replaces it")
    reader = _Reader(sources, options, workers or default_workers(), block_bytes, progress)
    counts, facts = reader.count()
    n_documents = sum(counts)
    if docs > n_documents:
        raise UsageError(f"--docs is {docs:,}, but the inputs hold {n_documents:,} documents")
    room = staging_directory(str(folder)) if is_remote(folder) else folder
    room.mkdir(parents=True, exist_ok=True)
    remove_file(folder / GOLF_SIDECAR)
    chosen_bytes = sum(s.n_bytes or 0 for s in sources) * docs // n_documents
    n_buckets = min(_MOST_BUCKETS, chosen_bytes // bucket_bytes + 1)
    with _buckets(room, n_buckets) as buckets:
        reader.deal_out(counts, seed, threshold_key(seed, docs, n_documents), buckets)
        sha256, n_bytes, n_written = _join(buckets, folder / GOLF_DOCS)
    if n_written != docs:
        raise IntegrityError(f"{folder / GOLF_DOCS}: {n_written:,} documents instead of {docs:,}: the inputs changed")
    if room is not folder and not any(room.iterdir()):
        room.rmdir()
    sidecar = {
        "num_docs": docs,
        "docs_val": n_val,
        "docs_train": docs - n_val,
        "docs_bytes": n_bytes,
        "docs_sha256": sha256,
        "shuffle_seed": seed,
        "sources": reader.described(facts),
    }
    with atomic_write(folder / GOLF_SIDECAR) as file:
        file.write(render_json(sidecar))
    return GolfSelected(
        docs=folder / GOLF_DOCS,
        sidecar=folder / GOLF_SIDECAR,
        num_docs=docs,
        docs_val=n_val,
        docs_sha256=sha256,
        docs_bytes=n_bytes,
        documents_read=n_documents,
        skipped=dict(sorted(reader.skipped.items())),
    )


@contextmanager
def _buckets(folder: Path, n: int) -> Iterator[list[Path]]:
    """Paths of files to sort through, in a hidden folder that is gone afterwards, whatever happens."""
    buckets = folder / _BUCKETS
    shutil.rmtree(buckets, ignore_errors=True)  # of a run that was killed
    buckets.mkdir()
    try:
        yield [buckets / f"{i:04d}" for i in range(n)]
    finally:
        shutil.rmtree(buckets)


class _Reader:
    """Reads the inputs twice in the same blocks, with as many parsing threads as workers."""

    def __init__(
        self,
        sources: list[Source],
        options: SourceOptions,
        workers: int,
        block_bytes: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._sources = sources
        self._options = options
        self._workers = workers
        self._block_bytes = block_bytes
        self._progress = progress
        self._read = 0
        self.by_source: Counter[int] = Counter()
        self.skipped: Counter[str] = Counter()

    def count(self) -> tuple[list[int], list[InputFacts]]:
        """Documents in each block, and size and hash of each source."""
        with InputHasher(self._sources) as hasher:

            def tap(index: int, chunk: bytes) -> None:
                hasher.tap(index, chunk)
                self._tell(index, chunk)

            counts = []
            for block in self._parsed(lambda raw: self._facts(raw), self._blocks(tap)):
                by_source, skipped = block
                counts.append(sum(by_source.values()))
                self.by_source.update(by_source)
                self.skipped.update(skipped)
            return counts, hasher.finish()

    def described(self, facts: list[InputFacts]) -> list[dict[str, Any]]:
        """The sources as the sidecar lists them, by name: no folders of this machine."""
        return [
            {"name": source.name, "documents": self.by_source[i], "n_bytes": one.n_bytes, "sha256": one.sha256}
            for i, (source, one) in enumerate(zip(self._sources, facts, strict=True))
        ]

    def deal_out(self, counts: list[int], seed: int, limit: int, paths: list[Path]) -> None:
        """Write the chosen documents into buckets by their keys."""
        starts = [0, *accumulate(counts)]

        def choose(item: tuple[int, RawBlock]) -> tuple[NDArray[Any], list[bytes]]:
            number, raw = item
            texts = parse_block(raw, self._options).texts
            if number >= len(counts) or len(texts) != counts[number]:
                raise IntegrityError(f"{raw.segments[0].source}: it changed between the two readings; start again")
            keys = document_keys(seed, starts[number], starts[number + 1])
            chosen = np.flatnonzero(keys <= np.uint64(limit))
            lines = [msgspec.json.encode({"text": texts[i].decode()}) + b"\n" for i in chosen.tolist()]
            heads = np.empty(len(chosen), _HEAD)
            heads["key"], heads["n_bytes"] = keys[chosen], [len(line) for line in lines]
            return heads, lines

        with ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            width = limit // len(paths) + 1
            for heads, lines in self._parsed(choose, enumerate(self._blocks(self._tell))):
                _deal(files, width, heads, lines)

    def _blocks(self, tap: Callable[[int, bytes], None]) -> Iterator[RawBlock]:
        return read_blocks(self._sources, self._options, block_bytes=self._block_bytes, on_raw=tap)

    def _parsed(self, function: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        budget = (self._workers + 2) * max(self._block_bytes, _BLOCK_BYTES)
        ahead = read_ahead(items, depth=1)
        return in_order(lambda box: function(box.pop()), ahead, workers=self._workers, weight=_weight, budget=budget)

    def _facts(self, raw: RawBlock) -> tuple[Counter[int], Counter[str]]:
        block = parse_block(raw, self._options)
        found, n = np.unique(block.source_indices, return_counts=True)
        return Counter(dict(zip(found.tolist(), n.tolist(), strict=True))), block.skipped

    def _tell(self, _index: int, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._progress is not None:
            self._progress(self._read)


def _weight(item: Any) -> int:
    raw: RawBlock = item[1] if isinstance(item, tuple) else item
    return raw.n_bytes


def _deal(files: Sequence[IO[bytes]], width: int, heads: NDArray[Any], lines: list[bytes]) -> None:
    for bucket in np.unique(heads["key"] // np.uint64(width)).tolist():
        for i in np.flatnonzero(heads["key"] // np.uint64(width) == bucket).tolist():
            files[bucket].write(heads[i].tobytes() + lines[i])


def _join(buckets: list[Path], target: Path) -> tuple[str, int, int]:
    """Sort each bucket and write them one after another; SHA-256, bytes and documents of the whole."""
    digest, n_bytes, n_documents = hashlib.sha256(), 0, 0
    with atomic_write(target) as out:
        for path in buckets:
            raw = path.read_bytes()
            path.unlink()
            heads, starts, at = [], [], 0
            while at < len(raw):
                head = np.frombuffer(raw, _HEAD, 1, at)[0]
                heads.append(int(head["key"]))
                starts.append(at)
                at += _HEAD.itemsize + int(head["n_bytes"])
            spans = list(pairwise([*starts, len(raw)]))
            for i in np.argsort(np.array(heads, np.uint64), kind="stable").tolist():
                line = raw[spans[i][0] + _HEAD.itemsize : spans[i][1]]
                out.write(line)
                digest.update(line)
                n_bytes += len(line)
            n_documents += len(heads)
    return digest.hexdigest(), n_bytes, n_documents
