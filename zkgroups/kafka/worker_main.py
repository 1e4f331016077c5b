"""The worker program: it sends requests about groups to brokers, and may crash; see `isolated_client.py`.

Each line of standard input is a request, because other users cannot see secrets there. A forked copy of this process
answers it with lines of JSON: the number of requests that may be in flight, before they are sent, and each answer as
it arrives. When the copy has ended, its exit status is written in another line. A fork takes a millisecond, while
starting a new Python takes a quarter of a second. The process ends when its parent does.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from .errors import error_of, is_retriable
from .offsets_with_metadata import OffsetsWithMetadata

_INPUT: Final = 0

Ask = Callable[[Sequence[Any], float], Iterator[tuple[int, Any]]]
"""Yields the number of each request with its answer or KafkaError, within a timeout in seconds."""


def main() -> None:
    """Answer the requests on standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dumps: crashes are expected
    for question in sys.stdin:
        print(f'\n{{"ended": {_in_a_copy(question)}}}', flush=True)


def _in_a_copy(question: str) -> int:
    """Answer a request in a forked copy, and return its exit status."""
    alive, held = os.pipe()
    if (copy := os.fork()) == 0:
        status = 1
        try:
            _answer_all(json.loads(question))
            status = 0
        finally:
            os._exit(status)  # do not wait for threads of librdkafka
    os.close(held)
    # `alive` becomes readable when the copy ends. Standard input becomes readable only when the parent ends.
    ended, _, _ = select.select([alive, _INPUT], [], [])
    if alive not in ended:
        os.kill(copy, signal.SIGKILL)
    os.close(alive)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def _answer_all(asked: Mapping[str, Any]) -> None:
    ask = _KINDS[asked["kind"]](asked["config"])
    first = 0
    for wave in asked["waves"]:
        _write({"sent": first + len(wave)})
        answered = [_answer(first + number, found) for number, found in ask(wave, asked["timeout"])]
        if not any(answered):
            break  # the brokers are away
        first += len(wave)
    sys.stdout.flush()


def _answer(number: int, found: Any) -> bool:
    """Write the answer to a request. Return False if it should be retried."""
    if isinstance(found, KafkaError):
        _write({"n": number, "error": [found.code(), found.str()]})
        return not is_retriable(found)
    _write({"n": number, "found": found})
    return True


def _write(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


# librdkafka takes one group per request for offsets, and many groups per request otherwise.


def _committed(config: Mapping[str, str]) -> Ask:
    return OffsetsWithMetadata(config).committed


def _commit(config: Mapping[str, str]) -> Ask:
    return OffsetsWithMetadata(config).commit


def _describe(config: Mapping[str, str]) -> Ask:
    admin = _admin(config)
    return lambda groups, timeout: _results(
        groups, admin.describe_consumer_groups(list(groups), request_timeout=timeout), _described
    )


def _delete(config: Mapping[str, str]) -> Ask:
    admin = _admin(config)
    return lambda groups, timeout: _results(
        groups, admin.delete_consumer_groups(list(groups), request_timeout=timeout), lambda _: True
    )


def _admin(config: Mapping[str, str]) -> AdminClient:
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    return AdminClient(dict(config), logger=logger)


def _results(
    groups: Sequence[str], futures: Mapping[str, Future[Any]], read: Callable[[Any], Any]
) -> Iterator[tuple[int, Any]]:
    for number, group in enumerate(groups):
        try:
            yield number, read(futures[group].result())
        except KafkaException as error:
            yield number, error_of(error)


def _described(group: Any) -> list[Any]:
    members = [[each.member_id, each.client_id, each.host, each.group_instance_id] for each in group.members]
    return [group.state.name, members]


_KINDS: dict[str, Callable[[Mapping[str, str]], Ask]] = {
    "committed": _committed,
    "commit": _commit,
    "describe": _describe,
    "delete": _delete,
}

if __name__ == "__main__":
    main()
