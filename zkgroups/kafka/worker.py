"""The parent's side of the worker process for requests about groups; `worker_main.py` is the program that it runs."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError

from ..deadline import Deadline
from ..input_errors import ZkgroupsException
from .properties import without_secrets

_HERE: Final = Path(__file__).parent
_PACKAGES: Final = {"zkgroups": _HERE.parent, "zkgroups.kafka": _HERE}
# Import only what it needs: the process then starts in half the time.
_PROGRAM: Final = f"""
import sys, types
for name, folder in {[(name, str(folder)) for name, folder in _PACKAGES.items()]}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from zkgroups.kafka.worker_main import main
main()
"""
_COMMAND: Final = (sys.executable, "-c", _PROGRAM)
# In seconds, in addition to the timeouts of the requests.
_START: Final = 10.0
_CHUNK: Final = 1 << 16
_ENDED: Final = re.compile(rb'\n\{"ended": (-?\d+)\}\n\Z')
_LONGEST_END: Final = 64


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to requests, by the number of the request."""

    found: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, KafkaError] = field(default_factory=dict)
    sent: int = 0
    """How many of the requests may have reached a broker."""


class Asker:
    """A worker process with the settings of one client, started by the first request. Not thread-safe."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = bool

    def ask(self, kind: str, waves: Sequence[Sequence[Any]], timeout: float) -> Answers:
        """Send waves of requests, each with a timeout in seconds, and return the answers.

        Requests of one wave are in flight together. If the process crashes or the time is up, answers are missing.
        """
        asked = json.dumps({"config": self._config, "kind": kind, "waves": waves, "timeout": timeout})
        process = self._running()
        heard = bytearray()
        try:
            status = _exchange(process, asked, heard, Deadline(timeout * (1 + len(waves)) + _START))
        except BaseException:
            self.close()
            raise
        if status is None:  # the parent of the copies has ended
            self.close()
            status = process.wait()
        if status > 0:
            raise ZkgroupsException(f"the worker process that asks brokers about groups ended with status {status}")
        return _read(_lines(heard), self._config)

    def close(self) -> None:
        """Kill the process."""
        self._end()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = _start()
            self._end = weakref.finalize(self, _kill, self._process)
        return self._process


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        bufsize=0,
        start_new_session=True,  # Ctrl-C must not reach it
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, unless it has ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with process:  # waits, and closes the pipes
        pass


def _exchange(process: subprocess.Popen[bytes], asked: str, heard: bytearray, deadline: Deadline) -> int | None:
    """Send a request and receive the answers. Return the exit status of the copy, or None if it is unknown."""
    assert process.stdin is not None
    assert process.stdout is not None
    left = memoryview(f"{asked}\n".encode())
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdin, selectors.EVENT_WRITE)
        ready.register(process.stdout, selectors.EVENT_READ)
        while events := ready.select(deadline.remaining):
            for key, _ in events:
                if key.fileobj is process.stdout:
                    chunk = os.read(key.fd, _CHUNK)
                    heard += chunk
                    if end := _ENDED.search(heard, max(0, len(heard) - _LONGEST_END)):
                        return int(end[1])
                    if not chunk:
                        return None
                elif not (left := _rest(key.fd, left)):
                    ready.unregister(process.stdin)
    os.killpg(process.pid, signal.SIGKILL)
    return None


def _rest(pipe: int, question: memoryview) -> memoryview:
    """Write a part of the request, and return the rest. An ended process is detected by the next read."""
    try:
        return question[os.write(pipe, question[:_CHUNK]) :]
    except BrokenPipeError:
        return question[:0]


def _lines(heard: bytearray) -> Iterator[dict[str, Any]]:
    for line in heard.splitlines():
        with suppress(ValueError):  # the last line may be cut off
            if line:
                yield json.loads(line)


def _read(lines: Iterable[Mapping[str, Any]], config: Mapping[str, str]) -> Answers:
    found, errors, sent = {}, {}, 0
    for line in lines:
        if "sent" in line:
            sent = line["sent"]
        elif "found" in line:
            found[line["n"]] = line["found"]
        elif "error" in line:
            code, text = line["error"]
            errors[line["n"]] = KafkaError(code, without_secrets(text, config))
    return Answers(found, errors, sent)
