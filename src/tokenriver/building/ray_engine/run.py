"""A build on a Ray cluster from its lock to its manifest: checked, begun or gone on with, driven, recorded."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenriver.building.assemble import expected_text_bytes
from tokenriver.building.counts import BuildCounts
from tokenriver.building.ray_engine.build_log import BuildLog
from tokenriver.building.ray_engine.driver import Driver
from tokenriver.building.ray_engine.encode_task import EncodeJob, TokenizerWord, load_ahead
from tokenriver.building.ray_engine.shard_task import ShardJob
from tokenriver.cluster.engines import check_rereadable
from tokenriver.cluster.pool import TaskPool
from tokenriver.cluster.session import open_session
from tokenriver.cluster.shared import PARTS
from tokenriver.corpus.inputs import InputFacts, check_known
from tokenriver.corpus.ranges import cut_ranges, range_bytes
from tokenriver.corpus.unchanged import modified_ns
from tokenriver.cpus import available_cpus
from tokenriver.errors import TokenRiverError, UsageError
from tokenriver.resuming.journal import refuse_changes
from tokenriver.resuming.uploads import Uploads
from tokenriver.shards.index import index_path
from tokenriver.storage.paths import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenriver.building.job import Job
    from tokenriver.building.options import BuildOptions
    from tokenriver.building.ray_engine.build_log import Complete
    from tokenriver.building.summary import BuildSummary
    from tokenriver.building.target import Target
    from tokenriver.cluster.session import Session
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.shards.manifest import ManifestFile
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["run_on_ray", "workers_getting_ready"]

_UPLOADS = 4
"""Shards that travel to an object store at the same time."""

_MOST_RANGE = 512 << 20
"""Bytes of text in a range, at most: twelve seconds of one core."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What was written, for the records."""

    files: list[ManifestFile]
    indexes: dict[str, str]
    counts: BuildCounts
    source_documents: Counter[int]


@contextmanager
def workers_getting_ready(tokenizer: str | os.PathLike[str] | Tokenizer, options: BuildOptions) -> Iterator[None]:
    """While the driver loads the tokenizer, the workers of the cluster begin, import, and load theirs."""
    word = str(tokenizer) if is_remote(tokenizer) else tokenizer
    if not isinstance(word, (str, os.PathLike)):
        yield
        return
    words, cpus = (_absolute(os.fspath(word)), options.backend, options.separator), options.workers or available_cpus()
    with (
        open_session(options.ray_address, cpus=cpus, ahead=partial(load_ahead, *words)) as session,
        session.beforehand(load_ahead, *words, most=options.workers),
    ):
        yield


def run_on_ray(job: Job, *, progress: ProgressSink | None) -> BuildSummary:
    """Build on the cluster that the options name. Raises what a local build raises, and ClusterError."""
    word = _check(job)
    with job.target.locked():
        job.clear()
        log = BuildLog.open(job.target)
        if log.range_bytes is not None:
            refuse_changes(msgspec.to_builtins(job.heading()), log.heading, job.target.directory)
        resumed = log.resumed
        try:
            complete = log.complete or _make_shards(job, log, word, progress)
            job.target.remove_segments()
            made = _Made(
                list(log.shards.values()),
                log.indexes,
                BuildCounts.from_json(complete.counts),
                Counter(complete.source_documents),
            )
            _upload(log, job.target)
            record = job.write_records(made, complete.inputs)
        except BaseException as error:
            _abandon(log, error)
            raise
        log.journal.remove()
        job.target.swap()
        if job.target.remote is not None:
            for path in job.target.shards():
                path.unlink()
        job.target.forget_staging()
    return job.summary(made, record, complete.inputs, resumed=resumed)


def _upload(log: BuildLog, target: Target) -> None:
    """Bring the shards from the staging directory, which all nodes must see, to the store; each its index first. Those
    that an earlier run has brought there are left alone.
    """
    if target.store is None:
        return
    there = target.store.list()
    uploads = Uploads(target.store, at_once=_UPLOADS)
    try:
        for name in log.shards:
            path = target.directory / name
            files = [one for one in (index_path(path), path) if one.exists()]
            if name in log.uploaded and all(
                one.name in there and there[one.name].n_bytes == one.stat().st_size for one in files
            ):
                continue
            uploads.put([(one, one.name) for one in files], record=partial(log.upload, name), keep=True)
        uploads.wait()
    finally:
        uploads.close()


