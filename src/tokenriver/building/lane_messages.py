"""What goes between a build and the processes that encode for it: raw blocks there, encoded ones back, by a socket.

Large buffers travel beside the pickle and are received into memory of their own, each in one call that does not hold
the interpreter's lock.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.corpus.blocks import RawBlock, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.building.records import Separator
    from tokenriver.corpus.documents import Position
    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["EncoderWords", "LaneSetup", "pack_block", "receive", "send", "unpack_block"]

_LARGE_BYTES = 1 << 16
"""A payload from which it travels beside the pickle."""


@dataclass(frozen=True, slots=True)
class EncoderWords:
    """A BlockEncoder in words: what another process makes the same one from."""

    position: Position
    tokenizer: str
    tokenizer_sha256: str
    backend: str
    separator_option: int | str | None
    dtype: np.dtype[np.unsignedinteger]
    separator: Separator
    hash_fraction: Any
    verify_sample: int


@dataclass(frozen=True, slots=True)
class LaneSetup:
    """Everything that a process must know before its first block."""

    sources: Sequence[Source]
    reading: SourceOptions
    encoders: Sequence[EncoderWords]


def pack_block(raw: RawBlock) -> tuple[Any, list[Any]]:
    """A block without its sources, which the other side has, and the payloads that travel beside it."""
    buffers: list[Any] = []
    segments = []
    for segment in raw.segments:
        payload = segment.payload
        if isinstance(payload, (bytes, bytearray)) and len(payload) >= _LARGE_BYTES:
            buffers.append(payload)
            payload = None
        segments.append((segment.source_index, segment.start, segment.end, payload, segment.first_line))
    return segments, buffers


def unpack_block(message: Any, buffers: list[Any], sources: Sequence[Source]) -> RawBlock:
    """Back from `pack_block`."""
    left = iter(buffers)
    segments = [Segment(i, sources[i], start, end, payload, line) for i, start, end, payload, line in message]
    return RawBlock(
        tuple(s if s.payload is not None else msgspec.structs.replace(s, payload=next(left)) for s in segments)
    )


def send(to: socket.socket, message: Any, beside: Sequence[Any] = ()) -> None:
    """Send a message that can be pickled, and buffers beside it. Raises OSError when nobody receives it."""
    pickled: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=pickled.append)
    views = [*(buffer.raw() for buffer in pickled), *(memoryview(buffer).cast("B") for buffer in beside)]
    sizes = [len(data), len(pickled), len(beside), *(view.nbytes for view in views)]
    to.sendall(struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes) + data)
    for view in views:
        if view.nbytes:
            to.sendall(view)


def receive(source: socket.socket) -> tuple[Any, list[bytearray]]:
    """The next message and what came beside it. Raises EOFError when the other side is gone."""
    (n_sizes,) = struct.unpack("<Q", _read(source, bytearray(8)))
    n_data, n_pickled, _, *lengths = struct.unpack(f"<{n_sizes}Q", _read(source, bytearray(8 * n_sizes)))
    data = _read(source, bytearray(n_data))
    pickled = [_read(source, np.empty(n, np.uint8)) for n in lengths[:n_pickled]]
    beside = [_read(source, bytearray(n)) for n in lengths[n_pickled:]]
    return pickle.loads(data, buffers=pickled), beside


def _read(source: socket.socket, into: Any) -> Any:
    view = memoryview(into)
    while view:
        n = source.recv_into(view, 0, socket.MSG_WAITALL)
        if not n:
            raise EOFError("the other side is gone")
        view = view[n:]
    return into
