"""The shards of a split behind URLs: found with few requests, named by the same fingerprint as on a disk.

With a manifest: it, one listing, and one header for each width of ids and each empty shard. The listing's sizes and
the manifest's counts then give every header; each shard's own is compared when it is opened. Without: every header, and
samples.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenriver.cache.fetch import CachedSet
from tokenriver.cache.folder import is_own_name
from tokenriver.cache.objects import Objects, describe
from tokenriver.cache.settings import CacheSettings, cache_settings
from tokenriver.errors import FormatError, IntegrityError, UsageError
from tokenriver.files import sha256_file
from tokenriver.loader.cached_file import cached_shard
from tokenriver.loader.listing import (
    check_counts,
    choose_names,
    each_once,
    files_of_split,
    one_split,
    other_count,
    tokenizer_of,
    without_indexes,
)
from tokenriver.loader.shard_file import SAMPLE_BYTES, ShardFile, read_shard_file
from tokenriver.loader.source import ShardSource, together
from tokenriver.shards.header import HEADER_BYTES, ShardHeader, parse_header
from tokenriver.shards.layouts import MANIFEST
from tokenriver.storage import is_url, to_path
from tokenriver.storage.objects import below, find_object
from tokenriver.storage.paths import is_web

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["hash_remote", "resolve_urls", "shards_at"]

_PIECE = 8 << 20
Listing = dict[str, dict[str, Any]]


def resolve_urls(urls: list[str], *, split: str, cache: Callable[[], CacheSettings] | None) -> ShardSource:
    """Find and check the shards of a split that lie behind URLs; raises as loader.source.resolve does."""
    settings = cache_settings() if cache is None else cache()
    patterns = [url for url in urls if _is_pattern(url)]
    if patterns and len(urls) > 1:
        raise UsageError("a list of shards has no patterns in it")
    if patterns:
        found = _matches(urls[0])
        one_split([url.rpartition("/")[2] for url in found], urls[0], split=split)
        return ShardSource(split, tuple(together(shards_at(found, settings))))
    if len(urls) > 1 or urls[0].endswith(".bin"):
        one_split([url.rpartition("/")[2] for url in urls], "the list" if len(urls) > 1 else urls[0], split=split)
        return ShardSource(split, tuple(together(shards_at(urls, settings))))
    url = urls[0].rstrip("/")
    to_path(urls[0])  # says what is missing for this kind of URL
    if url.endswith(".json"):
        directory, _, name = url.rpartition("/")
        return _from_manifest(Objects(directory), name, settings, split=split)
    objects = Objects(url)
    listing = objects.listing()
    if MANIFEST in listing or not listing:
        return _from_manifest(objects, MANIFEST, settings, split=split, listing=listing)
    chosen = choose_names(url, sorted(listing), split=split)
    if isinstance(chosen, str):
        return _from_manifest(objects, chosen, settings, split=split, listing=listing)
    return ShardSource(split, tuple(_sampled(_loose(objects, settings, listing, chosen), listing, chosen)))


def _is_pattern(url: str) -> bool:
    """Whether a URL is one of many objects. An object or a prefix of exactly that name goes first, and "?" begins a
    query on the web."""
    magic = "*" if is_web(url) else "*?["
    if not is_url(url) or not any(c in url for c in magic) or find_object(url) is not None:
        return False
    with suppress(FileNotFoundError):  # no such bucket: said when the pattern matches nothing
        return is_web(url) or not below(url, deep=False)
    return True


def _matches(pattern: str) -> list[str]:
    """The URLs that match, in the order of their names."""
    path: Any = to_path(pattern)
    scheme = pattern.partition("://")[0]
    found = without_indexes(sorted(path.fs.glob(path.path)))
    if not found:
        raise UsageError(f"no object matches {pattern}")
    return [name if is_url(name) else f"{scheme}://{name.lstrip('/')}" for name in found]


def shards_at(urls: list[str], settings: CacheSettings) -> list[ShardFile]:
    """Shards by their own URLs (or paths, among them), in the order given, without a manifest. Patterns are matched."""
    urls = [match for url in urls for match in (_matches(url) if _is_pattern(url) else [url])]
    each_once(urls)
    folders: dict[str, list[str]] = {}
    for url in urls:
        if is_url(url):
            folder, _, name = url.rpartition("/")
            folders.setdefault(folder, []).append(name)
    found: dict[str, ShardFile] = {}
    for folder, names in folders.items():
        to_path(folder)
        objects = Objects(folder)
        listing = objects.listing() or _looked_up(objects, names)
        if missing := [name for name in names if name not in listing]:
            raise UsageError(f"{folder}/{missing[0]}: no such data set directory, manifest or shard")
        for shard in _sampled(_loose(objects, settings, listing, names), listing, names):
            found[str(shard.path)] = shard
            found[objects.url_of(shard.path.name)] = shard
    return [found[url] if is_url(url) else read_shard_file(url) for url in urls]


def _looked_up(objects: Objects, names: list[str]) -> Listing:
    """What a web server that lists nothing says of each shard; nothing for one that is not there."""
    found = {}
    for name in names:
        with suppress(FileNotFoundError):
            found[name] = objects.info(name)
    return found


def _from_manifest(
    objects: Objects, name: str, settings: CacheSettings, *, split: str, listing: Listing | None = None
) -> ShardSource:
    """The shards that a manifest or build record on the store names, checked against it."""
    where = objects.url_of(name)
    try:
        facts = objects.facts(name)
        raw = objects.whole(name)
    except FileNotFoundError:
        raise UsageError(f"{objects.url}: no such data set directory, manifest or shard") from None
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON ({error})") from None
    chosen = files_of_split(manifest, where, split)
    listing = listing or objects.listing()
    if listing and (missing := [file["name"] for file in chosen if file["name"] not in listing]):
        raise IntegrityError(
            f"{objects.url}: {missing[0]} is missing ({len(missing)} of the manifest's {len(chosen)} {split} shards); "
            "upload it, or name the shards that you want as a list or glob"
        )
    digest = hashlib.sha256(raw).hexdigest()
    names = [file["name"] for file in chosen]
    sizes = {n: int(one["size"]) for n, one in listing.items()} or objects.sizes(names)
    hashes = [file.get("sha256") for file in chosen]
    origin = _cached_set(objects, settings, digest, sizes, names=names, manifest=name, facts=facts)
    if all(hashes):
        shards = _derived(origin, chosen, where)
    else:
        # Such a manifest does not say what is in the shards: another data set may have the same one.
        seen = listing or _looked_up(objects, names)
        origin = replace(origin, key=_key(objects, _told(objects, seen, names, manifest=digest)))
        shards = _sampled(origin, {n: {"size": sizes[n]} for n in names}, names, hashes=hashes)
        check_counts(shards, chosen, where)
    tokenizer, separator_id, position = tokenizer_of(manifest, where)
    return ShardSource(
        split,
        tuple(shards),
        manifest=to_path(where),
        manifest_sha256=digest if name == MANIFEST else None,
        tokenizer=tokenizer,
        separator_id=separator_id,
        separator_position=position,
    )


def _loose(objects: Objects, settings: CacheSettings, listing: Listing, names: list[str]) -> CachedSet:
    """Shards that nothing vouches for: their folder in the cache is named by what the store says of each."""
    sizes = {n: int(one["size"]) for n, one in listing.items()}
    return _cached_set(objects, settings, _told(objects, listing, names), sizes, names=names)


def _told(objects: Objects, listing: Listing, names: list[str], *, manifest: str = "") -> str:
    """A digest of where shards lie and of what the store says of each."""
    facts = "\n".join(f"{name} {describe(listing[name])}" for name in names)
    return hashlib.sha256(f"{objects.url}\n{manifest}{facts}".encode()).hexdigest()


def _cached_set(
    objects: Objects,
    settings: CacheSettings,
    digest: str,
    sizes: dict[str, int],
    *,
    names: list[str],
    manifest: str | None = None,
    facts: str = "",
) -> CachedSet:
    if own := [name for name in names if is_own_name(name)]:
        raise FormatError(f"{objects.url_of(own[0])}: the cache keeps files of its own under such names; rename it")
    return CachedSet(objects, settings, _key(objects, digest), manifest, digest if manifest else None, facts, sizes)


def _key(objects: Objects, digest: str) -> str:
    """The folder of a data set in the cache."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", objects.url.rpartition("/")[2])[:64] or "data"
    return f"{name.lstrip('._')}-{digest[:16]}"


