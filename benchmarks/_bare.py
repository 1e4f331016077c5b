"""ZooKeeper spoken over a bare socket: many reads or writes, some under way, and nothing that anybody needs besides.

It does not reconnect, log in or know a chroot, and it runs on one thread: what a client that does all that loses by it
is measured against this.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

UNDER_WAY = 8
SINGLE_TOGETHER, SINGLE_UNDER_WAY = 64, 384
MULTI_READ = 22
CLOSE = -11
REPLY_HEADER = 16


class BareClient:
    """A session."""

    def __init__(self, hosts: str) -> None:
        host, _, port = hosts.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 20)
        self._xid = 0
        self._send(struct.pack(">iqiqi16s", 0, 0, 30_000, 0, 16, bytes(16)))
        self._receive()

    def read_many(self, questions: Iterable[tuple[Any, bytes]]) -> Iterator[tuple[Any, bytes]]:
        """The answers to requests for many reads, each with what it was asked with."""
        waiting: deque[Any] = deque()
        for key, operations in questions:
            self._xid += 1
            self._send(struct.pack(">ii", self._xid, MULTI_READ) + operations)
            waiting.append(key)
            if len(waiting) >= UNDER_WAY:
                yield waiting.popleft(), self._receive()[REPLY_HEADER:]
        while waiting:
            yield waiting.popleft(), self._receive()[REPLY_HEADER:]

    def read_each(self, kind: int, paths: Sequence[str]) -> list[bytes]:
        """The answers to one request for each path, of which many are under way."""
        answers: list[bytes] = []
        for start in range(0, len(paths), SINGLE_TOGETHER):
            some = [path.encode() for path in paths[start : start + SINGLE_TOGETHER]]
            self._socket.sendall(b"".join(self._single(kind, path) for path in some))
            while start + len(some) - len(answers) > SINGLE_UNDER_WAY:
                answers.append(self._receive()[REPLY_HEADER:])
        while len(answers) < len(paths):
            answers.append(self._receive()[REPLY_HEADER:])
        return answers

    def _single(self, kind: int, path: bytes) -> bytes:
        self._xid += 1
        return struct.pack(">iiii", 13 + len(path), self._xid, kind, len(path)) + path + b"\0"

    def write_each(self, requests: Sequence[tuple[int, bytes]]) -> None:
        """Make these requests, each a type and its body. They must succeed."""
        for start in range(0, len(requests), SINGLE_TOGETHER):
            some = requests[start : start + SINGLE_TOGETHER]
            self._socket.sendall(b"".join(self._framed(kind, body) for kind, body in some))
            for _ in some:
                [error] = struct.unpack_from(">i", self._receive(), REPLY_HEADER - 4)
                if error:
                    raise OSError(f"error {error}")

    def _framed(self, kind: int, body: bytes) -> bytes:
        self._xid += 1
        return struct.pack(">iii", 8 + len(body), self._xid, kind) + body

    def close(self) -> None:
        """End the session."""
        self._send(struct.pack(">ii", self._xid + 1, CLOSE))
        self._receive()
        self._socket.close()

    def _send(self, message: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(message)) + message)

    def _receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(length)
