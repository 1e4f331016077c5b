"""The file that keeps a session beyond the end of its process: who starts next with the same file goes on with it.

Two processes on one session would take it from each other for ever, and neither would be told why. So the file is
locked as long as it is in use. The lock ends with the process, however that ends, and is not handed on to its children.
It holds on one machine only: the file belongs on a disk that no other one has.

What is written is one short record, in place and at once, for the lock is on this very file and would not move to
another. So who is killed leaves one record or the next. Nothing waits for the disk: after a crash of the whole machine
the file may name a session that has ended, or none, and then a new one begins, as it would without a file.

If a process resumed the session from a copy of the file while the first process lives, each claim would be held twice.
The lock does not prevent this, because the copy has a lock of its own. So the record identifies the file, by its device
and inode number, and the boot of the machine. On a cloned volume, in a restored backup, and after a reboot one of them
differs. Then a new session is started.

The record also has the smallest timeout that the session was granted. A new leader uses the timeout at the creation of
the session, and no server reports that one later. So a session is not resumed from a record without it.

The servers are not written down. They may get other names; and to those of another ZooKeeper the session is one that
has ended. What stands before all paths is, as the session would keep alive what was registered there.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakSet

from kazoo.protocol.states import KazooState

from ...core.znodes.session_ids import session_hex
from ...exceptions import InvalidOptionError, SessionInUseError
from .credentials import SessionCredentials
from .session import Session

log = logging.getLogger("zkgroups.session")

_MARK: Final = b'{"zkgroups": '
"""How each record begins: a file that begins otherwise is somebody's, and is not written over."""
_MODE: Final = 0o600
_LONGEST: Final = 4_096
_BLANK: Final = b"\0\r\n\t "
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Changes with each boot. Containers have the id of their host."""
_IDS: Final = range(-(2**63), 2**63)
_LONGEST_TIMEOUT: Final = 2**31


@dataclass(frozen=True, slots=True)
class Kept:
    """A session, and the smallest timeout that it was granted, in seconds. None in a record of an older release."""

    credentials: SessionCredentials
    timeout: float | None

    @property
    def session_id(self) -> int:
        """The id of the session."""
        return self.credentials.session_id

    @property
    def hex(self) -> str:
        """The id of the session, for messages."""
        return session_hex(self.session_id)


class SessionFile:
    """One such file, open and locked. `past` is the session that it named."""

    def __init__(self, path: Path, fd: int, chroot: str) -> None:
        self.path = path
        self.past: Kept | None = None
        self.resumed = False
        """Whether the session that it named was still there, and goes on."""
        self._chroot = chroot
        self._place = ""
        self._lock = threading.Lock()  # guards what is below, also while it is written
        self._fd: int | None = fd
        self._saved: Kept | None = None
        self._length = 0
        self._client: Any = None
        _OPEN.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, chroot: str) -> Self:
        """Open it, or make it, for nobody else to read; `SessionInUseError` where another process has it open."""
        if not isinstance(path, str | os.PathLike):
            raise InvalidOptionError("session_file", path, "it must be the path of a file")
        where = Path(path)
        try:
            file = cls(where, os.open(where, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE), chroot)
        except (OSError, ValueError) as error:
            raise _refused(where, f"it cannot be opened: {_reason(error)}") from error
        try:
            file._begin()
        except BaseException as error:
            file.close(ended=False)
            if isinstance(error, OSError):
                raise _refused(where, f"it cannot be used: {_reason(error)}") from error
            raise
        return file

    def _begin(self) -> None:
        fd = self._fd
        assert fd is not None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(self.path, "it is no ordinary file")
        if status.st_uid != os.geteuid():
            raise _refused(self.path, f"it belongs to another user ({status.st_uid})")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SessionInUseError(str(self.path), _pid(os.pread(fd, _LONGEST, 0))) from error
        self._length = os.fstat(fd).st_size  # who had it until now may have written to it
        self._place = _place(status)
        self.past = self._read(os.pread(fd, _LONGEST + 1, 0).strip(_BLANK))
        if stat.S_IMODE(status.st_mode) != _MODE:
            self._close_to_others(fd, status.st_mode)
        self._write(self.past)

    def _read(self, data: bytes) -> Kept | None:
        if not data:
            return None
        if not data.startswith(_MARK) or len(data) > _LONGEST:
            raise _refused(self.path, "it holds something else, which would be written over")
        found = _decode(data)
        if found is None:
            log.warning("session file %s is damaged; starting a new session", self.path)
            return None
        chroot, place, past = found
        if place != self._place and past is not None:
            log.warning(
                "session file %s is a copy, or older than the last boot: session %s is not resumed, starting a new one",
                self.path,
                past.hex,
            )
            return None
        if chroot != self._chroot and past is not None:
            log.warning(
                "session file %s is for chroot %s, not %s; session %s is left alone",
                self.path,
                chroot or "/",
                self._chroot or "/",
                past.hex,
            )
            return None
        if past is not None and past.timeout is None:
            log.warning(
                "session file %s is from an older release, without the session timeout: "
                "session %s is not resumed, starting a new one",
                self.path,
                past.hex,
            )
            return None
        return past

    def _close_to_others(self, fd: int, mode: int) -> None:
        if stat.S_IMODE(mode) & ~_MODE:
            log.warning(
                "session file %s was accessible to other users (%o); restricted to its owner",
                self.path,
                stat.S_IMODE(mode),
            )
        os.fchmod(fd, _MODE)

    # Following a client

    def follow(self, client: Any) -> None:
        """Write the session of the client to the file now, and after each reconnect."""
        self._client = client
        past, self.resumed = self.past, self.past is not None and client._session_id == self.past.session_id
        if past is not None:
            became = "resumed" if self.resumed else "expired, started a new one"
            log.info("session %s from %s: %s", past.hex, self.path, became)
        client.add_listener(self._on_state)
        try:
            self._save()
        except OSError as error:
            raise _refused(self.path, f"it cannot be written: {_reason(error)}") from error

    def _on_state(self, state: str) -> None:
        """On kazoo's connection thread, which must not wait for a disk; that for completions has no other work."""
        if state == KazooState.CONNECTED:
            self._client.handler.completion_queue.put(self.keep)

    def keep(self) -> None:
        """Write down the session that the client has now; what stands in the way is only logged."""
        try:
            self._save()
        except OSError as error:
            log.error("session file %s cannot be written, the session will end with this process: %s", self.path, error)

    def _save(self) -> None:
        with self._lock:
            found = None if self._client is None else self._client.client_id
            if self._fd is None or found is None or not found[0]:  # who was interrupted as it left has none
                return
            timeout = Session.of(self._client).granted_to(found[0])
            if timeout is not None:  # else there is a newer session by now, and another call for that
                self._write(Kept(SessionCredentials(*found), timeout))

    def _write(self, kept: Kept | None) -> None:
        if self._fd is None or (kept is not None and kept == self._saved):
            return
        data = _encode(self._chroot, self._place, kept)
        # Blanks to the end of what was there: cutting it off is a second step, and who is killed may not come to it.
        os.pwrite(self._fd, data.ljust(self._length), 0)
        self._saved, self._length = kept, max(self._length, len(data))

    def close(self, *, ended: bool) -> None:
        """Let others have the file; empty, if the session has ended."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is None:
                return
            try:
                with suppress(OSError):
                    if ended:
                        os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def _forget(self) -> None:
        """In a fork, which has a copy of the file: the lock would last as long as that is open."""
        self._lock = threading.Lock()  # whoever held it is not here
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _place(status: os.stat_result) -> str:
    """Identify the file, and the boot of the machine."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:  # elsewhere than on Linux
        boot = socket.gethostname()
    return f"{boot} {status.st_dev:x}:{status.st_ino:x}"