def _derived(origin: CachedSet, files: list[dict[str, Any]], where: str) -> list[ShardFile]:
    """Headers from the sizes and the manifest's counts, after one header of each width, and of each empty shard."""
    sizes, found = origin.listed, []
    known: dict[int, ShardHeader] = {}
    folder = to_path(origin.objects.url)
    for file in files:
        name, n, body = file["name"], file["n_tokens"], sizes[file["name"]] - HEADER_BYTES
        width = body // n if n else 0
        if width not in known or not n:  # the size of an empty shard does not tell the width of its ids
            header = _header(origin, name)
            if header.n_tokens == n:
                known[header.dtype.itemsize if n else 0] = header
        like = known.get(width)
        if like is None or body != n * width:
            raise other_count(origin.objects.url_of(name), _header(origin, name).n_tokens, n, where)
        header = ShardHeader(like.variant, n, like.vocab_size)
        found.append(ShardFile(str(folder / name), header, 0, 0, b"", file["sha256"], origin))
    return found


def _header(origin: CachedSet, name: str) -> ShardHeader:
    size = origin.listed[name]
    (raw,) = origin.objects.ranges([(name, 0, min(HEADER_BYTES, size))]) if size else (b"",)
    return parse_header(raw, size, to_path(origin.objects.url_of(name)))


