"""Corpus shards: documents written once, with ids and sides, in files that are the same bytes on every run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenriver.cluster.engines import check_engine, check_rereadable
from tokenriver.corpus.blocks import counts_to_record
from tokenriver.corpus.documents import BLOCK_BYTES, find_sources, peek_fields
from tokenriver.corpus.identity import identity_of
from tokenriver.corpus.log import Complete, CorpusLog
from tokenriver.corpus.manifest import SHARD_NAME, CorpusManifest, corpus_directory, corpus_facts, verify_corpus
from tokenriver.corpus.progress import expect_bytes
from tokenriver.corpus.sources import Source, SourceOptions, split_by_file
from tokenriver.corpus.splits import SPLITS, SplitRule
from tokenriver.corpus.target import CorpusTarget
from tokenriver.corpus.writers import CORPUS_FORMATS, CorpusFormat, written_with
from tokenriver.corpus.writing import CorpusWriter, FinishedShards
from tokenriver.cpus import available_cpus
from tokenriver.errors import ClusterError, CorpusError, StorageError, TokenRiverError, UsageError
from tokenriver.storage.paths import is_remote, is_unicode, word_of

if TYPE_CHECKING:
    import os
    from collections import Counter
    from collections.abc import Callable, Sequence
    from pathlib import Path

    _Totals: TypeAlias = tuple[Sequence[int], int, Counter[str]]

__all__ = ["SHARD_BYTES", "CorpusSummary", "corpus_directory", "corpus_facts", "verify_corpus", "write_corpus"]

SHARD_BYTES = 512 * 10**6
"""Text in one corpus shard, in bytes, at most (a longer document stands alone)."""
_UPLOADS = 4
"""Shards of a cluster that travel to an object store at the same time."""


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What `write_corpus` did: where, the manifest, bytes of text, and records left out by kind.

    `resumed`: shards that an interrupted run had finished were kept.
    """

    path: Path
    manifest: CorpusManifest
    text_bytes: int
    skipped: dict[str, int]
    resumed: bool = False


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
    restart: bool = False,
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
    else one that is started here). `progress(input_bytes, n_docs)` gets the totals so far as work goes on
    (and `progress.expect`, where it has that, their sum first).

    Run again after an interruption, it goes on: shards that are finished are kept (none of standard input); `restart`
    begins anew. Raises IntegrityError for an `out` that holds a finished corpus (unless `overwrite`), CorpusError for a
    bad record or inputs that give no document, ResumeError when an unfinished corpus there was made otherwise. What
    was there before stays until the new corpus is whole. Behind a URL each shard is made in `staging`
    (storage/directory.py) and uploaded when it is whole, the manifest last.
    """
    _check_words(format, shard_bytes, workers)
    check_engine(engine, ray_address)
    target = CorpusTarget.at(out, staging=staging)
    if engine == "ray":
        check_rereadable([word_of(word) for word in inputs])
    options = options or SourceOptions()
    sources = find_sources(inputs, options)
    expect_bytes(progress, sources)
    _check_not_inside(sources, target.where)
    rule = _choose_rule(split, sources)
    if rule.kind == "first-files":
        sources = split_by_file(sources, rule.count, None)
    options = replace(
        options, id_field=options.id_field or "id", split_field=rule.column if rule.kind == "column" else None
    )
    how = _How(target, sources, options, rule, format, shard_bytes, block_bytes, workers or available_cpus())
    for word, value in (("name", name or target.name), ("version", version)):
        if not is_unicode(value):
            raise UsageError(f"{value!r} is not UTF-8, so it cannot be the corpus's {word}; give one with --{word}")
    heading = how.heading(name or target.name, version, engine)
    with target.locked():
        log = CorpusLog(target.journal, anew=restart or how.reads_stdin)
        try:
            done = _end(target, log, heading)
            if done is not None:
                return CorpusSummary(target.where, done.manifest, done.text_bytes, done.skipped, True)
            resumed = _take_up(target, log, heading, overwrite=overwrite)
            done = _write(how, log, (name or target.name, version), engine, ray_address, workers, progress)
        finally:
            log.close()
    return CorpusSummary(target.where, done.manifest, done.text_bytes, done.skipped, resumed)


@dataclass(frozen=True, slots=True)
class _How:
    """A corpus to be written, decided before the first document is read."""

    target: CorpusTarget
    sources: Sequence[Source]
    options: SourceOptions
    rule: SplitRule
    format: CorpusFormat
    shard_bytes: int
    block_bytes: int
    threads: int

    @property
    def reads_stdin(self) -> bool:
        return any(source.stream is not None for source in self.sources)

    def heading(self, name: str, version: str, engine: str) -> dict[str, Any]:
        """What an unfinished corpus must have in common with this one to be gone on with."""
        reading = {key: value for key, value in asdict(self.options).items() if key != "on_bad_record"}
        return {
            "corpus": name,
            "version": version,
            "engine": engine,
            "format": self.format,
            "written_with": written_with(self.format),
            "split": str(self.rule),
            "shard_bytes": self.shard_bytes,
            **reading,
            "inputs": [identity_of(source) for source in self.sources],
        }


def _end(target: CorpusTarget, log: CorpusLog, heading: dict[str, Any]) -> Complete | None:
    """Put a corpus in place whose shards were all there when its run was killed; what it is, if it is this very one."""
    done = log.complete
    if done is None or target.finished_elsewhere(done.manifest):
        return None
    target.abort_uploads()
    target.publish(done.manifest)
    asked_for = log.is_of(heading)
    log.remove()
    return done if asked_for else None


def _take_up(target: CorpusTarget, log: CorpusLog, heading: dict[str, Any], *, overwrite: bool) -> bool:
    """Whether to go on with what the journal says; else room is made and the journal begun."""
    finished = target.is_finished(overwrite=overwrite)
    if log.holds_work:
        if log.is_of(heading) and (not finished or target.remote is None or target.replacing):
            target.abort_uploads()
            target.require_whole(log.files.values())
            target.keep_only(log.files)
            return True
        if not overwrite:
            log.refuse_others(heading, target.where)
    target.begin(finished=finished)
    log.begin(heading)
    return False


def _write(
    how: _How,
    log: CorpusLog,
    called: tuple[str, str],
    engine: str,
    ray_address: str | None,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Complete:
    """Write the shards that are missing and put all in place. Finished ones stay for the next run, unless the inputs
    are bad: then nothing does.
    """
    finished = FinishedShards(how.target, log, at_once=1 if engine == "local" else _UPLOADS)
    try:
        if engine == "ray":
            documents, text_bytes, skipped = _on_cluster(how, log, finished, ray_address, workers, progress)
        else:
            writer = CorpusWriter(how.target, log, finished, how.sources, how.format, how.shard_bytes)
            writer.write(how.options, how.rule, threads=how.threads, block_bytes=how.block_bytes, progress=progress)
            documents, text_bytes, skipped = writer.documents, writer.text_bytes, writer.skipped
        finished.wait()
        if not sum(documents):
            left_out = ", ".join(f"{kind} {n:,}" for kind, n in sorted(skipped.items())) or "no records at all"
            raise CorpusError(f"the inputs give no document ({left_out}); nothing was written")
        sides = dict(zip(SPLITS, documents, strict=True))
        files = [log.files[one] for one in sorted(log.files)]
        manifest = CorpusManifest(*called, files, sides, counts_to_record(skipped))
        done = Complete(manifest, text_bytes, dict(skipped))
        log.finish(done)
    except BaseException as error:
        finished.close()
        bad = isinstance(error, TokenRiverError) and not isinstance(error, (StorageError, ClusterError))
        if bad or how.reads_stdin or not log.files:
            how.target.discard(log.files.values())
            log.remove()
        raise
    how.target.publish(done.manifest)
    log.remove()
    return done


def _on_cluster(
    how: _How,
    log: CorpusLog,
    finished: FinishedShards,
    address: str | None,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> _Totals:
    from tokenriver.cluster.work import work_on
    from tokenriver.corpus.shards_on_ray import write_on_cluster

    module = write_on_cluster.__module__
    with work_on(how.target.work, address=address, workers=workers, cores=how.threads, module=module) as work:
        written = write_on_cluster(
            work,
            how.target.folder,
            how.sources,
            how.options,
            how.rule,
            shard_format=how.format,
            shard_bytes=how.shard_bytes,
            block_bytes=how.block_bytes,
            finished={name: (file, log.n_val[name]) for name, file in log.files.items()},
            on_shard=lambda file, n_val: finished.add(file, n_val=n_val),
            progress=progress,
        )
    return written.documents, written.text_bytes, written.skipped


def _check_words(shard_format: str, shard_bytes: int, workers: int | None) -> None:
    if shard_format not in CORPUS_FORMATS:
        raise UsageError(f"corpus format {shard_format!r} is not known; choose one of {', '.join(CORPUS_FORMATS)}")
    if shard_bytes < 1:
        raise UsageError(f"{shard_bytes} bytes a shard: give at least 1")
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers: give at least 1")


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
