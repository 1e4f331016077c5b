"""Frames are found in bytes that arrive in any pieces. Large ones do not delay other clients."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups.gateway.connections.streams import LARGE, on_thread_if_large
from zkgroups.gateway.protocol.frames import FrameError, FrameSplitter

LONGEST = 1000

frames = st.lists(st.tuples(st.binary(min_size=4, max_size=60), st.booleans()), max_size=8)
"""Frames, and whether each is passed on or taken as a whole."""


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut data into pieces of these sizes, and a rest."""
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [each for each in (*found, data) if each]


@settings(deadline=None)
@given(frames, st.lists(st.integers(1, 80)), st.sampled_from([1, 4, 20, 100]), st.booleans())
def test_frames_are_the_same_however_their_bytes_arrive(
    given: list[tuple[bytes, bool]], sizes: list[int], looked_at: int, takes_late: bool
) -> None:
    splitter, left = FrameSplitter(longest=LONGEST), list(given)
    passed_on, wholes = b"", []
    for data in pieces(b"".join(framed(frame) for frame, _ in given), sizes):
        splitter.add(data)
        while left:
            frame, passes_on = left[0]
            if (start := splitter.start(looked_at)) is None:
                break
            assert start == frame[:looked_at]
            if passes_on:
                splitter.pass_on()
            else:
                passed_on += splitter.take()
                if (whole := splitter.whole()) is None:
                    break
                wholes.append(whole)
            del left[0]
        if not takes_late:
            passed_on += splitter.take()
    passed_on += splitter.take()
    assert passed_on == b"".join(framed(frame) for frame, passes_on in given if passes_on)
    assert wholes == [frame for frame, passes_on in given if not passes_on]
    assert not splitter.is_incomplete


def test_a_frame_is_passed_on_before_it_is_complete() -> None:
    splitter = FrameSplitter(longest=LONGEST)
    data = framed(bytes(range(100)))
    splitter.add(data[:20])
    splitter.pass_on()
    assert splitter.take() == data[:20]
    assert splitter.is_within
    splitter.add(data[20:50])
    assert (splitter.start(4), splitter.take(), splitter.held) == (None, data[20:50], 0)
    splitter.add(data[50:] + framed(b"next"))
    assert splitter.start(4) == b"next"
    assert (splitter.take(), splitter.is_within, splitter.whole()) == (data[50:], False, b"next")


@pytest.mark.parametrize("size", [-1, 0, 3, LONGEST + 1, 2**31 - 1])
def test_a_frame_of_an_impossible_size_is_refused(size: int) -> None:
    splitter = FrameSplitter(longest=LONGEST)
    splitter.add(struct.pack(">i", size))
    with pytest.raises(FrameError, match=f"a frame has {size} bytes; only 4 to 1000"):
        splitter.start(8)


def test_large_messages_are_converted_on_another_thread() -> None:
    async def main() -> list[int]:
        return [await on_thread_if_large(size, threading.get_ident) for size in (LARGE, LARGE + 1)]

    here, elsewhere = asyncio.run(main())
    assert here == threading.get_ident() != elsewhere
