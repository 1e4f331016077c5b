"""A consumer in a process of its own, in any language, that prints what happens to it.

It prints these lines: `assigned [orders-0 orders-1]`, `revoked [orders-1]`, `read orders-0@7`, and when it has been
asked to end, `left` with the milliseconds that this took.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

from zkgroups.testing import ChildProcess

LONGEST = 120.0


class PrintingProcess:
    """A process whose output goes to a log."""

    def command(self, folder: Path) -> list[str]:
        """The command. It may write files into the folder."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="zkgroups-client-"))
        command = self.command(self._folder)
        self._process = ChildProcess(command, log=self._folder / "client.log", scratch=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> list[str]:
        """Wait for its end, and return what it has printed."""
        self._process.wait(LONGEST)
        return self.lines()

    @property
    def running(self) -> bool:
        """Whether it has not ended. A suspended process counts as running."""
        return self._process.running

    def kill(self) -> None:
        self._process.kill()

    def suspend(self) -> None:
        """Suspend it. It runs no more when this returns."""
        self._process.suspend()

    def resume(self) -> None:
        self._process.resume()

    def lines(self) -> list[str]:
        text = self._process.log.read_text(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()


class PrintingConsumer(PrintingProcess):
    """A consumer that prints what happens to it."""

    @property
    def partitions(self) -> set[str]:
        """The partitions that it has now, like `orders-0`."""
        found: set[str] = set()
        for line in self.lines():
            kind, _, names = line.partition(" ")
            some = set(re.findall(r"[^\[\], ]+", names))
            if kind == "assigned":
                found |= some
            elif kind == "revoked":
                found -= some
        return found

    @property
    def read(self) -> list[str]:
        """The messages that it has read, like `orders-0@7`."""
        return [line.removeprefix("read ") for line in self.lines() if line.startswith("read ")]

    def leave(self) -> int:
        """Ask it to end, and return how many milliseconds that took."""
        os.kill(self._process.pid, signal.SIGTERM)
        self._process.wait(LONGEST)
        [left] = [line for line in self.lines() if line.startswith("left ")]
        return int(left.split()[1])
