"""Which source gives which row of a mixture: pure integers, any row of a run on its own.

Row by row the source is taken whose deficit (its share so far minus its rows) would be the first to reach a whole row,
among those that are behind their share. So after any number of rows each source is within one row of its share:
windows from "behind" to "a whole row behind" are met by earliest deadline first whenever they can be met at all, and
they can (R. Tijdeman, The chairman assignment problem, 1980; Steiner & Yeomans, 1993). Taking the plain largest
deficit instead can leave a source more than a row behind. With fixed weights the sequence repeats after a while, so
no row needs the ones before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["MAX_DENOMINATOR", "Schedule", "whole_weights"]

MAX_DENOMINATOR = 1 << 16
"""Weights are used as fractions of at most this denominator: others are rounded to it (by 1 / 131,072 at most)."""


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Weights as whole numbers in lowest terms, exact while their sum is at most MAX_DENOMINATOR, else rounded to it.

    A weight above 0 stays above 0. Raises UsageError for a negative one, or when none is above 0.
    """
    exact = {}
    for name, weight in weights.items():
        try:
            number = float(weight)
            exact[name] = Fraction(str(weight) if 1e-30 < abs(number) < 1e30 else number)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            raise UsageError(f"the weight of {name} is {shown(weight)}; it must be a number below 10^308") from None
        if exact[name] < 0:
            raise UsageError(f"the weight of {name} is {weight}; it must be 0 or more")
    total = sum(exact.values())
    if total <= 0:
        raise UsageError(f"no source has a weight above 0: {', '.join(weights) or 'there is none'}")
    scale = lcm(*(w.denominator for w in exact.values()))
    whole = {name: int(w * scale) for name, w in exact.items()}
    divisor = int(np.gcd.reduce([w for w in whole.values() if w]))
    whole = {name: w // divisor for name, w in whole.items()}
    if sum(whole.values()) <= MAX_DENOMINATOR:
        return whole
    shares = {name: w / total * MAX_DENOMINATOR for name, w in exact.items()}
    rounded = {name: max(int(share), int(share > 0)) for name, share in shares.items()}
    by_rest = sorted(rounded, key=lambda name: rounded[name] - shares[name])
    for name in by_rest[: max(0, MAX_DENOMINATOR - sum(rounded.values()))]:
        rounded[name] += 1
    return rounded


_Later = list[tuple[int, list[int]]]
"""(first row, weights) of the phases to come."""


@dataclass(slots=True, eq=False)
class _Stretch:
    """Rows from `start` on with fixed weights: `lead`, then `cycle` again and again, then `tail` up to `length`."""

    start: int
    length: int | None
    before: list[int]
    lead: NDArray[np.uint16]
    cycle: NDArray[np.uint16]
    tail: NDArray[np.uint16]
    prefixes: list[NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.prefixes = [_prefix_counts(part, len(self.before)) for part in (self.lead, self.cycle, self.tail)]

    def counts(self, rows: int) -> list[int]:
        """Rows of each source among the stretch's first `rows`."""
        lead, cycle, tail = self.prefixes
        found = lead[:, min(rows, len(self.lead))].copy()
        in_tail = 0 if self.length is None else max(0, rows - (self.length - len(self.tail)))
        in_cycle = max(0, rows - len(self.lead) - in_tail)
        if in_cycle:
            full, rest = divmod(in_cycle, len(self.cycle))
            found += cycle[:, -1] * full + cycle[:, rest]
        found += tail[:, in_tail]
        counts: list[int] = found.tolist()
        return counts

    def rows(self, first: int, stop: int) -> NDArray[np.uint16]:
        """The sources of rows [first, stop) of the stretch."""
        body = None if self.length is None else self.length - len(self.tail)
        end = stop if body is None else min(stop, body)
        parts = [self.lead[first : min(end, len(self.lead))]]
        begin = max(first, len(self.lead))
        if begin < end:
            parts.append(self.cycle[np.arange(begin - len(self.lead), end - len(self.lead)) % len(self.cycle)])
        if body is not None and stop > body:
            parts.append(self.tail[max(0, first - body) : stop - body])
        return np.concatenate(parts)


class Schedule:
    """The source of every row, for `phases` of whole weights: (first row, weight of each source), the first from 0.

    A source with a cap gives at most that many rows; then the others share its part, or with `stop` the run ends.
    """

    def __init__(
        self, phases: Sequence[tuple[int, Sequence[int]]], *, caps: Sequence[int | None], stop: bool = False
    ) -> None:
        self.n_sources = len(caps)
        self._caps, self._stop = list(caps), stop
        self._stretches: list[_Stretch] = []
        self.total: int | None = None
        """Rows in all; None when there is no end."""
        self.used_up: dict[int, int] = {}
        """Source → the number of rows after which it had given its last."""
        self._lay_out([(start, list(weights)) for start, weights in phases])

    def counts(self, rows: int) -> list[int]:
        """Rows of each source among the first `rows`; behind the end, where a last batch is padded, among all."""
        rows = rows if self.total is None else min(rows, self.total)
        stretch = self._at(rows)
        return [a + b for a, b in zip(stretch.before, stretch.counts(rows - stretch.start), strict=True)]

    def sources(self, first: int, stop: int) -> NDArray[np.uint16]:
        """The source of each row in [first, stop), which must lie before the end."""
        parts = []
        while first < stop:
            stretch = self._at(first)
            end = stop if stretch.length is None else min(stop, stretch.start + stretch.length)
            parts.append(stretch.rows(first - stretch.start, end - stretch.start))
            first = end
        return np.concatenate(parts) if parts else np.zeros(0, np.uint16)

    def _at(self, row: int) -> _Stretch:
        starts = [s.start for s in self._stretches]
        return self._stretches[max(0, int(np.searchsorted(starts, row, "right")) - 1)]

    def _lay_out(self, phases: list[tuple[int, list[int]]]) -> None:
        """All stretches: a phase ends one, and so does a source that is used up."""
        credit = [Fraction(0)] * self.n_sources
        counts, row, live = [0] * self.n_sources, 0, [cap is None or cap > 0 for cap in self._caps]
        self.used_up = {i: 0 for i, alive in enumerate(live) if not alive}
        while True:
            index = max(k for k, (start, _) in enumerate(phases) if start <= row)
            weights = [w if alive else 0 for w, alive in zip(phases[index][1], live, strict=True)]
            end = phases[index + 1][0] if index + 1 < len(phases) else None
            if not sum(weights) or (self._stop and self.used_up):
                self.total = row
                if not self._stretches:
                    empty = np.zeros(0, np.uint16)
                    self._stretches.append(_Stretch(0, 0, counts, empty, empty, empty))
                return
            later = [
                (start, [w if a else 0 for w, a in zip(ws, live, strict=True)]) for start, ws in phases[index + 1 :]
            ]
            stretch = _stretch(row, None if end is None else end - row, counts, credit, weights, later)
            cut = self._first_used_up(stretch, counts, live)
            if cut is not None:
                stretch = _cut_stretch(stretch, cut)
            self._stretches.append(stretch)
            if stretch.length is None:
                return
            given = stretch.counts(stretch.length)
            total = sum(weights)
            credit = [
                c + Fraction(w * stretch.length, total) - n for c, w, n in zip(credit, weights, given, strict=True)
            ]
            counts = [a + b for a, b in zip(counts, given, strict=True)]
            row += stretch.length
            for i, cap in enumerate(self._caps):
                if live[i] and cap is not None and counts[i] >= cap:
                    live[i] = False
                    self.used_up[i] = row
            credit = _shared_out(credit, weights, live)

    def _first_used_up(self, stretch: _Stretch, counts: list[int], live: list[bool]) -> int | None:
        """After how many rows of a stretch the first source reaches its cap; None when none does."""
        found = None
        for i, cap in enumerate(self._caps):
            if cap is None or not live[i]:
                continue
            room = cap - counts[i]
            high = stretch.length
            if high is None:
                if not stretch.prefixes[1][i, -1] and stretch.prefixes[0][i, -1] < room:
                    continue
                high = 1
                while stretch.counts(high)[i] < room:
                    high *= 2
            if stretch.counts(high)[i] < room:
                continue
            low = 0
            while low < high:
                middle = (low + high) // 2
                if stretch.counts(middle)[i] >= room:
                    high = middle
                else:
                    low = middle + 1
            found = low if found is None else min(found, low)
        return found


def _shared_out(credit: list[Fraction], weights: list[int], live: list[bool]) -> list[Fraction]:
    """Credits with those of used-up sources shared out among the others, by their weights."""
    lost = sum((c for c, alive in zip(credit, live, strict=True) if not alive), Fraction(0))
    total = sum(w for w, alive in zip(weights, live, strict=True) if alive)
    if not total:
        return [Fraction(0)] * len(credit)
    return [
        c + lost * Fraction(w, total) if alive else Fraction(0)
        for c, w, alive in zip(credit, weights, live, strict=True)
    ]


def _cut_stretch(stretch: _Stretch, length: int) -> _Stretch:
    """The first `length` rows of a stretch; what is no whole part of it becomes its tail."""
    lead = stretch.lead[:length]
    full = max(0, length - len(stretch.lead)) // max(1, len(stretch.cycle))
    body = len(lead) + full * len(stretch.cycle)
    if stretch.length is not None:
        body = min(body, max(stretch.length - len(stretch.tail), len(lead)))
        body = len(lead) + (body - len(lead)) // max(1, len(stretch.cycle)) * len(stretch.cycle)
    body = min(body, length)
    return _Stretch(stretch.start, length, stretch.before, lead, stretch.cycle, stretch.rows(body, length))


def _stretch(
    start: int, length: int | None, before: list[int], credit: list[Fraction], weights: list[int], later: _Later
) -> _Stretch:
    """Deal rows with fixed weights until the deal repeats; before a change of weights look ahead at the new ones."""
    total = sum(weights)
    scale = lcm(total, *(c.denominator for c in credit), *(sum(ws) or 1 for _, ws in later))
    dealer = _Dealer([int(c * scale) for c in credit], weights, total, scale)
    steady = length if length is None else max(0, length - 2 * total)
    seen: dict[tuple[int, ...], int] = {}
    dealt: list[int] = []
    while (steady is None or len(dealt) < steady) and tuple(dealer.credit) not in seen:
        seen[tuple(dealer.credit)] = len(dealt)
        n = total if steady is None else min(total, steady - len(dealt))
        first = start + len(dealt)
        dealt += [dealer.deal(later, row) for row in range(first, first + n)]
    over = steady is not None and len(dealt) >= steady
    repeat_from = len(dealt) if over else seen[tuple(dealer.credit)]
    lead, cycle = dealt[:repeat_from], dealt[repeat_from:]
    tail: list[int] = []
    if length is not None:
        body = len(lead) + ((steady or 0) - len(lead)) // len(cycle) * len(cycle) if cycle else len(lead)
        tail = [dealer.deal(later, start + row) for row in range(body, length)]
    return _Stretch(start, length, before, *(np.array(part, np.uint16) for part in (lead, cycle, tail)))


class _Dealer:
    """The rule, row by row: credits in units of 1 / scale rows, their sum 0."""

    def __init__(self, credit: list[int], weights: list[int], total: int, scale: int) -> None:
        self.credit, self._scale = credit, scale
        self._rates = [w * (scale // total) for w in weights]

    def deal(self, later: _Later, row: int) -> int:
        """The next row's source, which is row `row`; `later` are (first row, weights) of the phases to come."""
        best, chosen = (0, 0), -1
        for i, (credit, rate) in enumerate(zip(self.credit, self._rates, strict=True)):
            self.credit[i] = owed = credit + rate
            if owed > 0:
                key = (self._deadline(i, credit, rate, later, row), -owed)
                if chosen < 0 or key < best:
                    best, chosen = key, i
        self.credit[chosen] -= self._scale
        return chosen

    def _deadline(self, i: int, credit: int, rate: int, later: _Later, row: int) -> int:
        """After how many rows source i would be a whole row behind, if it gave none."""
        at = 0
        for first, weights in later:
            until = first - row
            if rate and credit + rate * (until - at) >= self._scale:
                break
            credit, at = credit + rate * (until - at), until
            rate = weights[i] * (self._scale // sum(weights)) if sum(weights) else 0
        return at - (credit - self._scale) // rate if rate else _NEVER


_NEVER = 1 << 62


def _prefix_counts(rows: NDArray[np.uint16], n_sources: int) -> NDArray[np.int64]:
    """counts[i, k]: rows of source i among the first k, int64 [n_sources, len + 1]."""
    counts = np.zeros((n_sources, len(rows) + 1), np.int64)
    np.cumsum(rows == np.arange(n_sources, dtype=np.uint16)[:, None], axis=1, out=counts[:, 1:])
    return counts
