"""Writing messages to a pipe: how many of them are written whole."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from zkgroups_cli.consume import byte_sink
from zkgroups_cli.consume.byte_sink import ByteSink

LONG = 3 * select.PIPE_BUF


@dataclass
class Pipe:
    """A pipe, and the sink that writes to it."""

    reader: int
    writer: int
    stopped: bool = False

    def __post_init__(self) -> None:
        self.sink = ByteSink(self.writer, lambda: self.stopped)

    def read(self) -> bytes:
        """Read everything that was written. No more can be written after that."""
        os.close(self.writer)
        with open(self.reader, "rb", closefd=False) as file:
            return file.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    yield pipe
    for descriptor in (pipe.reader, pipe.writer):
        with suppress(OSError):  # the test has closed it
            os.close(descriptor)


def lines(count: int, size: int) -> list[bytes]:
    return [f"{number}".ljust(size - 1).encode() + b"\n" for number in range(count)]


def test_messages_are_written_in_their_order(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_sink, "_MOMENT", 60.0)  # longer than a machine stands still
    messages = [b"", *lines(100, 10), b"", *lines(3, LONG)]
    assert pipe.sink.write(messages) == len(messages)
    assert pipe.sink.write([]) == 0
    assert pipe.read() == b"".join(messages)


@pytest.mark.parametrize("size", [1, 7, 1_000, select.PIPE_BUF])
def test_a_reader_that_stands_still_gets_no_part_of_a_message(pipe: Pipe, size: int) -> None:
    messages = lines(200_000 // size, size)
    count = 0
    while written := pipe.sink.write(messages[count:]):  # more than once if the machine stands still for a moment
        count += written
    assert 0 < count < len(messages)
    assert pipe.read() == b"".join(messages[:count])


def test_a_message_that_has_begun_is_written_to_its_end(pipe: Pipe) -> None:
    messages = lines(100, LONG)
    counts: list[int] = []
    writing = threading.Thread(target=lambda: counts.append(pipe.sink.write(messages)))
    writing.start()
    read = b""
    while writing.is_alive() or select.select([pipe.reader], [], [], 0)[0]:
        if select.select([pipe.reader], [], [], 0.01)[0]:
            read += os.read(pipe.reader, 1_000)
    assert read == b"".join(messages[: counts[0]])


def test_a_message_that_has_begun_is_torn_if_it_is_stopped(pipe: Pipe) -> None:
    messages, pipe.stopped = lines(100, LONG), True
    count = pipe.sink.write(messages)
    written = pipe.read()
    assert count == len(written) // LONG > 0
    assert len(written) % LONG > 0


def test_a_reader_that_has_gone_is_an_error(pipe: Pipe) -> None:
    pipe.sink.check()
    os.close(pipe.reader)
    with pytest.raises(BrokenPipeError):
        pipe.sink.check()
    with pytest.raises(BrokenPipeError):
        pipe.sink.write([b"paid\n"])
