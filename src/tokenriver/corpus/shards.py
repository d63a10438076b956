"""Corpus shards: documents written once, with ids and sides, in files that are the same bytes on every run."""

from __future__ import annotations

import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tokenriver.cluster.engines import check_engine, check_rereadable
from tokenriver.corpus.documents import BLOCK_BYTES, find_sources, parse_block, peek_fields, read_blocks
from tokenriver.corpus.manifest import (
    CORPUS_MANIFEST,
    SHARD_NAME,
    CorpusFile,
    CorpusManifest,
    corpus_directory,
    corpus_facts,
    corpus_shard_files,
    is_corpus,
    verify_corpus,
    write_corpus_manifest,
)
from tokenriver.corpus.naming import DocumentNames, sides_of
from tokenriver.corpus.sources import Source, SourceOptions, split_by_file
from tokenriver.corpus.splits import SplitRule, hash_split
from tokenriver.corpus.writers import CORPUS_FORMATS, CorpusFormat, ShardFile, fitting, open_shard_file
from tokenriver.errors import CorpusError, FormatError, UsageError
from tokenriver.files import PART_SUFFIX, file_exists, fsync_directory, sha256_file
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, last_name, to_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.corpus.blocks import DocumentBlock, RawBlock
    from tokenriver.corpus.shards_on_ray import CorpusWritten

__all__ = ["SHARD_BYTES", "CorpusSummary", "corpus_directory", "corpus_facts", "verify_corpus", "write_corpus"]

SHARD_BYTES = 512 * 10**6
"""Text in one corpus shard, in bytes, at most (a longer document stands alone)."""

