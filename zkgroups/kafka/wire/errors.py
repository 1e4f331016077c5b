"""The addresses of brokers, and the errors of connections to them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ...input_errors import InvalidOptionError

# The addresses of brokers, as users write them.


_ADDRESS: Final = re.compile(r"(?:\w+://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:,\s\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
_PORT: Final = 9092
LAST_PORT: Final = 65_535


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(bootstrap: str) -> tuple[Address, ...]:
    """Return the addresses in a list of them.

    >>> addresses("kafka1:9093, SSL://[::1]:9094,kafka2")
    (Address(host='kafka1', port=9093), Address(host='::1', port=9094), Address(host='kafka2', port=9092))
    """
    found = tuple(dict.fromkeys(_address(bootstrap, text.strip()) for text in bootstrap.split(",") if text.strip()))
    if not found:
        raise InvalidOptionError("bootstrap", bootstrap, "it must name a broker, like kafka1:9092")
    return found


def _address(bootstrap: str, text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) <= LAST_PORT:
        raise InvalidOptionError("bootstrap", bootstrap, "each address must be host:port, like kafka1:9092")
    return Address(found["v6"] or found["host"], int(found["port"] or _PORT))


# Errors of connections to brokers.
#
# A `WireError` is temporary: the same request may be answered later. Permanent errors have the classes that users
# know: `AuthenticationError` for a refused login, `CertificateError` for TLS, `BrokersTooOldError` for requests that
# the broker does not support.


class WireError(Exception):
    """A request without an answer. It may be repeated."""

    sent = False
    """True if the broker may have carried out the request."""


class NotSentError(WireError):
    """The request was not sent, because there was no connection."""


class NoListenerError(NotSentError):
    """The host is unknown, or refused the connection: nothing listens there."""


class AnswerLostError(WireError):
    """The request was sent, but the connection broke, or the answer did not come in time."""

    sent = True


class DamagedAnswerError(AnswerLostError):
    """The answer cannot be read. Perhaps the server is not a Kafka broker."""


class DamagedRequestError(Exception):
    """The request of a client cannot be read. Perhaps it is not a Kafka client."""
