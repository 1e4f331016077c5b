"""A child process that ends with its parent, even if the parent is killed with SIGKILL.

A small `sh` stands between the two. It starts the command and reads from a pipe that only this Python process can
write to. The kernel closes the pipe when this process ends, however it ends, the read returns, and the command is
killed. (The death signal of Linux is tied to the thread that started the child: a child of a thread that ended would
be killed at once. The pipe is not, and it works wherever there is a shell.)

Other children must not hold the pipe open. Programs started by `subprocess` do not inherit it; a plain `os.fork()`, as
`multiprocessing` does it, would: a hook closes it there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, cast

from zkgroups.exceptions import ServerStartError

# A second process watches the pipe, so that the first can wait for the command and return its status.
# Descriptor 3, because the shell redirects the standard input of background commands to /dev/null.
_GUARD = """
exec 3<&0
scratch=$1
shift
"$@" </dev/null >&2 3<&- &
child=$!
{ read -r _ <&3; trap '' TERM; kill -9 "$child"; [ -z "$scratch" ] || rm -rf "$scratch"; } >&2 &
watcher=$!
echo "$child"
wait "$child"
status=$?
kill "$watcher"
exit "$status"
"""

# In seconds.
_STANDSTILL = 5.0
_POLL = 0.002

_alive: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


class ChildProcess:
    """A running command. Its output is appended to the file `log`.

    The directory `scratch` is deleted if the parent is killed. The command runs in `directory`, by default that of its
    parent.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, scratch: Path | None = None, directory: Path | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", str(scratch or ""), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=directory,
                # Ctrl-C in a terminal reaches the whole process group. Only the parent must react to it.
                start_new_session=True,
            )
        _alive.add(self)
        self.pid = self._read_pid()

    @property
    def running(self) -> bool:
        """True while the command runs, also when it is suspended."""
        # Poll: a Ctrl-C inside of `Popen.wait` can leave a lock held.
        if self._guard.returncode is None and self._nothing_to_reap():
            return True
        return self.wait(0) is None

    def _nothing_to_reap(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._guard.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def wait(self, timeout: float) -> int | None:
        """Return the exit status (128 + n for signal n), or None if it still runs after `timeout` seconds."""
        try:
            status = self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._let_go()
        return status

    def stop(self, *, timeout: float = 5.0) -> None:
        """Stop it with SIGTERM, and kill it if it still runs after `timeout` seconds."""
        self._send(signal.SIGTERM)
        # A suspended process receives the signal only after it is resumed.
        self._send(signal.SIGCONT)
        if self.wait(timeout) is None:
            self.kill()

    def kill(self) -> None:
        """Kill it with SIGKILL, also while it is suspended."""
        self._send(signal.SIGKILL)
        self._guard.wait()
        self._let_go()

    def suspend(self) -> None:
        """Suspend it, like a very long garbage collection. It has stopped when this returns."""
        self._send(signal.SIGSTOP)
        deadline = time.monotonic() + _STANDSTILL
        while self.running and not self._stands_still() and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _stands_still(self) -> bool:
        """Return True if the system reports all its threads as stopped. They stop one after the other."""
        states = []
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(OSError):  # a thread that has ended
                states.append(stat.read_text().rpartition(")")[2].split()[0])
        return all(state in "TtZX" for state in states)

    def resume(self) -> None:
        """Resume a suspended process."""
        self._send(signal.SIGCONT)

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of its output."""
        text = self.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _read_pid(self) -> int:
        with cast(IO[bytes], self._guard.stdout) as stdout:
            line = stdout.readline()
        if not line:
            raise ServerStartError(f"/bin/sh did not start the process:\n{self.tail()}")
        return int(line)

    def _send(self, number: signal.Signals) -> None:
        # The guard reaps the process and ends with it. While it runs, the pid is not reused.
        if self._guard.poll() is None:
            os.kill(self.pid, number)

    def _let_go(self) -> None:
        _alive.discard(self)
        cast(IO[bytes], self._guard.stdin).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _let_go_of_all() -> None:
    for process in list(_alive):
        process._let_go()


os.register_at_fork(after_in_child=_let_go_of_all)
