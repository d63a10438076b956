"""A corpus that is interrupted or killed goes on where it stopped, in a folder and behind a URL, to the same bytes."""

from __future__ import annotations

import io
import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import forked
import fsspec
import pytest
from made_documents import make_texts, write_jsonl
from s3_server import Fault

from tokenriver.corpus.log import CorpusLog
from tokenriver.corpus.manifest import CORPUS_MANIFEST, read_corpus_manifest
from tokenriver.corpus.shards import verify_corpus, write_corpus
from tokenriver.corpus.sources import SourceOptions
from tokenriver.errors import CorpusError, IntegrityError, ResumeError, StorageError
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_server import Bucket

    from tokenriver.corpus import shards

WORDS: dict[str, Any] = {"name": "c", "shard_bytes": 4000, "split": "hash:0.2"}


pytestmark = pytest.mark.usefixtures("staging")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents in several files, some of a record's own id, one file larger than all shards."""
    folder = tmp_path / "docs"
    folder.mkdir()
    texts = make_texts(300, words=20)
    write_jsonl(folder / "a.jsonl", texts[:20])
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[20:250]) + "[]\n")
    write_jsonl(folder / "c.jsonl", texts[250:])
    return folder


def write(folder: Path, out: Any, **words: Any) -> shards.CorpusSummary:
    return write_corpus([folder], out, options=SourceOptions(on_bad_record="skip"), **{**WORDS, **words})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def there(s3: Bucket) -> dict[str, bytes]:
    return {key.removeprefix("c/"): s3.get(key) for key in s3.names()}


def stop_after(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Interrupt the run when so many shards are in the journal."""
    real, calls = CorpusLog.shard, [0]

    def shard(self: CorpusLog, *args: Any, **words: Any) -> None:
        real(self, *args, **words)
        calls[0] += 1
        if calls[0] == n:
            raise KeyboardInterrupt

    monkeypatch.setattr(CorpusLog, "shard", shard)


@pytest.mark.parametrize(("seed", "kind"), [(0, "jsonl.zst"), (1, "parquet"), (2, "jsonl.zst"), (3, "parquet")])
def test_a_corpus_interrupted_after_every_other_shard_is_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, seed: int
) -> None:
    rng = random.Random(seed)
    words = {"format": kind, "split": ["hash:0.2", "first-docs:130", "first-files:1", "train"][seed]}
    whole = write(folder, tmp_path / "whole", **words)
    done, runs = None, 0
    while done is None:
        runs += 1
        with monkeypatch.context() as patches:
            stop_after(patches, 2)
            how = {"workers": rng.randint(1, 3), "block_bytes": rng.choice([1, 300, 2000, 1 << 20])}
            with suppress(KeyboardInterrupt):
                done = write(folder, tmp_path / "c", **words, **how)
        assert (tmp_path / "c" / CORPUS_MANIFEST).exists() == (done is not None)
    assert runs > 3
    assert done.resumed
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")
    assert (done.manifest, done.text_bytes, done.skipped) == (whole.manifest, whole.text_bytes, whole.skipped)


STEPS = """
from tokenriver.corpus import log, shards, target
from tokenriver.corpus.sources import SourceOptions
from tokenriver.resuming import swap
"""

KILLS = {
    "after a shard is in the journal": "log.CorpusLog, 'shard', 3",
    "before a shard is in the journal": "log.CorpusLog, 'shard', 3, before=True",
    "before all is put in place": "log.CorpusLog, 'finish'",
    "before the journal goes": "target.CorpusTarget, 'publish'",
}


def killed(folder: Path, out: Path | str, kill: str, **words: Any) -> None:
    """A run that SIGKILL ends at that step."""
    options = "options=SourceOptions(on_bad_record='skip')"
    call = f"shards.write_corpus([{str(folder)!r}], {str(out)!r}, {options}, **{ {**WORDS, **words}!r})"
    forked.killed(f"{STEPS}kill_at({kill})\n{call}")


@pytest.mark.parametrize("step", KILLS)
def test_a_corpus_killed_in_a_folder_goes_on(folder: Path, tmp_path: Path, step: str) -> None:
    write(folder, tmp_path / "whole")
    killed(folder, tmp_path / "c", KILLS[step])
    assert (tmp_path / "c" / CORPUS_MANIFEST).exists() == (step == "before the journal goes")
    assert write(folder, tmp_path / "c").resumed
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


@pytest.mark.parametrize("step", ["after a shard is in the journal", "before the journal goes"])
def test_a_corpus_killed_on_its_way_to_a_store_goes_on(
    s3: Bucket, folder: Path, tmp_path: Path, staging: Path, step: str
) -> None:
    write(folder, tmp_path / "whole")
    killed(folder, f"{s3.url}/c", KILLS[step])
    assert ("c/" + CORPUS_MANIFEST in s3.names()) == (step == "before the journal goes")
    assert list(staging.glob("*/_JOURNAL"))
    s3.server.mend()
    assert write(folder, f"{s3.url}/c").resumed
    assert there(s3) == contents(tmp_path / "whole")
    puts = [request.path.rpartition("/")[2] for request in s3.server.requests("/c/", "PUT")]
    assert "corpus-00000.jsonl.zst" not in puts, "what was there is not uploaded again"
    assert puts[-1] == CORPUS_MANIFEST
    assert not list(staging.glob("*"))


def test_a_corpus_whose_upload_fails_goes_on(impatient: Bucket, folder: Path, tmp_path: Path) -> None:
    write(folder, tmp_path / "whole")
    impatient.server.fail("corpus-00002", Fault(status=500), method="PUT")
    with pytest.raises(StorageError, match="the store failed"):
        write(folder, f"{impatient.url}/c")
    impatient.delete("c/corpus-00000.jsonl.zst")
    with pytest.raises(ResumeError, match=r"/c/corpus-00000\.jsonl\.zst: the journal names it, but it is not there"):
        write(folder, f"{impatient.url}/c")
    assert not write(folder, f"{impatient.url}/c", restart=True).resumed
    assert there(impatient) == contents(tmp_path / "whole")


def test_other_inputs_and_options_are_refused_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:
        stop_after(patches, 2)
        with pytest.raises(KeyboardInterrupt):
            write(folder, tmp_path / "c")
    before = contents(tmp_path / "c")
    for words, message in [
        ({"shard_bytes": 5000}, "shard_bytes was 4000 and is now 5000"),
        ({"split": "train"}, r"split was hash:0\.2 and is now train"),
        ({"engine": "ray"}, "begun with --engine local"),
    ]:
        with pytest.raises(ResumeError, match=message):
            write(folder, tmp_path / "c", **words)
    with open(folder / "c.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(ResumeError, match=r"made otherwise: input c\.jsonl was .* --restart"):
        write(folder, tmp_path / "c")
    assert contents(tmp_path / "c") == before
    done = write(folder, tmp_path / "c", restart=True)
    assert not done.resumed
    write(folder, tmp_path / "fresh")
    assert contents(tmp_path / "c") == contents(tmp_path / "fresh")


def test_standard_input_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_jsonl(tmp_path / "raw.jsonl", make_texts(200)).read_bytes()
    for n in (2, 1000):
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(raw)}))
        with monkeypatch.context() as patches, suppress(KeyboardInterrupt):
            stop_after(patches, n)
            write_corpus(["-"], tmp_path / "c", **WORDS)
        assert (tmp_path / "c").exists() == (n == 1000)
    assert verify_corpus(tmp_path / "c") == []


def test_a_journal_that_is_damaged_or_a_builds_is_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    journal = tmp_path / "c" / "_JOURNAL"
    journal.write_text('{"layout": "tokens"}\n')
    for words in ({}, {"restart": True}):
        with pytest.raises(IntegrityError, match="an unfinished build of a data set is there"):
            write(folder, tmp_path / "c", **words)
    journal.write_text("no json\n")
    with pytest.raises(ResumeError, match=r"_JOURNAL: damaged .* --restart"):
        write(folder, tmp_path / "c")
    assert not write(folder, tmp_path / "c", restart=True).resumed


def test_a_part_that_is_not_whole_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patches:
        stop_after(patches, 2)
        with pytest.raises(KeyboardInterrupt):
            write(folder, tmp_path / "c")
    part = tmp_path / "c" / "corpus-00001.jsonl.zst.part"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(
        ResumeError, match=r"corpus-00001\.jsonl\.zst\.part: the journal names it, but it has"
    ) as caught:
        write(folder, tmp_path / "c")
    assert caught.value.advice == ("give --restart to begin anew",)


def test_an_overwritten_corpus_stays_while_its_successor_is_unfinished(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, tmp_path / "c", shard_bytes=9000)
    old = contents(tmp_path / "c")
    with monkeypatch.context() as patches:
        stop_after(patches, 2)
        with pytest.raises(KeyboardInterrupt):
            write(folder, tmp_path / "c", overwrite=True)
    assert old.items() <= contents(tmp_path / "c").items()
    with pytest.raises(IntegrityError, match="holds a finished corpus"):
        write(folder, tmp_path / "c")
    assert write(folder, tmp_path / "c", overwrite=True).resumed
    write(folder, tmp_path / "fresh")
    assert contents(tmp_path / "c") == contents(tmp_path / "fresh")
    assert verify_corpus(tmp_path / "c") == []


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's store in memory, for corpora below memory://survival."""
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/survival", recursive=True)


def objects(store: Any) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: store.cat_file(path) for path in store.find("/survival/c")}


