"""The shuffle: a bijection pinned by digests, different every epoch, and as even as chance."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evenness import chi_square_excess
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver import UsageError
from tokenriver.loader.order import permute

GOLDEN = {
    # (n, seed, epoch): SHA-256 of the whole permutation as little-endian int64 (docs/loader.md lists the same)
    (1, 0, 0): "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc",
    (2, 0, 0): "9d34149fbd1fe777eb238799054c8cbfbce372255f219f8740838def9bfd02db",
    (5, 0, 0): "5eae0eea38a12b451002ca00a1687e80162c98b7715dee5713885b0544d9fc4d",
    (1000, 0, 0): "9fbd160818f81abc22bf69102cab5ae7ccda52c283d51aa59b862c39864121f3",
    (1000, 0, 1): "244d1c998ab456b78d96dcd6c0640a9323e2113d947ee2d06e57263d65a225e7",
    (1000, 1, 0): "38c70ab8cdb482e6aada3eb575d1e03eda33db6307d2b173b035832ca830de96",
    (1025, 0, 0): "f3130ec89ff890f9758aabc1c20da9c772f6a2125ff6b6787d4b582c8e86467a",
    (65536, 42, 7): "b0f44251788b49eb25490572a8e56871165ee5402064f95a2e1a1b5b881ae63a",
    (100003, 1337, 3): "876ef95d8cc3f581f0f2d279b0f7ccf0e87ad473682fac072c0d16aacd0773c7",
    (
        5000,
        18446744073709551615,
        18446744073709551615,
    ): "f5a7a860e0938a88b9a783c33792c3e23fc4f243587c61e8a686a587d8f62b96",
}


def whole(n: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(n), n=n, seed=seed, epoch=epoch)


@pytest.mark.parametrize(("key", "digest"), GOLDEN.items(), ids=str)
def test_the_order_never_changes(key: tuple[int, int, int], digest: str) -> None:
    n, seed, epoch = key
    assert hashlib.sha256(whole(n, seed=seed, epoch=epoch).astype("<i8").tobytes()).hexdigest() == digest


def specified(p: int, n: int, seed: int, epoch: int) -> int:
    """The rule of docs/loader.md, one position at a time, in Python's own integers."""
    message = b"tokenriver order 1\0" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    digest = hashlib.sha512(message).digest()
    keys = [int.from_bytes(digest[4 * k : 4 * k + 4], "little") | (k & 1) for k in range(16)]
    word = (1 << 32) - 1

    def mixed(x: int, k: int, m: int) -> int:
        x = (x + k) * m & word
        return (x ^ (x >> 16)) * 0x2C1B3C6D & word

    def net(value: int) -> int:
        left, right = value >> w, value & ((1 << w) - 1)
        for r in range(4):
            left = (left + (mixed(right, *keys[4 * r : 4 * r + 2]) * a >> 32)) % a
            right ^= mixed(left, *keys[4 * r + 2 : 4 * r + 4]) >> (32 - w)
        return left << w | right

    if n <= 1024:
        w, a = 16, 1 << 16
        return sorted(range(n), key=net)[p]
    w = ((n - 1).bit_length() + 1) // 2
    a = -(-n // (1 << w))
    value = net(p)
    while value >= n:
        value = net(value)
    return value


@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 99_999, 2**20, 2**20 + 1, 10**12 + 7])
def test_the_page_s_rule_gives_the_same_order(n: int) -> None:
    positions = np.unique(np.linspace(0, n - 1, 40).astype(np.int64))
    expected = [specified(int(p), n, 3, 8) for p in positions]
    assert permute(positions, n=n, seed=3, epoch=8).tolist() == expected


def test_the_page_lists_the_golden_digests() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loader.md").read_text(encoding="utf-8")
    page = page.replace("2^64 − 1", str(2**64 - 1))
    listed = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    assert {(int(n), int(seed), int(epoch)): digest for n, seed, epoch, digest in listed} == GOLDEN
    assert ", ".join(map(str, BIG_FIRST)) in page


