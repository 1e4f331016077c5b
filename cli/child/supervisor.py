"""A separate program, started by `child_process.py`: run a command, and stop it together with all its descendants.

It stands between the holder of a claim and the command, so that the command ends in time even if the holder is killed,
suspended or blocked. The holder periodically sends the time until which the claim is certain. The command is stopped
when that time has passed, when the holder requests it, and when the holder dies, which closes the pipe. Stopping means
SIGTERM, and SIGKILL after the grace time. When the command has ended, its remaining descendants are stopped. On Linux
orphans become children of this process, even if they have left the command's process group, so none is missed.

Two processes run this program: the supervisor, and its parent, the guardian, which only waits. If the supervisor is
suspended, the guardian resumes it. If the supervisor is killed, the kernel kills the command. All other processes that
the command has started become children of the guardian, which kills them, even if the holder was killed at the same
moment. If the guardian is killed, the supervisor continues, and the holder takes the guardian's place. So processes are
left only if SIGKILL hits the holder, the supervisor and the guardian at once.

It runs with `python -I -S`, and needs only the standard library. Its orders are lines: `until TIME` (on a clock that
also runs while the machine sleeps) and `stop SIGNAL`. Its reports are lines, too: `started PID`, `failed REASON`,
`ended CODE itself`, `ended CODE stopped`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SET_DEATH_SIGNAL = 1
_BECOME_REAPER_OF_ORPHANS = 36
_PACE = 0.25  # in seconds: after the machine slept, a longer wait might end too late
_PACE_OF_STOPPING = 0.02
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Supervision:
    """One command, from its start until all its processes have ended."""

    def __init__(self, orders: int, reports: int, *, grace: float, until: float, holders_group: int) -> None:
        self._orders, self._reports = orders, reports
        self._grace, self._until = grace, until
        self._holders_group = holders_group
        self._unread = b""
        self._leader = 0
        self._code: int | None = None
        self._kill_at: float | None = None
        self._by_itself = True
        self._asked: set[int] = set()
        self._wants_terminal = False
        self._terminal: tuple[int, list[object]] | None = None
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self, command: list[str]) -> None:
        """Start the command. Return when it and all its descendants have ended."""
        try:
            # Keep the object: Python reaps a process whose object is deleted, and its status would be lost.
            self._process = subprocess.Popen(command, process_group=0, preexec_fn=self._before_command)
        except OSError as error:
            self._report(f"failed {error.strerror}")
            return
        self._leader = self._process.pid
        close_input()
        while self._is_running():
            self._listen()
            self._act()
        self._take_terminal_back()
        self._report(f"ended {self._code} {'itself' if self._by_itself else 'stopped'}")

    def _before_command(self) -> None:
        """Run in the new process before the command: tie its life to ours, and report its pid."""
        _control(_SET_DEATH_SIGNAL, signal.SIGKILL)
        self._report(f"started {os.getpid()}")

    def _report(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the holder may have died
            os.write(self._reports, f"{line}\n".encode())

    # Running processes

    def _is_running(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return self._send(0)  # no child is left; where orphans are not adopted, only their group shows
            if pid == 0:
                return True
            if pid == self._leader:
                self._leader_changed(status)

    def _leader_changed(self, status: int) -> None:
        """Handle the end or the suspension of the command.

        A command suspended for reading from the terminal gets the terminal. One suspended by Ctrl-Z is resumed, because
        a claim cannot be suspended.
        """
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            self._code = code if code >= 0 else 128 - code
        elif os.WSTOPSIG(status) in {signal.SIGTTIN, signal.SIGTTOU}:
            self._wants_terminal = True
        elif os.WSTOPSIG(status) == signal.SIGTSTP:
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> bool:
        """Send a signal to the command's process group. Return False if the group is empty."""
        try:
            os.killpg(self._leader, number)
        except PermissionError:
            return True
        except ProcessLookupError:
            return False
        return True

    # Listening to the holder

    def _listen(self) -> None:
        pipes = [self._woken] if self._orders < 0 else [self._woken, self._orders]
        readable = ready(pipes, self._wait_time())
        if self._woken in readable:
            os.read(self._woken, 4096)
        if self._orders in readable:
            self._obey(os.read(self._orders, 65536))

    def _wait_time(self) -> float:
        if self._kill_at is not None or self._code is not None:
            return _PACE_OF_STOPPING
        return min(max(self._until - _now(), 0.0), _PACE)

    def _obey(self, data: bytes) -> None:
        if not data:
            self._orders = -1
            self._stop(signal.SIGTERM)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order, value = line.split()
            if order == b"until":
                self._until = float(value)
            else:
                self._stop(int(value))

    def _act(self) -> None:
        if self._kill_at is None and self._code is None and _now() >= self._until:
            self._stop(signal.SIGTERM)
        if self._wants_terminal:
            self._lend_terminal()
        if self._kill_at is None and self._code is None:
            return
        if self._kill_at is None:
            self._end_all(signal.SIGTERM)  # the remaining descendants
        elif _now() >= self._kill_at:
            self._send(signal.SIGKILL)
            for pid in descendants():
                _kill(pid, signal.SIGKILL)
        else:
            self._ask_orphans()

    def _stop(self, number: int) -> None:
        if self._kill_at is None:
            self._by_itself = self._code is not None
            self._end_all(number)

    def _end_all(self, number: int) -> None:
        """Begin to stop all processes. If the supervisor was late, the grace time is shorter."""
        self._kill_at = min(_now(), self._until) + self._grace
        self._send(number)
        self._send(signal.SIGCONT)  # a suspended process does not receive it
        self._ask_orphans()

    def _ask_orphans(self) -> None:
        """Send SIGTERM to orphans outside of the process group. Other processes may be stopped by their own parent."""
        for pid, (_state, parent, group) in processes().items():
            if parent == os.getpid() and group != self._leader and pid not in self._asked:
                self._asked.add(pid)
                _kill(pid, signal.SIGTERM)
                _kill(pid, signal.SIGCONT)

    # The terminal

    def _lend_terminal(self) -> None:
        """Put the command in the foreground instead of the holder.

        Only a command that reads from the terminal gets it, so that until then Ctrl-C goes to the holder.
        """
        with contextlib.suppress(OSError, termios.error):
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            if os.tcgetpgrp(terminal) != self._holders_group:
                os.close(terminal)
                return  # in the background, the command waits
            self._terminal = terminal, termios.tcgetattr(terminal)
            _put_in_foreground(terminal, self._leader)
        self._wants_terminal = False
        self._send(signal.SIGCONT)

    def _take_terminal_back(self) -> None:
        if self._terminal is not None:
            terminal, settings = self._terminal
            with contextlib.suppress(OSError, termios.error):
                _put_in_foreground(terminal, self._holders_group)
                termios.tcsetattr(terminal, termios.TCSADRAIN, settings)  # type: ignore[arg-type]