def _encode(chroot: str, place: str, kept: Kept | None) -> bytes:
    session = None if kept is None else kept.credentials.dump()
    record = {"zkgroups": 1, "chroot": chroot, "pid": os.getpid(), "place": place, "session": session}
    if kept is not None:
        record["timeout"] = kept.timeout
    return json.dumps(record).encode() + b"\n"


def _decode(data: bytes) -> tuple[str, str, Kept | None] | None:
    """Decode the chroot, the place, and the session if it has one. None if the record is damaged."""
    try:
        fields = json.loads(data)
        if fields["zkgroups"] != 1:
            return None
        session = None if fields["session"] is None else SessionCredentials.load(fields["session"])
        chroot, place, timeout = str(fields["chroot"]), str(fields["place"]), fields.get("timeout")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    if session is None:
        return chroot, place, None
    if session.session_id not in _IDS or not session.session_id or not (timeout is None or _is_timeout(timeout)):
        return None
    return chroot, place, Kept(session, timeout)


def _is_timeout(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST_TIMEOUT


def _pid(data: bytes) -> int | None:
    """Which process has written this."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        pid = json.loads(data.strip(_BLANK))["pid"]
        return pid if isinstance(pid, int) else None
    return None


def _refused(path: Path, reason: str) -> InvalidOptionError:
    return InvalidOptionError("session_file", str(path), reason)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_OPEN: Final[WeakSet[SessionFile]] = WeakSet()


def _forget_all() -> None:
    for file in list(_OPEN):
        file._forget()


os.register_at_fork(after_in_child=_forget_all)
