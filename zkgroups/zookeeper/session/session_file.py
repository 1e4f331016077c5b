"""A file that keeps a session after its process has ended. The next process with the same file resumes the session.

Two processes with the same session would disconnect each other forever. So the file is locked while it is in use. The
lock ends with the process, and child processes do not inherit it. It holds on one machine only, so the file must be on
a local disk.

The file contains one short record, which is overwritten by a single write: the lock belongs to this file, so the file
cannot be replaced by another. A process that is killed leaves either the old or the new record. Writes are not flushed
to the disk. After a crash of the machine the file may contain an expired session or none. Then a new session is
started, as without a file.

If a process resumed the session from a copy of the file while the first process is alive, each claim would be held
twice. The lock does not prevent this, because the copy has its own lock. So the record identifies the file, by its
device and inode number, and the boot of the machine. On a cloned volume, in a restored backup, and after a reboot one
of them differs. Then a new session is started.

A session that its process has begun to close is not resumed either. A follower that is cut off from its leader may pass
on the request later, and no server refuses it then, because the end of a session is not bound to a connection. So the
record says so before the request is sent. The next process ends that session itself, and starts a new one.

The record also contains the smallest timeout that the session was granted. A new leader uses the timeout at the
creation of the session, and no server reports that one later. So a session is not resumed from a record without it.

The record does not contain the servers, because they may be renamed. Another ensemble reports the session as expired.
It does contain the chroot, because a resumed session keeps the ephemeral nodes under its old chroot alive.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakSet

from kazoo.protocol.states import KazooState

from ...core.session_lifetime import session_hex
from ...exceptions import InvalidOptionError, SessionInUseError
from ..kazoo_compat.internals import run_on_completion_thread
from .security import SessionCredentials
from .session import Session

# The record in a session file: JSON with the session, its chroot, and the identity of the file.


RECORD_BEGIN: Final = b'{"zkgroups": '
"""How each record begins. A file that begins otherwise belongs to another program, and is not overwritten."""
LONGEST_RECORD: Final = 4_096
BLANK: Final = b"\0\r\n\t "
"""Bytes after the record, which are ignored."""
_IDS: Final = range(-(2**63), 2**63)
_LONGEST_TIMEOUT: Final = 2**31


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session, and the smallest timeout that it was granted, in seconds. None in a record of an older release."""

    credentials: SessionCredentials
    timeout: float | None
    closing: bool = False
    """True if its process has begun to close it. The request may still arrive, so it must not be resumed."""

    @property
    def session_id(self) -> int:
        """The id of the session."""
        return self.credentials.session_id

    @property
    def hex(self) -> str:
        """The id of the session, for messages."""
        return session_hex(self.session_id)


def encode_record(chroot: str, identity: str, session: SavedSession | None) -> bytes:
    """Encode the record of a session, or of none, as one line."""
    record = {"zkgroups": 1, "chroot": chroot, "pid": os.getpid(), "place": identity, "session": None}
    if session is not None:
        record["closing" if session.closing else "session"] = session.credentials.dump()
        record["timeout"] = session.timeout
    return json.dumps(record).encode() + b"\n"


def decode_record(data: bytes) -> tuple[str, str, SavedSession | None] | None:
    """Return the chroot, the identity of the file, and the session if the record has one, or None if it is damaged."""
    try:
        fields = json.loads(data)
        if fields["zkgroups"] != 1:
            return None
        closing = fields["session"] is None and fields.get("closing") is not None
        text = fields["closing" if closing else "session"]
        credentials = None if text is None else SessionCredentials.load(text)
        chroot, identity, timeout = str(fields["chroot"]), str(fields["place"]), fields.get("timeout")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    if credentials is None:
        return chroot, identity, None
    if credentials.session_id not in _IDS or not credentials.session_id:
        return None
    if timeout is not None and not _is_timeout(timeout):
        return None
    return chroot, identity, SavedSession(credentials, timeout, closing)


