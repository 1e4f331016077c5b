"""Reading the configuration of brokers."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from ..deadline import Deadline
from .errors import error_of, is_retriable
from .retry import attempts

_RETENTION: Final = "offsets.retention.minutes"


def retention_minutes(admin: AdminClient, brokers: Iterable[int], deadline: Deadline) -> list[int | None]:
    """Return how long each broker keeps offsets, in minutes; None without permission or answer."""
    found: dict[int, int | None] = dict.fromkeys(brokers)
    left = list(found)
    for timeout in attempts(deadline) if left else ():
        asked = {broker: _ask(admin, broker, timeout) for broker in left}
        answers = {broker: _answer(future) for broker, future in asked.items()}
        found |= {broker: answer for broker, answer in answers.items() if isinstance(answer, int)}
        left = [broker for broker, answer in answers.items() if answer is _RETRY]
        if not left:
            break
    return list(found.values())


class _Retry:
    """Marks a broker to ask again."""


_RETRY: Final = _Retry()


def _ask(admin: AdminClient, broker: int, timeout: float) -> Future[Any]:
    """Send the request to one broker: each knows only its own settings."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    (future,) = admin.describe_configs([resource], request_timeout=timeout).values()
    return future


def _answer(future: Future[Any]) -> int | _Retry | None:
    try:
        setting = future.result().get(_RETENTION)
    except KafkaException as error:
        return _RETRY if is_retriable(error_of(error)) else None
    return None if setting is None or setting.value is None else int(setting.value)