def test_first_values_of_a_large_epoch_are_pinned() -> None:
    assert permute(np.arange(4), n=10**8, seed=1, epoch=2).tolist() == BIG_FIRST
    assert permute(np.arange(4), n=10**15, seed=1, epoch=2).tolist() == HUGE_FIRST


BIG_FIRST = [90172032, 35942682, 82877910, 30623848]
HUGE_FIRST = [353390945411043, 907744853005241, 343131379927912, 302260430435333]


@settings(max_examples=60)
@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1))
def test_every_epoch_is_a_bijection(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(whole(n, seed=seed, epoch=epoch)), np.arange(n))


@settings(max_examples=30)
@given(n=st.integers(1, 2**55), data=st.data())
def test_any_part_equals_the_same_part_of_a_longer_run(n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + data.draw(st.integers(1, 300)))
    run = permute(np.arange(start, stop), n=n, seed=3, epoch=1)
    assert ((run >= 0) & (run < n)).all()
    assert len(np.unique(run)) == stop - start
    cut = (stop - start) // 2
    assert run[cut:].tolist() == permute(np.arange(start + cut, stop), n=n, seed=3, epoch=1).tolist()


def test_epochs_differ_and_are_not_the_sum_of_seed_and_epoch() -> None:
    orders = {(s, e): whole(1000, seed=s, epoch=e).tobytes() for s in range(6) for e in range(6)}
    assert len(set(orders.values())) == 36


def test_a_fresh_process_finds_the_same_order() -> None:
    code = (
        "import numpy as np; from tokenriver.loader.order import permute;"
        "print(permute(np.arange(50), n=50, seed=1, epoch=1).tolist())"
    )
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert done.stdout.strip() == str(whole(50, seed=1, epoch=1).tolist())


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (0, -1), (1 << 64, 0), (0, 1 << 64)])
def test_seeds_and_epochs_outside_64_bits_are_refused(seed: int, epoch: int) -> None:
    with pytest.raises(UsageError, match=r"in \[0, 2\^64\)"):
        whole(10, seed=seed, epoch=epoch)


def test_every_sequence_is_equally_likely_at_every_position() -> None:
    for n in (48, 101):
        counts = np.zeros((n, n))
        for k in range(1200):
            counts[np.arange(n), whole(n, seed=k // 3, epoch=k % 3)] += 1
        assert chi_square_excess(counts, (n - 1) ** 2) < 5


def test_a_walked_order_is_even_too() -> None:
    n, counts = 1500, np.zeros((30, 30))
    for k in range(300):
        np.add.at(counts, (np.arange(n) // 50, whole(n, seed=k) // 50), 1)
    assert chi_square_excess(counts, 29**2) < 5


def test_all_permutations_of_a_handful_come_up() -> None:
    seen = dict.fromkeys(itertools.permutations(range(4)), 0)
    for k in range(2400):
        seen[tuple(whole(4, seed=k).tolist())] += 1
    assert chi_square_excess(np.array(list(seen.values())), 23) < 5


@pytest.mark.parametrize("n", [10_007, 65_536, 100_000])
def test_neighbours_epochs_and_ranks_are_uncorrelated(n: int) -> None:
    first, second = (whole(n, seed=11, epoch=epoch).astype(float) for epoch in (0, 1))
    limit = 5 / math.sqrt(n)
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(first[:-lag], first[lag:])[0, 1]) < limit
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < limit
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(first, whole(n, seed=12, epoch=0))[0, 1]) < limit
    # Fixed points of two unrelated permutations and steps to the direct neighbour are both about Poisson of 1.
    assert int((first == second).sum()) < 10
    assert int((np.diff(first) == 1).sum()) < 10
    # Each of 8 ranks (rows of 4 in global batches of 32) sees every part of the data alike.
    usable = n // 32 * 32
    for rank in range(8):
        part = first[:usable].reshape(-1, 8, 4)[:, rank].ravel()
        assert chi_square_excess(np.histogram(part, 100, (0, n))[0], 99) < 5
        assert abs(np.corrcoef(part[:-1], part[1:])[0, 1]) < 5 / math.sqrt(len(part))