WORK = "_SEGMENTS"
"""Folder in which a cluster works, while it does."""


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What `write_corpus` did: where, the manifest, bytes of text, and records left out by kind."""

    path: Path
    manifest: CorpusManifest
    text_bytes: int
    skipped: dict[str, int]


def write_corpus(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    format: CorpusFormat = "jsonl.zst",  # noqa: A002
    name: str | None = None,
    version: str = "v1",
    split: str | None = None,
    options: SourceOptions | None = None,
    shard_bytes: int = SHARD_BYTES,
    workers: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    overwrite: bool = False,
    staging: str | os.PathLike[str] | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CorpusSummary:
    """Write the documents of the inputs as corpus shards with their manifest.

    `out`/corpus-00000.jsonl.zst (or .parquet), …, with columns id (the record's own where it is a text or a whole
    number, else "SOURCE:INDEX"), text and split, and `_MANIFEST.json` last. A shard closes before the document that
    would push it past `shard_bytes` of text. The files are a function of (documents, options, library versions),
    never of `workers`, `block_bytes` or the run. `split` in the words of SplitRule: by default column:split where
    the records have that field, else hash:0.01. `engine` "ray" writes the same files on a Ray cluster (`ray_address`,
    else one that is started here). `progress(input_bytes, n_docs)` gets the totals so far as work goes on.

    Raises UsageError for an `out` that holds a finished corpus (unless `overwrite`), CorpusError for inputs that
    give no document; what was there before stays until the new corpus is whole. Behind a URL, where nothing can be
    renamed, it is gone from the first new shard on; each shard is made in `staging` (storage/directory.py) and
    uploaded when it is whole, the manifest last.
    """
    _check_words(format, shard_bytes, workers)
    check_engine(engine, ray_address)
    target = to_path(out)
    if engine == "ray":
        check_rereadable([os.fspath(word) for word in inputs])
    _check_target(target, overwrite)
    options = options or SourceOptions()
    sources = find_sources(inputs, options)
    _check_not_inside(sources, target)
    rule = _choose_rule(split, sources)
    if rule.kind == "first-files":
        sources = split_by_file(sources, rule.count, None)
    options = replace(
        options, id_field=options.id_field or "id", split_field=rule.column if rule.kind == "column" else None
    )
    remote = RemoteDirectory.for_writing(str(target)) if is_remote(target) else None
    folder = target if remote is None else staging_directory(remote.url, staging)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    reading = _Reading(sources)
    threads = workers or os.cpu_count() or 1
    job = _Job(folder, format, sources, shard_bytes, remote=remote)
    try:
        if engine == "ray":
            from tokenriver.cluster.work import work_on
            from tokenriver.corpus.shards_on_ray import write_on_cluster

            with work_on(folder / WORK, address=ray_address, workers=workers, cores=threads) as work:
                how: dict[str, Any] = {"shard_format": format, "shard_bytes": shard_bytes, "block_bytes": block_bytes}
                job.take(write_on_cluster(work, folder, sources, options, rule, progress=progress, **how))
        else:
            with ThreadPoolExecutor(threads, "tokenriver-corpus") as pool:
                raws = read_blocks(sources, options, block_bytes=block_bytes, on_raw=reading.tap)
                for block, sides in _in_order(pool, raws, options, rule, ahead=threads + 1):
                    job.add(block, sides if sides is not None else sides_of(rule, block, job.n_docs))
                    if progress is not None:
                        progress(reading.n_bytes, job.n_docs)
        if name is None:
            name = target.resolve().name if remote is None else last_name(remote.url)
        manifest = job.finish(name, version)
    except BaseException:
        job.discard()
        raise
    finally:
        if (made or remote is not None) and not any(folder.iterdir()):
            folder.rmdir()
    return CorpusSummary(target, manifest, job.text_bytes, dict(job.skipped))


def _check_words(shard_format: str, shard_bytes: int, workers: int | None) -> None:
    if shard_format not in CORPUS_FORMATS:
        raise UsageError(f"corpus format {shard_format!r} is not known; choose one of {', '.join(CORPUS_FORMATS)}")
    if shard_bytes < 1:
        raise UsageError(f"{shard_bytes} bytes a shard: give at least 1")
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers: give at least 1")


def _check_target(target: Path, overwrite: bool) -> None:
    if not is_remote(target) and target.exists() and not target.is_dir():
        raise UsageError(f"{target}: not a directory; name one with --out")
    if not file_exists(target / CORPUS_MANIFEST):
        return
    try:
        ours = is_corpus(target)
    except FormatError:
        ours = overwrite
    if not ours:
        raise UsageError(
            f"{target}: holds another data set ({CORPUS_MANIFEST} is no corpus manifest); choose another --out"
        )
    if not overwrite:
        raise UsageError(f"{target}: holds a finished corpus; give --overwrite to replace it, or another --out")


def _check_not_inside(sources: Sequence[Source], target: Path) -> None:
    for source in sources:
        if source.stream is not None or (source.remote is not None) != is_remote(target):
            continue
        if source.remote is not None:
            inside = source.remote.url.rpartition("/")[0] == str(target).rstrip("/")
        else:
            inside = source.path.resolve().parent == target.resolve()
        if inside and SHARD_NAME.fullmatch(source.file.rpartition("/")[2]):
            raise UsageError(f"{source}: an input inside --out would be replaced by the corpus; choose another --out")


def _choose_rule(words: str | None, sources: Sequence[Source]) -> SplitRule:
    if words is None:
        return SplitRule.parse("column" if "split" in peek_fields(sources) else "hash:0.01")
    rule = SplitRule.parse(words)
    if rule.kind in ("first-tokens", "first-shard"):
        raise UsageError(f"split {words!r} counts tokens, which a corpus has not; give it to build, or choose another")
    return rule


def _in_order(
    pool: ThreadPoolExecutor, raws: Iterator[RawBlock], options: SourceOptions, rule: SplitRule, *, ahead: int
) -> Iterator[tuple[DocumentBlock, NDArray[np.uint8] | None]]:
    """Parse blocks in the pool, a few ahead, and give them back in order."""
    waiting = deque(pool.submit(_parse, raw, options, rule) for raw in islice(raws, ahead))
    while waiting:
        yield waiting.popleft().result()
        raw = next(raws, None)
        if raw is not None:
            waiting.append(pool.submit(_parse, raw, options, rule))


def _parse(raw: RawBlock, options: SourceOptions, rule: SplitRule) -> tuple[DocumentBlock, NDArray[np.uint8] | None]:
    block = parse_block(raw, options)
    return block, hash_split(block.texts, rule.fraction) if rule.kind == "hash" else block.splits


class _Reading:
    """How many bytes of the input files have been read."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.n_bytes = 0

    def tap(self, index: int, chunk: bytes) -> None:
        """Bytes of a file, or its end, which is all that is told of a Parquet file."""
        source = self._sources[index]
        self.n_bytes += len(chunk) if source.kind != "parquet" else source.n_bytes or 0


