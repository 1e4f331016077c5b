"""A program: it asks brokers about groups, and may be ended over it; see `apart.py`.

It reads the questions from its standard input, where settings with secrets are seen by nobody, and writes lines of
JSON: how many of the questions may be under way, before they are, and each answer as soon as it is known.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from .errors import error_of, is_retriable

Futures = list["Future[Any]"]


def main() -> None:
    """Answer the questions on the standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # being ended is nothing to be looked into
    asked = json.load(sys.stdin)
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    admin = AdminClient(asked["config"], logger=logger)
    ask, read = _KINDS[asked["kind"]]
    first = 0
    for wave in asked["waves"]:
        _write({"sent": first + len(wave)})
        futures = ask(admin, wave, asked["patience"])
        answered = [_answer(n, future, read) for n, future in enumerate(futures, first)]
        if not any(answered):
            break  # the brokers are away
        first += len(wave)
    sys.stdout.flush()
    os._exit(0)  # whatever still waits for a broker need not be waited for


def _answer(number: int, future: Future[Any], read: Callable[[Any], Any]) -> bool:
    """Write down what became of this question; False if it should be asked again."""
    try:
        found = read(future.result())
    except KafkaException as error:
        failed = error_of(error)
        _write({"n": number, "error": _error(failed)})
        return not is_retriable(failed)
    _write({"n": number, "found": found})
    return True


def _write(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _error(error: KafkaError | None) -> list[Any] | None:
    return None if error is None else [error.code(), error.str()]


# What groups have committed, and to commit: librdkafka takes one group at a time, but any number of times.


def _ask_committed(admin: AdminClient, groups: Sequence[str], patience: float) -> Futures:
    return [
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=patience)[group]
        for group in groups
    ]


def _committed(result: ConsumerGroupTopicPartitions) -> list[list[Any]]:
    rows = []
    for each in _partitions(result):
        if each.error is not None:
            raise KafkaException(each.error)
        if each.offset >= 0:  # below are librdkafka's signs for none
            rows.append([each.topic, each.partition, each.offset, each.metadata, each.leader_epoch])
    return rows


def _ask_to_commit(admin: AdminClient, calls: Sequence[tuple[str, list[list[Any]]]], patience: float) -> Futures:
    return [
        admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [_partition(*row) for row in rows])], request_timeout=patience
        )[group]
        for group, rows in calls
    ]


def _partition(topic: str, number: int, offset: int, metadata: str | None, epoch: int | None) -> TopicPartition:
    note = {} if metadata is None else {"metadata": metadata}
    return TopicPartition(topic, number, offset, leader_epoch=epoch, **note)


def _outcomes(result: ConsumerGroupTopicPartitions) -> list[list[Any]]:
    return [[each.topic, each.partition, _error(each.error)] for each in _partitions(result)]


def _partitions(result: ConsumerGroupTopicPartitions) -> Iterable[TopicPartition]:
    return result.topic_partitions or ()


# The groups themselves.


def _ask_described(admin: AdminClient, groups: Sequence[str], patience: float) -> Futures:
    futures = admin.describe_consumer_groups(list(groups), request_timeout=patience)
    return [futures[group] for group in groups]


def _described(group: Any) -> list[Any]:
    members = [[each.member_id, each.client_id, each.host, each.group_instance_id] for each in group.members]
    return [group.state.name, members]


def _ask_to_delete(admin: AdminClient, groups: Sequence[str], patience: float) -> Futures:
    futures = admin.delete_consumer_groups(list(groups), request_timeout=patience)
    return [futures[group] for group in groups]


def _deleted(_: object) -> bool:
    return True


_KINDS: dict[str, tuple[Callable[[AdminClient, Any, float], Futures], Callable[[Any], Any]]] = {
    "committed": (_ask_committed, _committed),
    "commit": (_ask_to_commit, _outcomes),
    "describe": (_ask_described, _described),
    "delete": (_ask_to_delete, _deleted),
}

if __name__ == "__main__":
    main()