def test_behind_a_url_an_overwritten_corpus_stays_too(
    folder: Path, tmp_path: Path, staging: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://survival/c"
    first = write(folder, url, shard_bytes=9000)
    with monkeypatch.context() as patches:
        stop_after(patches, 2)
        with pytest.raises(KeyboardInterrupt):
            write(folder, url, overwrite=True)
    assert verify_corpus(url) == []
    assert read_corpus_manifest(to_path(url)) == first.manifest
    with pytest.raises(IntegrityError, match="holds a finished corpus"):
        write(folder, url)
    assert write(folder, url, overwrite=True).resumed
    write(folder, tmp_path / "fresh")
    assert objects(memory) == contents(tmp_path / "fresh")
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes((folder / "a.jsonl").read_bytes() + b"no json\n")
    with pytest.raises(CorpusError):
        write_corpus([bad], url, overwrite=True, block_bytes=500, **WORDS)
    assert objects(memory) == contents(tmp_path / "fresh"), "bad input leaves nothing but what was there"
    assert not list(staging.glob("*"))


def test_a_corpus_killed_while_it_replaces_another_is_ended_by_the_next_run(
    s3: Bucket, folder: Path, tmp_path: Path, staging: Path
) -> None:
    write(folder, f"{s3.url}/c", shard_bytes=9000)
    killed(folder, f"{s3.url}/c", "swap.Swap, 'begin'", overwrite=True)
    s3.server.mend()
    assert write(folder, f"{s3.url}/c").resumed, "whether or not --overwrite is given: the old is as good as gone"
    write(folder, tmp_path / "fresh")
    assert there(s3) == contents(tmp_path / "fresh")
    puts = s3.server.requests("/c/", "PUT")
    assert puts[-1].path.endswith(CORPUS_MANIFEST)
    assert all(request.copy_of for request in puts[:-1]), "the store copies, and nothing is made again"
    assert not list(staging.glob("*"))
