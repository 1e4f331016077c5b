"""Kafka's topic ids: a topic that is deleted and recreated has the same name, but another id."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from ..deadline import Deadline
from ..exceptions import NotConnectedError
from .errors import error_of, is_retriable, translate, words
from .retry import attempts

_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


def topic_ids(admin: AdminClient, topics: Sequence[str], deadline: Deadline) -> dict[str, str]:
    """Return the id of each topic. Missing topics are left out, and all topics if the brokers have no ids."""
    found: dict[str, str | None] = {}
    failed = KafkaError(KafkaError._TIMED_OUT)
    for timeout in attempts(deadline):
        left = [topic for topic in topics if topic not in found]
        asked = admin.describe_topics(TopicCollection(left), request_timeout=timeout)
        for topic, future in asked.items():
            try:
                found[topic] = _id(future)
            except KafkaException as error:
                failed = error_of(error)
                if not is_retriable(failed):
                    raise translate(failed, f"topic {topic!r}") from error
        if len(found) == len(topics):
            return {topic: id for topic, id in found.items() if id is not None}
    raise NotConnectedError(
        f"no broker returned topic ids within {deadline.seconds:g} s: {words(failed)}"
    ) from KafkaException(failed)


def _id(future: Future[Any]) -> str | None:
    try:
        its = future.result().topic_id
    except KafkaException as error:
        if error_of(error).code() in _UNKNOWN:
            return None
        raise
    return str(its) if its.get_most_significant_bits() or its.get_least_significant_bits() else None
