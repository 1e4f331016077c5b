"""Errors of connections to brokers.

A `WireError` is temporary: the same request may be answered later. Permanent errors have the classes that users know:
`AuthenticationError` for a refused login, `CertificateError` for TLS, `BrokersTooOldError` for requests that
the broker does not support.
"""

from __future__ import annotations


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
