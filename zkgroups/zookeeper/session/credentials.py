"""What a process must keep to end its own past session after a crash, instead of waiting until it times out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from ...core.znodes.session_ids import session_hex
from ...deadline import Deadline
from ...exceptions import InvalidOptionError, NotConnectedError
from ..kazoo_compat.corrections import close
from ..kazoo_compat.second_client import twin
from .session import Session

_PASSWORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """The id and password of a ZooKeeper session: whoever has them can take it over, or end it."""

    session_id: int
    password: bytes = field(repr=False)

    def dump(self) -> str:
        """As one line of text, to be kept in a file that only its owner can read.

        >>> SessionCredentials.load(SessionCredentials(17, bytes(16)).dump()).session_id
        17
        """
        return f"{self.session_id:#x}:{self.password.hex()}"

    @classmethod
    def load(cls, text: str) -> Self:
        """From what `dump` returned."""
        session_id, _, password = text.strip().partition(":")
        try:
            found = cls(int(session_id, 16), bytes.fromhex(password))
        except ValueError as error:
            raise InvalidOptionError("session", text, "it must be what SessionCredentials.dump() returned") from error
        if len(found.password) != _PASSWORD_BYTES or not -(2**63) <= found.session_id < 2**63:
            raise InvalidOptionError("session", text, "it must be what SessionCredentials.dump() returned")
        return found


def end_session(client: Any, past: SessionCredentials, timeout: float) -> bool:
    """End a session that is not the client's own, with its ephemerals; False if it had ended already.

    A second connection takes the session over and closes it. Where it has ended, or the password is wrong, the server
    gives the second connection a session of its own instead, and that is all that is closed.
    """
    taker = twin(client, timeout, client_id=(past.session_id, past.password))
    session = Session.of(taker)
    taker.start_async()
    try:
        if not session.wait_connected(Deadline(timeout)):
            past_id = session_hex(past.session_id)
            raise NotConnectedError(f"no connection to {session.servers} within {timeout:g} s to end session {past_id}")
        return session.id == past.session_id
    finally:
        close(taker)
