"""Check shards and data sets as they lie on disk, and name everything that is wrong; nothing is raised for a fault.

Files are read once each and in parallel, at about the speed at which one core hashes, times the cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.errors import FormatError, UsageError
from tokenriver.files import file_exists, open_binary, sha256_file
from tokenriver.shards.checks import data_set_problems, id_problem, key_order_problem, shard_problems
from tokenriver.shards.discover import find_data
from tokenriver.shards.found import DataSet, Finding, without_path
from tokenriver.shards.header import ShardHeader, variant_for
from tokenriver.shards.index import index_path
from tokenriver.shards.index_check import IndexCheck
from tokenriver.shards.layouts import BUILD_RECORD, MANIFEST
from tokenriver.shards.manifest import read_limited
from tokenriver.shards.scan import Crew, ShardScan, scan_shard
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from tokenriver.shards.found import Found
    from tokenriver.shards.manifest import ManifestFile
    from tokenriver.shards.record import InputRecord

__all__ = ["Finding", "VerifyReport", "verify"]


@dataclass(slots=True)
class VerifyReport:
    """What was found wrong (nothing: `ok`), and how much was looked at: whole shards, their ids and bytes."""

    findings: list[Finding] = field(default_factory=list)
    files_checked: int = 0
    tokens: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    inputs: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int, int], object] | None = None,
) -> VerifyReport:
    """Check shards, manifests, data sets in any layout, or directories with data sets somewhere below.

    Header, size, id range, SHA-256, documents against separators and indexes, token conservation, the manifest
    against its schema, and files that are missing, additional or unfinished. With `inputs` the recorded inputs are
    hashed again. `workers` is how many files are read at the same time (without it, two a processor).
    `progress(bytes, 0, tokens)` gets the totals so far after each shard and input (and `progress.expect`, where it has
    that, the sum of the bytes first). Every fault becomes a finding in the report, also an unreadable file; only a
    `workers` below 1 raises (UsageError).
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is {workers}; it must be 1 or more")
    given: list[Any] = [paths] if isinstance(paths, str | os.PathLike) or is_remote(paths) else list(paths)
    found = find_data(to_path(p) for p in given)
    report = VerifyReport(findings=list(found.findings))
    tell = _Told(report, progress)
    tell.expect(found, inputs=inputs)
    with Crew(workers) as crew:
        loose = [(path, _submit_scan(crew, path)) for path in found.loose]
        sets = [(d, _submit_set(crew, d)) for d in found.data_sets]
        hashed = [_submit_inputs(crew, d) for d in found.data_sets] if inputs else []
        for path, scan in loose:
            _judge(report, path, scan, None, None)
            tell()
        for data_set, scans in sets:
            _judge_set(report, data_set, scans, tell)
        for futures in hashed:
            for n_bytes, future in futures:
                report.findings += future.result()
                tell(n_bytes)
    return report


class _Told:
    """Says how far a verification is; knows how much there is from what manifests and records say."""

    def __init__(self, report: VerifyReport, progress: Callable[[int, int, int], object] | None) -> None:
        self._report, self._progress, self._inputs = report, progress, 0

    def expect(self, found: Found, *, inputs: bool) -> None:
        expect = getattr(self._progress, "expect", None)
        if expect is None:
            return
        n_bytes = sum(map(_size_here, found.loose))
        for data_set in found.data_sets:
            variant = variant_for(data_set.vocab_size)
            n_bytes += sum(ShardHeader(variant, f.n_tokens, 0).file_bytes for f in data_set.checked_files)
            if inputs and data_set.record is not None:
                n_bytes += sum(given.n_bytes for given in data_set.record.inputs)
        expect(n_bytes)

    def __call__(self, input_bytes: int = 0) -> None:
        self._inputs += input_bytes
        if self._progress is not None:
            self._progress(self._report.bytes + self._inputs, 0, self._report.tokens)


def _size_here(path: Path) -> int:
    """Bytes of a file of this machine; 0 where that cannot be told (a finding later) or would take a request."""
    try:
        return 0 if is_remote(path) else path.stat().st_size
    except OSError:
        return 0


def _submit_scan(
    crew: Crew, path: Path, file: ManifestFile | None = None, data_set: DataSet | None = None
) -> Future[tuple[ShardScan, list[Finding]]]:
    return crew.submit(partial(_scan, crew, path, file, data_set))


def _submit_set(crew: Crew, data_set: DataSet) -> list[Future[tuple[ShardScan, list[Finding]]]]:
    return [_submit_scan(crew, data_set.directory / f.name, f, data_set) for f in data_set.checked_files]


def _scan(
    crew: Crew, path: Path, file: ManifestFile | None, data_set: DataSet | None
) -> tuple[ShardScan, list[Finding]]:
    """One pass over a shard, and what is wrong with the index beside it, if there is one."""
    findings: list[Finding] = []
    separator_id = data_set.separator_id if data_set else None
    index: IndexCheck | None
    try:
        index = IndexCheck(
            path,
            separator_id=separator_id,
            position=data_set.separator_position if data_set else "before",
            n_docs=(file.n_docs, data_set.source.name) if file and data_set and data_set.layout == "tokens" else None,
            recorded=data_set.recorded_index(path) if data_set else None,
        )
    except FileNotFoundError:
        index = None  # none is needed
    except OSError as error:
        index = None
        findings.append(Finding(index_path(path), error.strerror or str(error)))
    vocab_size = data_set.vocab_size if data_set else 0
    scan = scan_shard(path, crew=crew, vocab_size=vocab_size, separator_id=separator_id, index=index)
    if index is not None and index.problem is not None:
        findings.append(Finding(index.path, index.problem))
    return scan, findings


