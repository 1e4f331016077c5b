"""A child process that dies with its parent, also when the parent is killed with SIGKILL and can clean up nothing.

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

# The watcher is a second process, so that the first can wait for the command and end with its status.
# Descriptor 3: the shell gives what it starts in the background /dev/null as its standard input.
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
    """A running command; what it prints goes to the end of the file `log`.

    `scratch` is a directory that goes with it when the parent dies and can remove nothing. It runs in `directory`, or
    where its parent runs.
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
                # Ctrl-C at a terminal goes to the whole group: the parent decides what it means for the server.
                start_new_session=True,
            )
        _alive.add(self)
        self.pid = self._read_pid()

    @property
    def running(self) -> bool:
        """Whether the command has not ended; a suspended one runs."""
        # Asked again and again, and Ctrl-C may come at any time: inside `Popen.wait` it can leave a lock behind.
        if self._guard.returncode is None and self._nothing_to_reap():
            return True
        return self.wait(0) is None

    def _nothing_to_reap(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._guard.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def wait(self, timeout: float) -> int | None:
        """The exit status, 128 + n when signal n ended it, or None when it still runs after `timeout` seconds."""
        try:
            status = self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._let_go()
        return status

    def stop(self, *, timeout: float = 5.0) -> None:
        """Ask it to end, and kill it when it has not after `timeout` seconds."""
        self._send(signal.SIGTERM)
        # One that is suspended hears nothing until it is resumed.
        self._send(signal.SIGCONT)
        if self.wait(timeout) is None:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a power cut would; this works on a suspended process, too."""
        self._send(signal.SIGKILL)
        self._guard.wait()
        self._let_go()

    def suspend(self) -> None:
        """Stop it from running at all, as a very long garbage collection would; it stands still when this returns."""
        self._send(signal.SIGSTOP)
        deadline = time.monotonic() + _STANDSTILL
        while self.running and not self._stands_still() and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _stands_still(self) -> bool:
        """Whether none of its threads runs, as far as the system tells; they are stopped one after the other."""
        states = []
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(OSError):  # a thread that has ended
                states.append(stat.read_text().rpartition(")")[2].split()[0])
        return all(state in "TtZX" for state in states)

    def resume(self) -> None:
        """Let a suspended process run on."""
        self._send(signal.SIGCONT)

    def tail(self, lines: int = 40) -> str:
        """The last lines of what it printed."""
        text = self.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _read_pid(self) -> int:
        with cast(IO[bytes], self._guard.stdout) as stdout:
            line = stdout.readline()
        if not line:
            raise ServerStartError(f"/bin/sh did not start the process:\n{self.tail()}")
        return int(line)

    def _send(self, number: signal.Signals) -> None:
        # The guard reaps the process and ends with it: while it runs, the pid cannot be somebody else's.
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