def _is_timeout(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST_TIMEOUT


def pid_of_record(data: bytes) -> int | None:
    """Return the id of the process that has written the record."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        pid = json.loads(data.strip(BLANK))["pid"]
        return pid if isinstance(pid, int) else None
    return None


log = logging.getLogger("zkgroups.session")

_MODE: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""A symbolic link is not followed: another user may have created it in a shared folder."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Changes with each boot. Containers have the id of their host."""


class SessionFile:
    """A session file, open and locked.

    `saved` is the session to resume, and `closing` one to end, if the file contained one when it was opened.
    """

    def __init__(self, path: Path, fd: int, chroot: str) -> None:
        self.path = path
        self.saved: SavedSession | None = None
        self.closing: SavedSession | None = None
        self.resumed = False
        """True if the client has resumed the session that the file contained."""
        self._chroot = chroot
        self._identity = ""
        self._lock = threading.Lock()  # guards the fields below, and is held during a write
        self._fd: int | None = fd
        self._written: SavedSession | None = None
        self._length = 0
        self._client: Any = None
        _OPEN.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, chroot: str) -> Self:
        """Open or create the file, readable by its owner only, and lock it.

        Raise `SessionInUseError` if another process has it open.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidOptionError("session_file", path, "it must be the path of a file")
        path = Path(path)
        try:
            file = cls(path, os.open(path, _FLAGS, _MODE), chroot)
        except (OSError, ValueError) as error:
            raise _invalid(path, f"it cannot be opened: {_reason(error)}") from error
        try:
            file._lock_and_load()
        except BaseException as error:
            file.close(ended=False)
            if isinstance(error, OSError):
                raise _invalid(path, f"it cannot be used: {_reason(error)}") from error
            raise
        return file

    def _lock_and_load(self) -> None:
        fd = self._fd
        assert fd is not None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _invalid(self.path, "it is not a regular file")
        if status.st_uid != os.geteuid():
            raise _invalid(self.path, f"it belongs to another user ({status.st_uid})")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SessionInUseError(str(self.path), pid_of_record(os.pread(fd, LONGEST_RECORD, 0))) from error
        self._length = os.fstat(fd).st_size  # the previous owner of the lock may have changed it after the first fstat
        self._identity = _identity(status)
        found = self._load(os.pread(fd, LONGEST_RECORD + 1, 0).strip(BLANK))
        self.saved, self.closing = (None, found) if found is not None and found.closing else (found, None)
        if stat.S_IMODE(status.st_mode) != _MODE:
            self._restrict_access(fd, status.st_mode)
        self._write(found)

    def _load(self, data: bytes) -> SavedSession | None:
        if not data:
            return None
        if not data.startswith(RECORD_BEGIN) or len(data) > LONGEST_RECORD:
            raise _invalid(self.path, "it contains other data, which would be overwritten")
        record = decode_record(data)
        if record is None:
            log.warning("session file %s is damaged; starting a new session", self.path)
            return None
        chroot, identity, saved = record
        if saved is None:
            return None
        if (reason := self._reason_not_to_resume(chroot, identity, saved)) is not None:
            log.warning(
                "session file %s %s: session %s is not resumed, starting a new one", self.path, reason, saved.hex
            )
            return None
        return saved

    def _reason_not_to_resume(self, chroot: str, identity: str, saved: SavedSession) -> str | None:
        if identity != self._identity:
            return "is a copy, or older than the last boot"
        if chroot != self._chroot:
            return f"is for chroot {chroot or '/'}, not {self._chroot or '/'}"
        if saved.timeout is None:
            return "is from an older release, without the session timeout"
        return None

    def _restrict_access(self, fd: int, mode: int) -> None:
        if stat.S_IMODE(mode) & ~_MODE:
            log.warning(
                "session file %s was accessible to other users (%o); restricted to its owner",
                self.path,
                stat.S_IMODE(mode),
            )
        os.fchmod(fd, _MODE)

    # Following a client

    def follow(self, client: Any) -> None:
        """Save the session of the client to the file now, and after each reconnect."""
        self._client = client
        saved, self.resumed = self.saved, self.saved is not None and Session.of(client).id == self.saved.session_id
        if saved is not None:
            became = "resumed" if self.resumed else "expired, started a new one"
            log.info("session %s from %s: %s", saved.hex, self.path, became)
        client.add_listener(self._on_state)
        try:
            self._save()
        except OSError as error:
            raise _invalid(self.path, f"it cannot be written: {_reason(error)}") from error

    def _on_state(self, state: str) -> None:
        """Called on kazoo's connection thread, which must not wait for a disk."""
        if state == KazooState.CONNECTED:
            run_on_completion_thread(self._client, self.save)

    def save(self) -> None:
        """Save the current session of the client. Log any error."""
        try:
            self._save()
        except OSError as error:
            log.error("cannot write session file %s; the session will end with this process: %s", self.path, error)

    def _save(self) -> None:
        with self._lock:
            client_id = None if self._client is None else self._client.client_id
            if self._fd is None or client_id is None or not client_id[0]:  # an interrupted client has no id
                return
            timeout = Session.of(self._client).granted_to(client_id[0])
            if timeout is not None:  # else there is a newer session, which another call will save
                self._write(SavedSession(SessionCredentials(*client_id), timeout))

    def _write(self, session: SavedSession | None) -> None:
        if self._fd is None or (session is not None and session == self._written):
            return
        data = encode_record(self._chroot, self._identity, session)
        # Overwrite the rest with blanks. Truncating is a second step, before which the process may be killed.
        os.pwrite(self._fd, data.ljust(self._length), 0)
        self._written, self._length = session, max(self._length, len(data))

    def begin_close(self) -> bool:
        """Note that the session is about to be closed. Return False if that cannot be written."""
        self.save()  # a new session may not be saved yet
        try:
            with self._lock:
                self._client = None
                if self._written is not None:
                    self._write(replace(self._written, closing=True))
        except OSError as error:
            log.error("cannot write session file %s; the session ends after its timeout: %s", self.path, error)
            return False
        return True

    def close(self, *, ended: bool) -> None:
        """Release the lock. Truncate the file if the session has ended."""
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

    def _close_in_fork(self) -> None:
        """Close the copy of the file. Else the lock would last as long as the fork."""
        self._lock = threading.Lock()  # the thread that held it does not exist in the fork
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _identity(status: os.stat_result) -> str:
    """Identify the file, and the boot of the machine."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:  # not on Linux
        boot = socket.gethostname()
    return f"{boot} {status.st_dev:x}:{status.st_ino:x}"


def _invalid(path: Path, reason: str) -> InvalidOptionError:
    return InvalidOptionError("session_file", str(path), reason)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed: name the file itself"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_OPEN: Final[WeakSet[SessionFile]] = WeakSet()


def _close_all() -> None:
    for file in list(_OPEN):
        file._close_in_fork()


os.register_at_fork(after_in_child=_close_all)