def _judge(
    report: VerifyReport,
    path: Path,
    future: Future[tuple[ShardScan, list[Finding]]],
    file: ManifestFile | None,
    data_set: DataSet | None,
) -> ShardScan | None:
    """Add a shard's faults to the report; its scan, or None when it could not be read to the end."""
    try:
        scan, findings = future.result()
    except FileNotFoundError:
        source = data_set.source.name if data_set else "the directory"
        report.findings.append(Finding(path, f"missing: {source} lists it"))
        return None
    except (FormatError, OSError) as error:
        report.findings.append(Finding(path, without_path(error, path)))
        return None
    report.files_checked += 1
    report.tokens += scan.header.n_tokens
    report.bytes += scan.header.file_bytes
    problems = shard_problems(scan, file, data_set) if file and data_set else id_problem(scan, 0)
    report.findings += [Finding(path, problem) for problem in problems] + findings
    return scan


def _judge_set(
    report: VerifyReport,
    data_set: DataSet,
    scans: list[Future[tuple[ShardScan, list[Finding]]]],
    tell: Callable[[], None],
) -> None:
    judged = []
    for file, scan in zip(data_set.checked_files, scans, strict=True):
        judged.append(_judge(report, data_set.directory / file.name, scan, file, data_set))
        tell()
    if data_set.only is not None:
        return
    report.findings += [Finding(data_set.source, problem) for problem in data_set_problems(data_set)]
    if data_set.layout != "tokens" and data_set.separator_position == "after":
        _judge_total(report, data_set, judged)
    report.findings += _record_findings(data_set)


def _judge_total(report: VerifyReport, data_set: DataSet, scans: list[ShardScan | None]) -> None:
    """With exact cuts and a separator behind each document, documents can be counted over all shards only."""
    counts = [s.separators for s in scans if s is not None and s.separators is not None]
    documents = sum(f.n_docs for f in data_set.files)
    if len(counts) == len(data_set.files) and sum(counts) != documents:
        problem = f"separator {data_set.separator_id} occurs {sum(counts):,} times in {documents:,} documents"
        report.findings.append(Finding(data_set.source, problem))


def _record_findings(data_set: DataSet) -> list[Finding]:
    """The manifest's own form, and the corpus facts beside it, whose hash it or the record holds."""
    findings = []
    try:
        if data_set.manifest is not None:
            findings += [Finding(data_set.source, p) for p in key_order_problem(read_limited(data_set.source))]
        if data_set.corpus_sha256 and file_exists(data_set.corpus_facts):
            findings += _corpus_finding(data_set.corpus_facts, data_set)
    except OSError as error:
        findings.append(Finding(to_path(error.filename or data_set.source), error.strerror or str(error)))
    return findings


def _corpus_finding(path: Path, data_set: DataSet) -> list[Finding]:
    found, expected = sha256_file(path), data_set.corpus_sha256
    if found == expected:
        return []
    source = data_set.source.name
    return [Finding(path, f"sha256 is {found}, {source} says corpus_manifest_sha256 {expected}")]


def _submit_inputs(crew: Crew, data_set: DataSet) -> list[tuple[int, Future[list[Finding]]]]:
    """Hash every input of a data set again, and the manifest of the corpus that they came from; each with its bytes."""
    record = data_set.record
    if record is None:
        missing = Finding(data_set.directory / BUILD_RECORD, "missing, so the inputs are not known")
        return [(0, crew.submit(lambda: [missing]))]
    if not record.inputs:
        none = Finding(data_set.directory / BUILD_RECORD, "records no inputs")
        return [(0, crew.submit(lambda: [none]))]
    work = [(given.n_bytes, crew.submit(partial(_check_input, given))) for given in record.inputs]
    if data_set.corpus_sha256 and not file_exists(data_set.corpus_facts):
        folders = sorted({to_path(given.path).parent for given in record.inputs}, key=str)
        work += [(0, crew.submit(partial(_check_corpus_manifest, folder / MANIFEST, data_set))) for folder in folders]
    return work


def _check_input(given: InputRecord) -> list[Finding]:
    path = Path(given.path)
    if given.path == "-":
        return [Finding(path, "input was standard input, which cannot be read again")]
    try:
        path = to_path(given.path)
        with open_binary(path) as file:
            n_bytes = file.seek(0, os.SEEK_END)
        if n_bytes != given.n_bytes:
            return [Finding(path, f"input changed: {n_bytes:,} bytes, {given.n_bytes:,} when the shards were built")]
        found = sha256_file(path)
    except OSError as error:
        return [Finding(path, f"input: {error.strerror or error}")]
    if found != given.sha256:
        return [Finding(path, f"input changed: sha256 is {found}, was {given.sha256} when the shards were built")]
    return []


def _check_corpus_manifest(path: Path, data_set: DataSet) -> list[Finding]:
    try:
        return _corpus_finding(path, data_set)
    except OSError as error:
        return [Finding(path, f"the corpus's manifest: {error.strerror or error}")]
