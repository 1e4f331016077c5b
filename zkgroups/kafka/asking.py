"""A program: it asks brokers for the offsets of groups, and may be ended over it; see `committed.py`.

It reads the question from its standard input, where settings with secrets are seen by nobody, and writes one line of
JSON for each group as soon as it is known.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from .errors import error_of, is_retriable


def main() -> None:
    """Answer the question on the standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # being ended is nothing to be looked into
    question = json.load(sys.stdin)
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    admin = AdminClient(question["config"], logger=logger)
    groups, at_once = question["groups"], question["in_flight"]
    for first in range(0, len(groups), at_once):
        if not _some_answered(_ask(admin, groups[first : first + at_once], question["patience"])):
            break
    sys.stdout.flush()
    os._exit(0)  # whatever still waits for a broker need not be waited for


def _ask(admin: AdminClient, groups: Sequence[str], patience: float) -> dict[str, Future[Any]]:
    """librdkafka takes one group at a time, but any number of times."""
    return {
        group: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=patience)[group]
        for group in groups
    }


def _some_answered(futures: dict[str, Future[Any]]) -> bool:
    answers = [_answer(group, future) for group, future in futures.items()]
    return any(answers)  # where none was, the brokers are away


def _answer(group: str, future: Future[Any]) -> bool:
    """Write down what became of this group; False if it should be asked for again."""
    try:
        rows = _rows(future.result().topic_partitions)
    except KafkaException as error:
        failed = error_of(error)
        _write({"group": group, "error": [failed.code(), failed.str()]})
        return not is_retriable(failed)
    _write({"group": group, "offsets": rows})
    return True


def _rows(partitions: Iterable[Any]) -> list[list[Any]]:
    rows = []
    for each in partitions:
        if each.error is not None:
            raise KafkaException(each.error)
        if each.offset >= 0:  # below are librdkafka's signs for none
            rows.append([each.topic, each.partition, each.offset, each.metadata, each.leader_epoch])
    return rows


def _write(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
