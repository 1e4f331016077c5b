"""Run the command in a process that is forked from one in which all modules are imported.

Starting Python and importing takes several times as long as most commands, and the tests run a thousand of them.
Each command still has its own process, with arguments, environment, folder and pipes. Tests of the start use new
processes: `running.started` and `running.Terminal`.

This file is also the program that forks.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, BinaryIO, NoReturn

# They import Spark or Arrow, which start threads, or tools of tests.
_LEFT_OUT = {
    "zkgroups.spark",
    "zkgroups.audit",
    "zkgroups.migration",
    "zkgroups.snapshots",
    "zkgroups.tables",
    "zkgroups.datadir",
    "zkgroups.testing",
    "zkgroups_cli.demo",
    "zkgroups_cli.__main__",
}

# In the process of the tests


def run(
    command: Sequence[str | bytes | Path], env: Mapping[str, str], *, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Like subprocess.run with captured output and an empty input, for the `zkgroups` command."""
    told, said = _pipe(), _pipe()
    status, its_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryFile() as asked, status, told[0], said[0]:
        with told[1], said[1], its_status:
            pickle.dump(([os.fsdecode(word) for word in command], dict(env), str(Path.cwd())), asked)
            asked.flush()
            fds = [each.fileno() for each in (asked, told[1], said[1], its_status)]
            socket.send_fds(_forker(), [b"!"], fds)
        with ThreadPoolExecutor(2) as pool:
            out, err = pool.submit(told[0].read), pool.submit(said[0].read)
            pid = int(status.recv(20))
            try:
                status.settimeout(timeout)
                code = int(status.recv(20))
            except BaseException as error:
                os.kill(pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(command, timeout) from None
                raise
            return subprocess.CompletedProcess(command, code, out.result(), err.result())


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


@cache
def _forker() -> socket.socket:
    """The connection to the process that forks. That process ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-P", __file__, str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


# In the process that forks


def _serve(asking: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(asking, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _end(key.fd, *running.pop(key.fd))
                elif (begun := _begin(asking)) is None:
                    return
                else:
                    running[begun[0]] = begun[1:]
                    selector.register(begun[0], selectors.EVENT_READ)


def _begin(asking: socket.socket) -> tuple[int, int, socket.socket] | None:
    """Fork for the next request. Return the file to wait for, the process, and the pipe for its status."""
    message, fds, *_ = socket.recv_fds(asking, 1, 4)
    if not message:
        return None
    status = socket.socket(fileno=fds.pop())
    if (pid := os.fork()) == 0:
        asking.close()
        status.close()
        _become(*fds)
    for fd in fds:
        os.close(fd)
    status.send(str(pid).encode())
    return os.pidfd_open(pid), pid, status


def _end(pidfd: int, pid: int, status: socket.socket) -> None:
    os.close(pidfd)
    _, how = os.waitpid(pid, 0)
    with status, suppress(OSError):  # the reader may have given up
        status.send(str(os.waitstatus_to_exitcode(how)).encode())


def _become(asked: int, *standard: int) -> NoReturn:
    with os.fdopen(asked, "rb") as file:
        file.seek(0)
        sys.argv, environment, folder = pickle.load(file)
    for number, fd in enumerate(standard, 1):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main: Any = import_module("zkgroups_cli.main")
    sys.exit(main.main())


def _prepare() -> None:
    """Import the modules of all commands, and the modules that commands import when they need them."""
    for package in ("zkgroups", "zkgroups_cli"):
        _import_all(package)
    for name in ("click._textwrap", "configparser", "difflib", "encodings.idna", "importlib.metadata", "rich.cells"):
        import_module(name)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a fork copies one thread only"
    gc.freeze()


def _import_all(package: str) -> None:
    for module in iter_modules(import_module(package).__path__, f"{package}."):
        if module.name not in _LEFT_OUT:
            with suppress(ImportError):  # the command itself reports that
                import_module(module.name)
                if module.ispkg:
                    _import_all(module.name)


if __name__ == "__main__":
    _prepare()
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        _serve(asking)
