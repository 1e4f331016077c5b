"""The login of a connection."""

from __future__ import annotations

from .address import Address
from .connection import Connection
from .security import Security
from .versions import Versions


async def log_in(connection: Connection, security: Security, address: Address, versions: Versions) -> float:  # noqa: ARG001
    """Log in, if the security has a login. Return the lifetime of the session in seconds."""
    return float("inf")