class _Job:
    """The shards of one corpus while it is written; nothing has its final name before `finish`.

    With `remote`, `target` is the staging directory, and each shard has its final name there once it is whole.
    """

    def __init__(
        self,
        target: Path,
        shard_format: CorpusFormat,
        sources: Sequence[Source],
        shard_bytes: int,
        *,
        remote: RemoteDirectory | None,
    ) -> None:
        self._target = target
        self._remote = remote
        self._format = shard_format
        self._shard_bytes = shard_bytes
        self._file: IO[bytes] | None = None
        self._shard: ShardFile | None = None
        self._shard_docs = self._shard_text = 0
        self._files: list[CorpusFile] = []
        self._names = DocumentNames(sources, Counter())
        self._n_val = 0
        self.skipped: Counter[str] = Counter()
        self.text_bytes = 0
        self.n_docs = 0

    def add(self, block: DocumentBlock, sides: NDArray[np.uint8]) -> None:
        """Append a block's documents, closing shards where they are full."""
        self.skipped.update(block.skipped)
        ids = self._names.of(block)
        begin = 0
        while begin < len(block):
            room = self._shard_bytes - self._shard_text
            end = fitting(block.texts.offsets, begin, room)
            if end == begin and self._shard_docs:
                self._close()
                continue
            end = max(end, begin + 1)  # a document larger than a shard stands alone in one
            part = block.texts.slice(begin, end)
            self._open().add(ids[begin:end], part, sides[begin:end])
            self._shard_docs += end - begin
            self._shard_text += part.data.nbytes
            begin = end
        self.n_docs += len(block)
        self.text_bytes += block.texts.data.nbytes
        self._n_val += int(np.count_nonzero(sides))

    def take(self, written: CorpusWritten) -> None:
        """What a cluster has written, all of it."""
        for file in written.files:
            self._let_go(file)
        self.n_docs, self._n_val = sum(written.documents), written.documents[1]
        self.text_bytes = written.text_bytes
        self.skipped.update(written.skipped)

    def _path(self) -> Path:
        return self._target / f"corpus-{len(self._files):05d}.{self._format}"

    def _open(self) -> ShardFile:
        if self._shard is None:
            path = self._path()
            self._file = open(path.with_name(path.name + PART_SUFFIX), "wb")  # noqa: SIM115
            self._shard = open_shard_file(self._file, self._format)
        return self._shard

    def _close(self) -> None:
        assert self._shard is not None
        assert self._file is not None
        self._shard.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path()
        part = path.with_name(path.name + PART_SUFFIX)
        file = CorpusFile(path.name, self._shard_docs, part.stat().st_size, sha256_file(part))
        self._let_go(file)
        self._shard, self._file = None, None
        self._shard_docs = self._shard_text = 0

    def _let_go(self, file: CorpusFile) -> None:
        """Note a shard whose part is whole, and bring it to the store, if that is where the corpus goes."""
        if self._remote is not None:
            if not self._files:  # from now on the old corpus, if there is one, is not whole any more
                self._remote.remove([CORPUS_MANIFEST])
            part = self._target / (file.name + PART_SUFFIX)
            self._remote.put(part, file.name)
            part.unlink()
        self._files.append(file)

    def finish(self, name: str, version: str) -> CorpusManifest:
        """Close the last shard, put everything in place of what was there, and write the manifest last."""
        if not self.n_docs:
            left_out = ", ".join(f"{kind} {n:,}" for kind, n in sorted(self.skipped.items())) or "no records at all"
            raise CorpusError(f"the inputs give no document ({left_out}); nothing was written")
        if self._shard is not None:
            self._close()
        fresh = {file.name for file in self._files}
        sides = {"train": self.n_docs - self._n_val, "val": self._n_val}
        manifest = CorpusManifest(name, version, self._files, sides)
        if self._remote is not None:
            self._remote.remove(one for one in self._remote.list() if SHARD_NAME.fullmatch(one) and one not in fresh)
            write_corpus_manifest(to_path(self._remote.url_of(CORPUS_MANIFEST)), manifest)
            return manifest
        (self._target / CORPUS_MANIFEST).unlink(missing_ok=True)
        for path in corpus_shard_files(self._target):
            if path.name.removesuffix(PART_SUFFIX) not in fresh:
                path.unlink()
        for file in self._files:
            (self._target / (file.name + PART_SUFFIX)).replace(self._target / file.name)
        fsync_directory(self._target)
        write_corpus_manifest(self._target / CORPUS_MANIFEST, manifest)
        return manifest

    def discard(self) -> None:
        """Remove what is not whole."""
        if self._file is not None:
            self._file.close()
        for path in corpus_shard_files(self._target):
            if path.name.endswith(PART_SUFFIX):
                path.unlink()
        if self._remote is not None:
            with suppress(OSError):  # what stopped the corpus is what the user must hear; no manifest names these
                self._remote.remove(file.name for file in self._files)