def _sampled(
    origin: CachedSet, listing: Listing, names: list[str], *, hashes: list[str | None] | None = None
) -> list[ShardFile]:
    """Header and sample of every shard, as loader.source.read_shard_file takes them of a local one."""
    folder = to_path(origin.objects.url)
    wanted, parts = [], []
    for name in names:
        size = int(listing[name]["size"])
        first = min(HEADER_BYTES + SAMPLE_BYTES, size)
        places = [(0, first)] if size else []
        places += [(at, min(at + SAMPLE_BYTES, size)) for at in (size // 2, size - SAMPLE_BYTES) if size and at > first]
        parts.append((size, len(places)))
        wanted += [(name, start, stop) for start, stop in places]
    found, raws = [], iter(origin.objects.ranges(wanted))
    for k, (name, (size, count)) in enumerate(zip(names, parts, strict=True)):
        pieces = [next(raws) for _ in range(count)] or [b""]
        path = folder / name
        header = parse_header(pieces[0][:HEADER_BYTES], size, path)
        digest = hashlib.sha256(b"".join(pieces)).digest()
        found.append(ShardFile(str(path), header, 0, 0, digest, hashes[k] if hashes else None, origin))
    return found


def hash_remote(shard: ShardFile) -> str:
    """SHA-256 of a whole shard: of the cached file where there is one, else streamed."""
    assert shard.origin is not None
    cached = cached_shard(shard)
    if cached.is_whole():
        try:
            return sha256_file(cached.path)
        except FileNotFoundError:
            pass  # removed meanwhile; then it is streamed
    digest = hashlib.sha256()
    for start in range(0, cached.size, _PIECE):
        stops = (start, min(start + _PIECE, cached.size))
        digest.update(shard.origin.objects.ranges([(cached.name, *stops)])[0])
    return digest.hexdigest()
