"""`tokenriver.build`: one call from documents to a finished data set."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from tokenriver.building.choices import (
    data_set_name,
    find_origin,
)
from tokenriver.building.job import Job
from tokenriver.building.options import BuildOptions, BuildWords
from tokenriver.building.passes import run_jobs
from tokenriver.corpus.progress import expect_bytes
from tokenriver.errors import UsageError
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.building.passes import Supply
    from tokenriver.building.records import Origin
    from tokenriver.building.summary import BuildSummary
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["build", "build_together"]


def build(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    out: str | os.PathLike[str],
    progress: ProgressSink | None = None,
    **options: Unpack[BuildWords],
) -> BuildSummary:
    """Turn documents into token shards with their manifest, and return what was made.

    `inputs` are files, directories, globs, a corpus directory, URLs of such or "-"; `tokenizer` what `load_tokenizer`
    takes, or a loaded tokenizer; `out` the artifacts root (layout "tokens") or the folder of the shards ("llmc",
    "golf"), or its URL. The other words are those of BuildOptions. Run again after an interruption, it goes on where
    it stopped.

    Raises UsageError for words that cannot work, CorpusError for bad documents, TokenizerError for an encoder that
    differs from its reference, IntegrityError when a finished data set is in the way, ResumeError when an unfinished
    one was made otherwise, ClusterError for a cluster, or a process that encodes for the build, that fails.
    """
    words: list[Any] = [inputs] if isinstance(inputs, (str, os.PathLike)) or is_remote(inputs) else list(inputs)
    chosen = BuildOptions.from_words(options)
    origin, dataset = find_origin(words), data_set_name(words, chosen)
    expect_bytes(progress, origin.sources)
    prepare = partial(Job.prepare, origin, tokenizer, to_path(out), chosen, dataset=dataset)
    if chosen.engine == "ray":
        from tokenriver.building.ray_engine.run import run_on_ray, workers_getting_ready

        with workers_getting_ready(tokenizer, chosen):
            return run_on_ray(prepare(), progress=progress)
    return run_jobs([prepare()], progress=progress)[0]


def build_together(
    origin: Origin,
    *,
    tokenizers: Sequence[str | os.PathLike[str] | Tokenizer],
    outs: Sequence[str | os.PathLike[str]],
    options: BuildOptions,
    dataset: str,
    supply: Supply | None = None,
    progress: ProgressSink | None = None,
) -> list[BuildSummary]:
    """Build one data set for each tokenizer (its `outs` beside it) in one pass over the documents.

    Each is what `build` would make alone, byte for byte, also after an interruption that left them at different
    places. `supply` brings the files of `origin` while they are read. Raises what `build` raises.
    """
    jobs = [
        Job.prepare(origin, tokenizer, to_path(out), options, dataset=dataset)
        for tokenizer, out in zip(tokenizers, outs, strict=True)
    ]
    if len({job.target.directory / job.target.record("") for job in jobs}) < len(jobs):
        raise UsageError("two of the tokenizers would write the same data set; give each only once")
    return run_jobs(jobs, supply=supply, progress=progress)
