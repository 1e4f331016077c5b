"""How the brokers themselves are set up."""

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
    """What each broker says of how long it keeps offsets; None where it may not be asked, or does not answer."""
    found: dict[int, int | None] = dict.fromkeys(brokers)
    left = list(found)
    for patience in attempts(deadline) if left else ():
        asked = {broker: _ask(admin, broker, patience) for broker in left}
        answers = {broker: _answer(future) for broker, future in asked.items()}
        found |= {broker: answer for broker, answer in answers.items() if isinstance(answer, int)}
        left = [broker for broker, answer in answers.items() if answer is _LATER]
        if not left:
            break
    return list(found.values())


class _Later:
    """A broker that may answer another time."""


_LATER: Final = _Later()


def _ask(admin: AdminClient, broker: int, patience: float) -> Future[Any]:
    """A broker is asked by itself: each knows its own settings."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    (future,) = admin.describe_configs([resource], request_timeout=patience).values()
    return future


def _answer(future: Future[Any]) -> int | _Later | None:
    try:
        setting = future.result().get(_RETENTION)
    except KafkaException as error:
        return _LATER if is_retriable(error_of(error)) else None
    return None if setting is None or setting.value is None else int(setting.value)
