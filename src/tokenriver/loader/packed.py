"""The plan of a loader that packs: which documents' pieces a rank reads at a step, any step of any epoch on its own."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.aligned import bos_aligned_rows
from tokenriver.loader.order import permute
from tokenriver.loader.packing import BEST_FIT_RULE, PACKINGS, best_fit_rows, count_best_fit_rows
from tokenriver.loader.segments import Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.documents import DocumentFinder, Documents
    from tokenriver.loader.order import Order
    from tokenriver.loader.packing import Packing, WindowRows

__all__ = ["WINDOW", "PackedRows"]

WINDOW = 1 << 17
"""Documents packed together. More fit better and cost no more; a seek plans one window (50 ms), a pass all of them."""

_KEPT_WINDOWS = 4
_KEPT_EPOCHS = 3


class _Pieces(NamedTuple):
    """Pieces of documents in rows: each array int64 [n_pieces]. `slot` is a piece's first in its row, `offset` its
    first token in the document, `size` its tokens."""

    row: NDArray[np.int64]
    slot: NDArray[np.int64]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window's rows, and the documents (numbered in the split) that its own numbers mean."""

    rows: WindowRows
    documents: NDArray[np.int64]


class PackedRows:
    """All rows of a split, epoch by epoch: a pure function of (documents, seq_len, packing, seed, epoch).

    Window w of an epoch packs documents [w·window, (w+1)·window) of the epoch's order, which is that of the split,
    or shuffled by the same keyed bijection as sequences are. Rows are numbered through all windows. How many rows
    each window has is counted once an epoch (10 M documents/s); the rest is planned window by window when needed.
    """

    def __init__(
        self,
        finder: DocumentFinder,
        *,
        packing: Packing,
        seq_len: int,
        order: Order,
        seed: int,
        max_doc_len: int | None = None,
        window: int = WINDOW,
        base: int = 0,
    ) -> None:
        if packing not in PACKINGS:
            raise UsageError(f"packing is one of {', '.join(PACKINGS)}, not {packing!r}")
        if max_doc_len is not None and (packing != "bos-aligned" or max_doc_len < 1):
            raise UsageError(f"max_doc_len is for packing='bos-aligned' and at least 1, not {max_doc_len}")
        if window < 1:
            raise UsageError(f"the window is at least 1 document, not {window}")
        self.packing, self.seq_len, self.order, self.seed = packing, seq_len, order, seed
        self.max_doc_len, self.window, self.base = max_doc_len, window, base
        self._finder = finder
        self._bounds: OrderedDict[int, NDArray[np.int64]] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()

    @property
    def documents(self) -> Documents:
        """The split's documents; waits for them where they are still looked for."""
        return self._finder.get()

    @property
    def parameters(self) -> dict[str, Any]:
        """What a saved state must agree in beside the loader's own fields."""
        return {
            "mode": self.packing,
            **({"rule": BEST_FIT_RULE} if self.packing == "best-fit" else {}),
            "max_doc_len": self.max_doc_len,
            "window": self.window,
            "documents": self.documents.digest,
        }

    def n_rows(self, epoch: int) -> int:
        """Rows in an epoch."""
        return int(self._row_bounds(epoch)[-1])

    def rows(self, epoch: int, first: int, count: int) -> Segments:
        """Rows [first, first + count) of an epoch, fewer at its end; numbered from 0."""
        return self.runs(epoch, [first], count)[0]

    def runs(self, epoch: int, firsts: list[int], count: int) -> tuple[Segments, list[int]]:
        """`count` rows from each of `firsts` on, one after the other, and where each of these runs begins and ends.

        Many at a time cost little more than one.
        """
        bounds = self._row_bounds(epoch).tolist()
        parts: list[tuple[_Window, int, int, int]] = []
        starts = [0]
        for first in firsts:
            stop, at = min(first + count, bounds[-1]), first
            while at < stop:
                w = bisect_right(bounds, at) - 1
                end = min(stop, bounds[w + 1])
                window, a, b = self._window(epoch, w), at - bounds[w], end - bounds[w]
                if parts and parts[-1][0] is window and parts[-1][2] == a:
                    window, a, _, begin = parts.pop()
                else:
                    begin = starts[-1] + at - first
                parts.append((window, a, b, begin))
                at = end
            starts.append(starts[-1] + max(0, stop - first))
        return self._segments(parts, starts[-1]), starts

    def ledger(self, epoch: int, served_rows: int) -> dict[str, int]:
        """Where each token of the split goes in an epoch of which the first `served_rows` rows are served.

        `trained` tokens are a target that counts, once each. `padded` ones are read, but no target that counts: they
        begin a row or a document. `cropped` ones are cut off a document, `dropped` ones lie in rows not served.
        `padding` counts the slots without a token, which are none of the split's.
        """
        documents = self.documents
        lengths = np.diff(documents.starts)
        inside = cropped = first_trained = unserved = padding = 0
        bounds = self._row_bounds(epoch)
        for w in range(len(bounds) - 1):
            window = self._window(epoch, w)
            n_served = min(max(served_rows - int(bounds[w]), 0), window.rows.n_rows)
            parts = self._segments([(window, 0, n_served, 0)], n_served)
            n_pieces = int(window.rows.bounds[n_served])
            document = window.documents[window.rows.document[:n_pieces]]
            inside += int((parts.size - 1).sum()) if self.packing == "best-fit" else 0
            if self.packing == "best-fit":
                fresh = parts.begins & (parts.slot > 0)
                if documents.separator is not None:
                    first_trained += int(fresh.sum()) - int(documents.fragment and 0 in document[fresh])
                padding += n_served * (self.seq_len + 1) - int(parts.size.sum())
            else:
                whole = parts.inputs == lengths[document]
                inside += int((lengths[document] - 1).sum())
                cropped += int(np.maximum(lengths[document] - parts.inputs - 1, 0).sum())
                if documents.separator is not None:
                    first_trained += int((whole & (document < documents.n - 1)).sum())
                padding += n_served * self.seq_len - int(parts.inputs.sum())
        total = int(lengths.sum())
        unserved = total - documents.n - inside
        return {
            "trained": inside - cropped + first_trained,
            "padded": documents.n - first_trained,
            "cropped": cropped,
            "dropped": unserved,
            "padding": padding,
        }

    def _row_bounds(self, epoch: int) -> NDArray[np.int64]:
        """Rows before each window of an epoch, int64 [windows + 1]."""
        key = 0 if self.order == "sequential" else epoch
        if key not in self._bounds:
            lengths = np.diff(self.documents.starts)
            counts = [0]
            for w in range(-(-len(lengths) // self.window)):
                part = lengths[self._order(key, w)]
                if self.packing == "best-fit":
                    counts.append(count_best_fit_rows(part, seq_len=self.seq_len))
                else:
                    counts.append(self._pack(part).n_rows)
            self._bounds[key] = np.cumsum(np.array(counts, np.int64))
            while len(self._bounds) > _KEPT_EPOCHS:
                self._bounds.popitem(last=False)
        return self._bounds[key]

    def _order(self, epoch: int, window: int) -> NDArray[np.int64]:
        """The documents of a window, in the epoch's order."""
        n = self.documents.n
        places = np.arange(window * self.window, min((window + 1) * self.window, n), dtype=np.int64)
        return places if self.order == "sequential" else permute(places, n=n, seed=self.seed, epoch=epoch)

    def _pack(self, lengths: NDArray[np.int64]) -> WindowRows:
        if self.packing == "best-fit":
            return best_fit_rows(lengths, seq_len=self.seq_len)
        return bos_aligned_rows(lengths, seq_len=self.seq_len, max_doc_len=self.max_doc_len)

    def _window(self, epoch: int, window: int) -> _Window:
        key = (0 if self.order == "sequential" else epoch, window)
        found = self._windows.get(key)
        if found is None:
            documents = self._order(*key)
            starts = self.documents.starts
            found = _Window(self._pack(starts[documents + 1] - starts[documents]), documents)
            self._windows[key] = found
            while len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        return found

    def _segments(self, parts: list[tuple[_Window, int, int, int]], n_rows: int) -> Segments:
        """Pieces of rows [a, b) of each window, whose first is row `at` of the result."""
        columns: list[list[NDArray[np.int64]]] = [[], [], [], [], []]
        for window, a, b, at in parts:
            rows = window.rows
            k = slice(int(rows.bounds[a]), int(rows.bounds[b]))
            row = np.repeat(np.arange(at, at + b - a), np.diff(rows.bounds[a : b + 1]))
            documents = window.documents[rows.document[k]]
            for column, values in zip(
                columns, (row, rows.slot[k], documents, rows.offset[k], rows.size[k]), strict=True
            ):
                column.append(values)
        pieces = _Pieces(*(np.concatenate(column) if column else np.zeros(0, np.int64) for column in columns))
        if self.packing == "best-fit":
            return self._best_fit(n_rows, pieces)
        return self._bos_aligned(n_rows, pieces)

    def _best_fit(self, n_rows: int, pieces: _Pieces) -> Segments:
        documents = self.documents
        row, slot, document, offset, size = pieces
        # The target behind a piece is the next piece's first token: a separator, unless none is known.
        follows = np.append(row[1:] == row[:-1], False)
        separated = documents.separator is not None
        border = follows & (np.append(document[1:] == 0, False) & documents.fragment if separated else True)
        inputs = np.minimum(size, self.seq_len - slot)
        return Segments(
            n_rows,
            row,
            slot,
            documents.starts[document] + offset + self.base,
            size,
            inputs,
            offset == 0,
            border,
            np.zeros((0, 3), np.int64),
        )

    def _bos_aligned(self, n_rows: int, pieces: _Pieces) -> Segments:
        documents = self.documents
        row, slot, document, _, inputs = pieces
        start = documents.starts[document]
        stop = documents.starts[document + 1]
        cut = start + inputs < stop
        final = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, np.bool_)
        follows = stop < documents.starts[-1]
        # A row's last piece brings its last target along; a piece cut inside a row gets it as a patch.
        size = inputs + (final & (cut | follows))
        patched = np.flatnonzero(cut & ~final)
        patches = np.stack(
            [row[patched], slot[patched] + inputs[patched] - 1, start[patched] + inputs[patched] + self.base], axis=1
        )
        border = ~cut if documents.separator is None else ~cut & ~follows
        begins = np.ones(len(row), np.bool_)
        return Segments(n_rows, row, slot, start + self.base, size, inputs, begins, border, patches)
