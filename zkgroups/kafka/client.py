"""The client of confluent_kafka: its settings, and the errors that its threads report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from ..deadline import Deadline
from ..exceptions import NotConnectedError
from ..input_errors import InvalidOptionError
from .errors import NOT_ACCEPTED, error_of, is_retriable, translate, words
from .old_brokers import keeps_groups, settings_for_old
from .properties import HIDDEN, check_sendable, for_librdkafka, shown, shown_name, without_secrets
from .retry import attempts
from .worker import Asker

_log = logging.getLogger("zkgroups.kafka")
# Without a handler, Python writes warnings to stderr if logging is not configured.
_log.addHandler(logging.NullHandler())

_DEFAULTS: Final = {
    "client.id": "zkgroups",
    # Reconnect to a restarted broker within a second, not ten.
    "reconnect.backoff.max.ms": "1000",
}


class Client:
    """One connection to the brokers of a cluster, opened by the first request."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.config = _DEFAULTS | for_librdkafka(properties) | {"bootstrap.servers": bootstrap}
        self._begin()

    def _begin(self) -> None:
        self._errors = _ReportedErrors()
        self.admin = _admin(self.config, self._errors)
        self.asker = Asker(self.config)

    @property
    def keeps_groups(self) -> bool:
        """Whether the brokers support Kafka's own groups. Known only after their first answer."""
        return keeps_groups(self.config)

    def close(self) -> None:
        """End the worker process."""
        self.asker.close()

    def metadata(self, deadline: Deadline) -> ClusterMetadata:
        """Return the metadata of the brokers and of all topics.

        A request for single topics could create them, if the broker is configured so.
        """
        failed = KafkaError(KafkaError._TIMED_OUT)
        for timeout in attempts(deadline):
            try:
                found = self.admin.list_topics(timeout=timeout)
            except KafkaException as error:
                failed = error_of(error)
                self._raise_permanent(failed)
                self._adapt(deadline)
            else:
                self._forget()
                return found
        reason = self._reason(failed)
        raise NotConnectedError(
            f"no broker at {self.bootstrap} answered within {deadline.seconds:g} s: {words(reason)}"
        ) from KafkaException(reason)

    def _raise_permanent(self, failed: KafkaError) -> None:
        """Raise an error that a retry would not change."""
        reason = self._reason(failed)
        if reason.code() in NOT_ACCEPTED:
            raise translate(reason, f"brokers at {self.bootstrap}") from KafkaException(reason)
        if not is_retriable(failed):
            clean = KafkaError(failed.code(), without_secrets(failed.str(), self.config))
            raise translate(clean, f"brokers at {self.bootstrap}") from KafkaException(clean)

    def _adapt(self, deadline: Deadline) -> None:
        """Reconnect with other settings if the brokers are too old for these."""
        if settings := settings_for_old(self.bootstrap, self.config, deadline):
            release = settings["broker.version.fallback"]
            _log.info("brokers at %s do not report their versions; assuming release %s", self.bootstrap, release)
            self.close()
            self.config |= settings
            self._begin()

    def _forget(self) -> None:
        """Forget errors of other brokers once one has answered."""
        self.admin.poll(0)
        self._errors.worst = None

    def _reason(self, failed: KafkaError) -> KafkaError:
        """Return the reported reason of a failure, without secrets."""
        self.admin.poll(0)
        found = self._errors.worst or failed
        return KafkaError(found.code(), without_secrets(found.str(), self.config))


class _ReportedErrors:
    """Connection errors: the first permanent one is kept, otherwise the latest."""

    def __init__(self) -> None:
        self.worst: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # the reason is reported separately
        if self.worst is None or self.worst.code() not in NOT_ACCEPTED:
            self.worst = error


class _Log:
    """Passes messages of librdkafka to the logger of this package, without secrets."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a message. This is the only method of `logging.Logger` that confluent_kafka calls."""
        if _log.isEnabledFor(level):
            _log.log(level, "%s", without_secrets(message % args, self._config))


def _admin(config: Mapping[str, str], errors: _ReportedErrors) -> AdminClient:
    check_sendable(config)
    settings: dict[str, Any] = {**config, "error_cb": errors}
    try:
        return AdminClient(settings, logger=_Log(config))
    except KafkaException as error:
        raise _not_accepted(config, words(error_of(error))) from None  # the message may contain a secret
    except (AttributeError, TypeError, ValueError) as error:  # settings that confluent_kafka only takes from programs
        raise _not_accepted(config, str(error)) from None


def _not_accepted(config: Mapping[str, str], text: str) -> InvalidOptionError:
    key = next((key for key in sorted(config, key=len, reverse=True) if key in text), None)
    reason = f"librdkafka does not accept it: {without_secrets(text, config)}"
    if key is None:
        return InvalidOptionError("properties", HIDDEN, reason)
    value = shown(key, config[key])
    return InvalidOptionError(shown_name(key), ... if value == HIDDEN else value, reason)