def close_input() -> None:
    """Replace an input that is a pipe: its writer should notice when the command has closed it."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)


def ready(pipes: list[int], seconds: float) -> list[int]:
    """Wait until a pipe can be read, and return those that can. `select` does not accept descriptors over 1,023."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    return [pipe for pipe, _event in poll.poll(seconds * 1000)]


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def guard(supervisor: int) -> None:
    """Wait until the supervisor ends, and kill its remaining descendants. Only a killed supervisor leaves any.

    If the supervisor is suspended, resume it: it must end the command in time.
    """
    signal.signal(signal.SIGCONT, lambda *_: _kill(supervisor, signal.SIGCONT))  # both may be suspended
    _rename(f"guardian of {supervisor}")
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid == supervisor:
            if not os.WIFSTOPPED(status):
                break
            _kill(supervisor, signal.SIGCONT)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)  # its pid may have been reused
    kill_descendants()


def kill_descendants() -> None:
    """Kill all descendants, and return when none is left. Wait for processes that cannot be killed."""
    pace = _PACE_OF_STOPPING
    while left := descendants():
        for pid in left:
            _kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(pace)
        pace = min(2 * pace, _PACE)


def _rename(title: str) -> None:
    """Replace the command line that `ps` shows, so that `pkill -f supervisor.py` does not kill both processes."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no /proc on this system
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < start < end:
            ctypes.memset(start, 0, end - start)
            text = title.encode()[: end - start - 1]
            ctypes.memmove(start, text, len(text))


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def processes() -> dict[int, tuple[str, int, int]]:
    """Return the state, parent and process group of all processes; nothing on systems without /proc."""
    found: dict[int, tuple[str, int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, group, *_ = file.read_bytes().rpartition(b")")[2].split()
            found[int(file.parent.name)] = state.decode(), int(parent), int(group)
    return found


def descendants() -> list[int]:
    """Return the pids of the descendants of this process."""
    children: dict[int, list[int]] = {}
    for pid, (_state, parent, _group) in processes().items():
        children.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _control(option: int, value: int) -> None:
    """Call prctl on Linux. Do nothing on other systems."""
    if sys.platform == "linux":
        _LIBC.prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Adopt orphaned descendants from now on (Linux only)."""
    _control(_BECOME_REAPER_OF_ORPHANS, 1)


_LIBC = ctypes.CDLL(None)


def _put_in_foreground(terminal: int, group: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(terminal, group)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


def main(arguments: list[str]) -> None:
    """Run a command. The arguments: two pipes, the grace time, the end of the claim, the holder's group, the command.

    This forks: the process that the holder has started becomes the guardian, and its child the supervisor.
    """
    orders, reports, grace, until, holders_group, *command = arguments
    for number in (*_IGNORED, signal.SIGCHLD):
        if signal.getsignal(number) is not signal.SIG_IGN:  # the command inherits ignored signals, but no handlers
            signal.signal(number, lambda *_: None)
    adopt_orphans()
    if supervisor := os.fork():
        close_input()
        for pipe in (int(orders), int(reports)):
            os.close(pipe)  # otherwise the pipes would stay open when the supervisor or the holder ends
        guard(supervisor)
        return
    os.setpgid(0, 0)
    adopt_orphans()
    supervision = Supervision(
        int(orders), int(reports), grace=float(grace), until=float(until), holders_group=int(holders_group)
    )
    for pipe in (int(orders), int(reports)):
        os.set_inheritable(pipe, False)
    supervision.run(command)


if __name__ == "__main__":
    main(sys.argv[1:])
