"""The order of sequences: a keyed bijection in pure integers, so an epoch's shuffle needs no array and no state.

docs/loader.md has the rule as a specification; tests pin it with golden digests. It never changes under the same
ORDER_VERSION, since a saved state would then name other data.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ORDERS", "Order", "permute"]

Order = Literal["shuffled", "sequential", "block-shuffled"]
ORDERS: tuple[Order, ...] = get_args(Order)

_ROUNDS = 4
_BLOCK = 1 << 16
"""Indices permuted at a time: NumPy's cost per call is spread thin, and the temporaries stay in the second cache."""

_SMALL = 1024
"""Up to here a table is sorted instead of walking: a network over a handful of values favours some permutations."""

_KEY = b"tokenriver order 1"
_CONSTANT = np.uint32(0x2C1B3C6D)


def permute(positions: NDArray[np.int64], *, n: int, seed: int, epoch: int, key: bytes = _KEY) -> NDArray[np.int64]:
    """Where the keyed bijection of [0, n) sends each position, int64 of the same shape [k].

    A Feistel network over pairs (left, right) in [0, a) x [0, 2^w), the least such domain that holds n, walked on
    until the value is below n (a step more for about one value in sqrt(n)), keyed by SHA-512 of seed and epoch. For
    n <= 1024 it is the order in which the network over [0, 2^32) puts 0 … n − 1. Another `key` is another bijection.
    Raises UsageError when seed or epoch is not in [0, 2^64).
    """
    keys = _keys(key, seed, epoch)
    if n <= _SMALL:
        return np.argsort(_feistel(np.arange(n), 1 << 16, 16, keys))[positions]
    right_bits = ((n - 1).bit_length() + 1) // 2
    left_size = -(-n // (1 << right_bits))
    out = np.empty_like(positions)
    for begin in range(0, len(positions), _BLOCK):
        out[begin : begin + _BLOCK] = _feistel(positions[begin : begin + _BLOCK], left_size, right_bits, keys)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        walked = _feistel(out[outside], left_size, right_bits, keys)
        out[outside] = walked
        outside = outside[walked >= n]
    return out


def _keys(key: bytes, seed: int, epoch: int) -> list[np.uint32]:
    """Sixteen 32-bit words: an addend and an odd factor for each half round, in turn."""
    for name, value in (("seed", seed), ("epoch", epoch)):
        if not 0 <= value < 1 << 64:
            raise UsageError(f"{name} is an integer in [0, 2^64), not {value}")
    message = key + b"\0" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    words = np.frombuffer(hashlib.sha512(message).digest(), "<u4").astype(np.uint32)
    words[1::2] |= np.uint32(1)
    return list(words)


def _feistel(values: NDArray[np.int64], left_size: int, right_bits: int, keys: list[np.uint32]) -> NDArray[np.int64]:
    """One pass over [0, left_size · 2^right_bits): each half in turn takes on a hash of the other."""
    left = (values >> right_bits).astype(np.uint32)
    right = (values & ((1 << right_bits) - 1)).astype(np.uint32)
    size, wide_size, shift = np.uint32(left_size), np.uint64(left_size), np.uint32(32 - right_bits)
    mixed, spare = np.empty_like(left), np.empty_like(left)
    wide = np.empty(left.shape, np.uint64)
    for r in range(0, 2 * _ROUNDS, 2):
        _hash(right, keys[2 * r], keys[2 * r + 1], mixed, spare)
        # The hash scaled to [0, left_size) without a division and added; of the sum x < 2·size and x - size (which
        # wraps around below zero) the smaller is x mod size.
        np.multiply(mixed, wide_size, out=wide)
        wide >>= np.uint64(32)
        np.add(left, wide, out=mixed, casting="unsafe")
        np.subtract(mixed, size, out=spare)
        np.minimum(mixed, spare, out=left)
        _hash(left, keys[2 * r + 2], keys[2 * r + 3], mixed, spare)
        mixed >>= shift
        right ^= mixed
    return (left.astype(np.int64) << right_bits) | right


def _hash(
    half: NDArray[np.uint32], addend: np.uint32, factor: np.uint32, out: NDArray[np.uint32], spare: NDArray[np.uint32]
) -> None:
    """A keyed 32-bit hash of each value, best in its high bits."""
    np.add(half, addend, out=out)
    np.multiply(out, factor, out=out)
    np.right_shift(out, np.uint32(16), out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.multiply(out, _CONSTANT, out=out)
