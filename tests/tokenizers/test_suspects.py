"""Finding suspect code points, and cutting around them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenriver.batches import TextBatch, TokenBatch
from tokenriver.tokenizers.suspects import SuspectFinder
from tokenriver.tokenizers.unicode_suspects import code_points_with_bytes, nfc, numeric, unassigned
from tokenriver.tokenizers.windows import replace_texts, suspect_windows

RNG = np.random.default_rng(1)
SOME = RNG.random(0x110000) < 0.02
SOME[[0x04, 0x41, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF]] = True
FINDER = SuspectFinder(SOME)


@given(st.text(max_size=300))
def test_every_suspect_code_point_is_found_and_nothing_else(text):
    data = np.frombuffer(text.encode(), np.uint8)
    expected, at = [], 0
    for char in text:
        if SOME[ord(char)]:
            expected.append(at)
        at += len(char.encode())
    assert FINDER.positions(data).tolist() == expected


def test_sparse_text_gives_the_same_positions_as_dense_text():
    suspects = np.zeros(0x110000, np.bool_)
    suspects[0x301] = True
    text = ("plain ascii text " * 40 + "é" + "é") * 3 + "日本" + "x"
    data = np.frombuffer(text.encode(), np.uint8)
    mark = "́".encode()
    expected = [i for i in range(len(data)) if data[i : i + 2].tobytes() == mark]
    assert SuspectFinder(suspects).positions(data).tolist() == expected


@given(
    st.lists(st.text(alphabet="ab é!\n\u00a0\u2003Z", max_size=30), min_size=1, max_size=6),
    st.booleans(),
)
def test_windows_cover_every_suspect_and_keep_the_text_borders(texts, cut):
    batch = TextBatch.from_texts(texts)
    suspects = np.zeros(0x110000, np.bool_)
    suspects[ord("Z")] = True
    positions = SuspectFinder(suspects).positions(batch.data)
    if len(positions) == 0:
        return
    windows = suspect_windows(batch, positions, cut=cut)
    assert windows.bounds[windows.of_text].tolist() == batch.offsets.tolist()
    assert (np.diff(windows.bounds) >= 0).all()
    raw = batch.data.tobytes()
    for k, is_suspect in enumerate(windows.is_suspect):
        piece = raw[windows.bounds[k] : windows.bounds[k + 1]]
        assert (b"Z" in piece) == bool(is_suspect)
    assert windows.n_texts == sum("Z" in t for t in texts)


def test_a_window_is_the_words_around_the_suspect():
    batch = TextBatch.from_texts(["one two Zed four", "plain", "Z"])
    windows = suspect_windows(batch, np.array([8, 21]), cut=True)
    pieces = [batch.data[a:b].tobytes() for a, b in zip(windows.bounds, windows.bounds[1:], strict=False)]
    assert pieces == [b"one two", b" Zed", b" four", b"plain", b"Z"]
    assert windows.is_suspect.tolist() == [False, True, False, False, True]


def test_replacing_texts_keeps_the_order():
    batch = TokenBatch(np.arange(6, dtype=np.uint32), np.array([0, 2, 3, 6]))
    others = TokenBatch(np.array([9, 9, 9, 8], np.uint32), np.array([0, 3, 4]), 2)
    merged = replace_texts(batch, others, np.array([True, False, True]))
    assert merged.ids.tolist() == [9, 9, 9, 2, 8]
    assert merged.offsets.tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize(
    ("table", "inside", "outside"),
    [
        (nfc(), "\u0301\u0958\u1161\u11a8\u07fd\u0344\uf900", "éaßЖ日한\u2019"),
        (numeric(), "²½Ⅷ٣๓", "aé日"),
        (unassigned(), "\u0378\U000323b0", "aé日🙂"),
        (code_points_with_bytes([0x04, 0xF1]), "\x04\U00040000", "\x05é日🙂"),
    ],
)
def test_the_sets_hold_what_they_say(table, inside, outside):
    assert all(table[ord(c)] for c in inside)
    assert not any(table[ord(c)] for c in outside)
