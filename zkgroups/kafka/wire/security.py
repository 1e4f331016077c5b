"""How connections are protected: TLS and the login."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class Security:
    """TLS and the login. Without arguments, neither."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
