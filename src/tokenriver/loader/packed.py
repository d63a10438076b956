"""The plan of a loader that packs: which documents' pieces a rank reads at a step, any step of any epoch on its own."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.aligned import bos_aligned_rows
from tokenriver.loader.order import permute
from tokenriver.loader.packing import BEST_FIT_RULE, PACKINGS, best_fit_rows, count_best_fit_rows
from tokenriver.loader.segments import Segments, join_segments

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


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window's rows: where each one's pieces begin (int64 [n_rows + 1]), the pieces, and each piece's document,
    numbered in the split."""

    bounds: NDArray[np.int64]
    pieces: Segments
    document: NDArray[np.int64]


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
        self._bounds: OrderedDict[int, list[int]] = OrderedDict()
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

    alike = property(lambda self: self.order == "sequential", doc="Whether all epochs have as many rows.")

    def n_rows(self, epoch: int) -> int:
        """Rows in an epoch."""
        return self._row_bounds(epoch)[-1]

    def picked(self, epoch: int, rows: NDArray[np.int64]) -> Segments:
        """These rows (ascending) of an epoch, numbered from 0."""
        bounds = self._row_bounds(epoch)
        parts, done = [], 0
        while done < len(rows):  # once, but where a window ends
            w = bisect_right(bounds, rows[done]) - 1
            stop = int(np.searchsorted(rows, bounds[w + 1]))
            parts.append(_rows_of(self._window(epoch, w), rows[done:stop] - bounds[w], at=done))
            done = stop
        return parts[0] if len(parts) == 1 else join_segments(parts, len(rows))

    def ledger(self, epoch: int, served_rows: int) -> dict[str, int]:
        """Where each token of the split goes in an epoch of which the first `served_rows` rows are served.

        `trained` tokens are a target that counts, once each. `padded` ones are read, but no target that counts: they
        begin a row or a document. `cropped` ones are cut off a document, `dropped` ones lie in rows not served.
        `padding` counts the slots without a token, which are none of the split's.
        """
        documents = self.documents
        lengths = np.diff(documents.starts)
        inside = cropped = padding = 0
        read, announced = np.zeros((2, documents.n), np.bool_)  # whether a document's first token is, as a target
        bounds = self._row_bounds(epoch)
        for w in range(len(bounds) - 1):
            window = self._window(epoch, w)
            n_served = min(max(served_rows - bounds[w], 0), window.pieces.n_rows)
            n_pieces = int(window.bounds[n_served])
            document, inputs = window.document[:n_pieces], window.pieces.inputs[:n_pieces]
            begins = window.pieces.begins[:n_pieces]
            read[document[begins]] = True
            if self.packing == "best-fit":
                size = window.pieces.size[:n_pieces]
                inside += int((size - 1).sum())
                announced[document[begins & (window.pieces.slot[:n_pieces] > 0)]] = True
                padding += n_served * (self.seq_len + 1) - int(size.sum())
            else:
                whole = inputs == lengths[document]
                cut_off = int(np.maximum(lengths[document] - inputs - 1, 0).sum())
                inside += int((lengths[document] - 1).sum()) - cut_off
                cropped += cut_off
                announced[document[whole & (document < documents.n - 1)] + 1] = True
                padding += n_served * self.seq_len - int(inputs.sum())
        announced[:1] &= not documents.fragment
        if documents.separator is None:
            announced[:] = False
        trained, padded = inside + int(announced.sum()), int((read & ~announced).sum())
        dropped = int(lengths.sum()) - trained - padded - cropped
        return {"trained": trained, "padded": padded, "cropped": cropped, "dropped": dropped, "padding": padding}

    def _row_bounds(self, epoch: int) -> list[int]:
        """Rows before each window of an epoch, and at the end of the last."""
        key = 0 if self.order == "sequential" else epoch
        bounds = self._bounds.get(key)
        if bounds is None:
            lengths = np.diff(self.documents.starts)
            bounds, n_windows = [0], -(-len(lengths) // self.window)
            for w in range(n_windows):
                if n_windows <= _KEPT_WINDOWS:  # all will be at hand when they are read
                    n = self._window(key, w).pieces.n_rows
                elif self.packing == "best-fit":
                    n = count_best_fit_rows(lengths[self._order(key, w)], seq_len=self.seq_len)
                else:
                    n = self._pack(lengths[self._order(key, w)]).n_rows
                bounds.append(bounds[-1] + n)
            self._bounds[key] = bounds
            while len(self._bounds) > _KEPT_EPOCHS:
                self._bounds.popitem(last=False)
        return bounds

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
            found = self._windows[key] = self._make_window(self._order(*key))
            while len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        return found

    def _make_window(self, documents: NDArray[np.int64]) -> _Window:
        """The rows that these documents (numbered in the split) give, in this order."""
        starts = self.documents.starts[documents]
        lengths = self.documents.starts[documents + 1] - starts
        rows = self._pack(lengths)
        row = np.repeat(np.arange(rows.n_rows), np.diff(rows.bounds))
        document = documents[rows.document]
        if self.packing == "best-fit":
            pieces = self._best_fit(rows, row, document, starts[rows.document])
        else:
            pieces = self._bos_aligned(rows, row, document, starts[rows.document], lengths[rows.document])
        return _Window(rows.bounds, pieces, document)

    def _best_fit(
        self, rows: WindowRows, row: NDArray[np.int64], document: NDArray[np.int64], start: NDArray[np.int64]
    ) -> Segments:
        documents = self.documents
        # The target behind a piece is the next piece's first token: a separator, unless none is known.
        border = np.zeros(len(row), np.bool_)
        np.equal(row[1:], row[:-1], out=border[:-1])
        if documents.separator is not None:
            border[:-1] &= (document[1:] == 0) & documents.fragment
        inputs = np.minimum(rows.size, self.seq_len - rows.slot)
        start = start + rows.offset + self.base
        begins = rows.offset == 0
        return Segments(rows.n_rows, row, rows.slot, start, rows.size, inputs, begins, border, _NO_PATCHES)

    def _bos_aligned(
        self,
        rows: WindowRows,
        row: NDArray[np.int64],
        document: NDArray[np.int64],
        start: NDArray[np.int64],
        length: NDArray[np.int64],
    ) -> Segments:
        documents = self.documents
        inputs = rows.size
        cut = inputs < length
        final = np.zeros(len(row), np.bool_)
        final[rows.bounds[1:] - 1] = True
        follows = document < documents.n - 1
        # A full row's last piece brings its last target along; a piece that ends inside a row gets it as a patch.
        brings = final & (cut | follows) & (rows.slot + inputs == self.seq_len)
        size = inputs + brings
        patch = cut & ~brings
        if documents.separator is not None:
            # Its target is the next document's separator: what the next piece begins with, too, unless none follows
            # or that is the fragment.
            alone = final & ~brings
            alone[:-1] |= (document[1:] == 0) & documents.fragment & ~final[:-1]
            patch |= alone & follows
        patched = np.flatnonzero(patch)
        patches = np.stack(
            [row[patched], rows.slot[patched] + inputs[patched] - 1, start[patched] + inputs[patched] + self.base],
            axis=1,
        )
        border = ~cut if documents.separator is None else ~cut & ~follows
        begins = np.ones(len(row), np.bool_)
        return Segments(rows.n_rows, row, rows.slot, start + self.base, size, inputs, begins, border, patches)


_NO_PATCHES = np.zeros((0, 3), np.int64)


def _rows_of(window: _Window, rows: NDArray[np.int64], *, at: int) -> Segments:
    """The pieces of these rows of a window (ascending), as rows from `at` on."""
    pieces = window.pieces
    row, found = _runs(window.bounds[rows], window.bounds[rows + 1])
    # One rank's rows follow each other: then views will do.
    together = len(rows) and rows[-1] - rows[0] == len(rows) - 1
    k = slice(int(found[0]), int(found[-1]) + 1) if together else found
    patches = pieces.patches
    if len(patches):
        edges = np.searchsorted(patches[:, 0], [rows, rows + 1])
        patched, found = _runs(*edges)
        patches = patches[found]  # a copy
        patches[:, 0] = patched + at
    return Segments(
        len(rows),
        row + at,
        pieces.slot[k],
        pieces.start[k],
        pieces.size[k],
        pieces.inputs[k],
        pieces.begins[k],
        pieces.border[k],
        patches,
    )


def _runs(first: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers first[k] … stop[k] − 1 for every k, one run after the other, and the k of each."""
    n = stop - first
    ends = np.cumsum(n)
    k = np.repeat(np.arange(len(n)), n)
    return k, np.arange(len(k)) + (first - ends + n)[k]