def _check(job: Job) -> TokenizerWord:
    """UsageError for what a cluster cannot do; how its tasks get the tokenizer."""
    check_rereadable([source.name for source in job.origin.sources if source.stream is not None])
    tokenizer, options = job.tokenizer, job.options
    if job.word is None:
        try:
            pickle.dumps(tokenizer)
        except Exception as error:
            raise UsageError(
                f"engine ray cannot send this tokenizer to the nodes ({error}); give its name or path instead"
            ) from error
        return TokenizerWord("", options.backend, options.separator, tokenizer.sha256, tokenizer)
    return TokenizerWord(_absolute(job.word), options.backend, options.separator, tokenizer.sha256)


def _absolute(word: str) -> str:
    """The same tokenizer, named from anywhere."""
    file, colon, pattern = word.rpartition(":")
    if Path(word).exists():
        return os.path.abspath(word)  # noqa: PTH100 - a link keeps its name, from which the tokenizer's id follows
    return f"{os.path.abspath(file)}:{pattern}" if colon and Path(file).is_file() else word  # noqa: PTH100


def _make_shards(job: Job, log: BuildLog, word: TokenizerWord, progress: ProgressSink | None) -> Complete:
    options, folder = job.options, job.target.segments
    ahead = partial(import_module, "tokenriver.building.ray_engine.encode_task")
    with open_session(options.ray_address, cpus=options.workers or available_cpus(), ahead=ahead) as session:
        if log.range_bytes is None:
            _begin(job, log, session)
        else:
            log.drop_damaged(job.shape())
        _empty_parts(folder)
        driver = _driver(job, log, word, session, progress)
        try:
            driver.run()
        finally:
            driver.pool.cancel()
        driver.check_parts()
        log.finish(driver.planner.counts, driver.planner.source_documents, _input_facts(log, driver))
    assert log.complete is not None
    return log.complete


def _begin(job: Job, log: BuildLog, session: Session) -> None:
    job.target.remove_segments()
    for path in job.target.shards():  # parts of a local build that finished nothing
        path.unlink()
    size = range_bytes(job.origin.sources, cpus=session.cpus, block_bytes=job.options.block_bytes, most=_MOST_RANGE)
    log.begin(job.heading(), size)


def _empty_parts(folder: Path) -> None:
    """The folder of attempts, without those of an earlier run."""
    parts = folder / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    for path in chain(parts.iterdir(), folder.glob("probe-*")):
        path.unlink(missing_ok=True)


def _driver(job: Job, log: BuildLog, word: TokenizerWord, session: Session, progress: ProgressSink | None) -> Driver:
    options, sources = job.options, job.origin.sources
    folder = job.target.segments.resolve()
    shape = job.shape()
    probe = session.share(folder)
    two_streams = job.rule.kind in ("column", "hash", "first-files")
    encoding = EncodeJob(
        folder=folder,
        probe=probe,
        tokenizer=word,
        reading=job.reading(),
        variant=job.variant,
        separator=job.separator,
        hash_fraction=job.rule.hash_fraction,
        two_streams=two_streams,
        verify_sample=options.verify_sample,
        expected_bytes=expected_text_bytes(sources),
        block_bytes=options.block_bytes,
    )
    assert log.range_bytes is not None
    return Driver(
        log=log,
        pool=TaskPool(session, folder, None if options.ray_address is None else options.workers),
        ranges=list(cut_ranges(sources, encoding.reading, range_bytes=log.range_bytes)),
        sources=sources,
        modified=[modified_ns(source) for source in sources],
        encoding=encoding,
        sharding=ShardJob(folder, probe, shape, two_streams),
        progress=progress,
    )


def _input_facts(log: BuildLog, driver: Driver) -> list[InputFacts]:
    """Facts of all sources that count, in order; raises for a corpus's file that is not what its manifest says."""
    found = {index: one.facts for index, one in log.inputs.items()}
    for facts in log.segments.values():
        found.update(facts.inputs)
    facts_in_order = [found[index] for index in range(driver.n_sources)]
    for source, one in zip(driver.sources, facts_in_order, strict=False):
        check_known(source, one)
    return facts_in_order


def _abandon(log: BuildLog, error: BaseException) -> None:
    """What is finished stays for the next run; a build whose input is bad and that has no shard leaves nothing."""
    log.journal.close()
    ours = isinstance(error, TokenRiverError)
    if log.journal.begun and not log.shards and (ours or not log.segments):
        log.journal.remove()
        log.target.remove_segments()
    log.target.drop_anew()
