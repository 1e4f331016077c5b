"""Run the command: in this process, or as users do, as a process with pipes, or on a terminal."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from unittest import mock

import pytest

COMMAND = str(Path(sys.executable).with_name("zkgroups"))
TIMEOUT = 120.0

Argument = str | bytes | Path


@dataclass(frozen=True)
class Ended:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests, without the options of the command and without contexts."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZKGROUPS_")}
    ours = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": "", "ZKGROUPS_CONFIG": os.devnull}
    return clean | ours | dict(more or {})


def run(
    *arguments: Argument,
    env: Mapping[str, str] | None = None,
    main: Callable[[], int] | None = None,
    together: bool = False,
) -> Ended:
    """Run a command, or `main`, to its end, in this process: starting Python takes longer than most commands.

    With `together`, stdout also has what stderr prints. A new process is started for settings that Python or Java read
    at their start, and outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or any(map(_READ_AT_A_START.match, env or ())):
        return run_installed(*arguments, env=env)
    from zkgroups_cli.main import run as run_here

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _as_a_process(environment(env), out, out if together else err):
            code = main() if main else run_here([os.fsdecode(word) for word in arguments])
        out.seek(0)
        err.seek(0)
        return Ended(int(code), out.read().decode(), err.read().decode())


_READ_AT_A_START = re.compile("PYTHON|LC_|LANG|JAVA_HOME$|PATH$")
_SUBREAPER: Final = 36


@contextlib.contextmanager
def _as_a_process(environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Give this process the environment, the log and the standard files of a new one, also for its children.

    Afterwards, undo all that a command changes for its process.
    """
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    root, kept = logging.getLogger(), [os.dup(number) for number in range(3)]
    level = root.level
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ, environ, clear=True),
        warnings.catch_warnings(),
        Path(os.devnull).open("rb") as nothing,
    ):
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        patch.setattr(threading, "excepthook", threading.excepthook)
        for logger in logging.root.manager.loggerDict.values():
            if isinstance(logger, logging.Logger):
                patch.setattr(logger, "handlers", [*logger.handlers])
        patch.setattr(root, "handlers", [])
        root.setLevel(logging.WARNING)
        for number, file in enumerate((nothing, out, err)):
            os.dup2(file.fileno(), number)
        patch.setattr(sys, "stdin", os.fdopen(0, closefd=False))
        for number, name in (1, "stdout"), (2, "stderr"):
            stream = os.fdopen(number, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
            patch.setattr(sys, name, stream)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, file in enumerate(kept):
                os.dup2(file, number)
                os.close(file)
            for number, handler in signals.items():
                signal.signal(number, handler)
            ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)  # `claim -- COMMAND` adopts orphans
            root.setLevel(level)


def run_installed(*arguments: Argument, env: Mapping[str, str] | None = None) -> Ended:
    """Run the installed command to its end."""
    command = [COMMAND, *arguments]
    done = subprocess.run(command, env=environment(env), capture_output=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_without_space(*arguments: Argument, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command that cannot write a single byte to a file, as on a full disk."""
    command = ["sh", "-c", 'ulimit -f 0; exec "$0" "$@"', COMMAND, *arguments]
    done = subprocess.run(command, env=environment(env), capture_output=True, text=True, timeout=TIMEOUT)
    return Ended(done.returncode, done.stdout, done.stderr)


def hear_ctrl_c() -> None:
    """Restore the handling of Ctrl-C in a command that is about to run, because this process may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Press Ctrl-C once, and wait for the end."""
    process.send_signal(signal.SIGINT)
    process.wait(TIMEOUT)


@contextlib.contextmanager
def started(
    *arguments: Argument, env: Mapping[str, str] | None = None, program: Sequence[str] = (COMMAND,)
) -> Iterator[subprocess.Popen[str]]:
    """A command that keeps running. It is killed if the test does not end it."""
    process = subprocess.Popen(
        [*program, *arguments],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended_of(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end of a command that was started."""
    out, err = process.communicate(timeout=TIMEOUT)
    return Ended(process.returncode, out, err)


class Terminal:
    """A command on its own terminal, where Ctrl-C is a key and questions can be answered."""

    def __init__(self, *arguments: Argument, env: Mapping[str, str] | None = None, columns: int = 100) -> None:
        self._screen, keyboard = pty.openpty()
        termios.tcsetwinsize(keyboard, (24, columns))
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            env=environment(env),
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(keyboard)
        self.seen = ""
        self._text = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text appears."""
        while text not in self.seen:
            assert self._read(), f"the command ended without {text!r}:\n{self.seen}"

    def end(self) -> Ended:
        """Read until the command has ended. On a terminal, stdout and stderr are one stream."""
        while self._read():
            pass
        return Ended(self.process.wait(TIMEOUT), self.seen.replace("\r\n", "\n"), "")

    def _read(self) -> bool:
        """Read once. Return False at the end."""
        try:
            more = os.read(self._screen, 65536)
        except OSError:  # Linux reports the end like this
            more = b""
        self.seen += self._text.decode(more)
        return bool(more)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(TIMEOUT)
        os.close(self._screen)
