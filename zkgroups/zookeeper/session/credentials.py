"""The credentials of a session, by which a process can end its own earlier session after a crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from ...core.znodes.session_ids import session_hex
from ...deadline import Deadline
from ...exceptions import InvalidOptionError, NotConnectedError
from ..kazoo_compat.close_client import close_client
from ..kazoo_compat.second_client import second_client
from .session import Session

_PASSWORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """The `session_id` and `password` of a ZooKeeper session: see `Registry.credentials`.

    Any client that has them can resume or end the session, so keep them secret.
    """

    session_id: int
    password: bytes = field(repr=False)

    def dump(self) -> str:
        """Return one line of text. Keep it in a file that only its owner can read.

        >>> SessionCredentials.load(SessionCredentials(17, bytes(16)).dump()).session_id
        17
        """
        return f"{self.session_id:#x}:{self.password.hex()}"

    @classmethod
    def load(cls, text: str) -> Self:
        """Return the credentials from the text that `dump` returned."""
        session_id, _, password = text.strip().partition(":")
        try:
            credentials = cls(int(session_id, 16), bytes.fromhex(password))
        except ValueError as error:
            raise InvalidOptionError("session", text, "it must be a result of SessionCredentials.dump()") from error
        if len(credentials.password) != _PASSWORD_BYTES or not -(2**63) <= credentials.session_id < 2**63:
            raise InvalidOptionError("session", text, "it must be a result of SessionCredentials.dump()")
        return credentials


def end_session(client: Any, earlier: SessionCredentials, timeout: float) -> bool:
    """End an earlier session, with its ephemerals. Return False if it had expired already.

    A second connection resumes the session and closes it. If the session has expired or the password is wrong, the
    server grants the second connection a new session, and only that one is closed.
    """
    second = second_client(client, timeout, client_id=(earlier.session_id, earlier.password))
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(Deadline(timeout)):
            raise NotConnectedError(
                f"could not connect to {session.servers} within {timeout:g} s; "
                f"session {session_hex(earlier.session_id)} was not ended"
            )
        return session.id == earlier.session_id
    finally:
        close_client(second)
