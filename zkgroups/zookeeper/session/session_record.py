"""The record in a session file: JSON with the session, its chroot, and the identity of the file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...core.znodes.session_ids import session_hex
from .credentials import SessionCredentials

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
    """Return the chroot, the identity of the file, and the session if the record has one. None if it is damaged."""
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
