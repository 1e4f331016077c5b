"""The process that asks brokers about groups: see `isolated_client.py` for why there is one, and `worker_main.py` for
what it does."""

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
# Without what the packages have for others, it is there in half the time.
_PROGRAM: Final = f"""
import sys, types
for name, folder in {[(name, str(folder)) for name, folder in _PACKAGES.items()]}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from zkgroups.kafka.worker_main import main
main()
"""
_COMMAND: Final = (sys.executable, "-c", _PROGRAM)
# In seconds, beside what it waits for brokers.
_START: Final = 10.0
_CHUNK: Final = 1 << 16
_ENDED: Final = re.compile(rb'\n\{"ended": (-?\d+)\}\n\Z')
_LONGEST_END: Final = 64


@dataclass(frozen=True, slots=True)
class Answers:
    """What was got for some questions, by the number of the question."""

    found: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, KafkaError] = field(default_factory=dict)
    sent: int = 0
    """So many of the questions may have reached a broker."""


class Asker:
    """Asks with the settings of one client; it starts when it is first needed, and is one thread's at a time."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = bool

    def ask(self, kind: str, waves: Sequence[Sequence[Any]], patience: float) -> Answers:
        """What was got within so many seconds for each wave, whose questions may be under way together.

        Where a process is ended over some questions, or time is up, their answers are not there.
        """
        asked = json.dumps({"config": self._config, "kind": kind, "waves": waves, "patience": patience})
        process = self._running()
        heard = bytearray()
        try:
            status = _exchange(process, asked, heard, Deadline(patience * (1 + len(waves)) + _START))
        except BaseException:
            self.close()
            raise
        if status is None:  # what starts the others is gone itself
            self.close()
            status = process.wait()
        if status > 0:
            raise ZkgroupsException(f"the process that asks the brokers for groups ended with {status}")
        return _read(_lines(heard), self._config)

    def close(self) -> None:
        """End the process at once, with whatever it is doing."""
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
        start_new_session=True,  # Ctrl-C is for us
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With those that it has started; one that has ended by itself is left as it is."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with process:  # waits, and closes the pipes
        pass


def _exchange(process: subprocess.Popen[bytes], asked: str, heard: bytearray, deadline: Deadline) -> int | None:
    """Send it and hear the answers: with which status who answers has ended, or None where nobody has said so."""
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
    """Send some of it; nothing is left where nobody hears it, of which we hear soon."""
    try:
        return question[os.write(pipe, question[:_CHUNK]) :]
    except BrokenPipeError:
        return question[:0]


def _lines(heard: bytearray) -> Iterator[dict[str, Any]]:
    for line in heard.splitlines():
        with suppress(ValueError):  # it was cut off where somebody was ended
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
