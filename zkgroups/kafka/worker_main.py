"""A program: it asks brokers about groups, and may be ended over it; see `isolated_client.py`.

Each line of its standard input is a question: settings with secrets are seen by nobody there. It is answered by a copy
of this process, which writes lines of JSON: how many of the questions may be under way, before they are, and each
answer as soon as it is known. That the copy has ended, and how, is then told in a line of its own. A copy is made in a
millisecond, while a Python that loads all this needs a quarter of a second. Whoever has nobody left to tell ends.
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
from .exact_offsets import ExactOffsets

_INPUT: Final = 0

Ask = Callable[[Sequence[Any], float], Iterator[tuple[int, Any]]]
"""Answers each of the questions, by its number, within so many seconds; what is wrong is a KafkaError."""


def main() -> None:
    """Answer the questions on the standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # being ended is nothing to be looked into
    for question in sys.stdin:
        print(f'\n{{"ended": {_in_a_copy(question)}}}', flush=True)


def _in_a_copy(question: str) -> int:
    """With which status it has ended."""
    alive, held = os.pipe()
    if (copy := os.fork()) == 0:
        status = 1
        try:
            _answer_all(json.loads(question))
            status = 0
        finally:
            os._exit(status)  # whatever still waits for a broker need not be waited for
    os.close(held)
    # It is readable when the copy has gone; and our input when who asks has, because nothing is asked meanwhile.
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
        answered = [_answer(first + number, found) for number, found in ask(wave, asked["patience"])]
        if not any(answered):
            break  # the brokers are away
        first += len(wave)
    sys.stdout.flush()


def _answer(number: int, found: Any) -> bool:
    """Write down what became of this question; False if it should be asked again."""
    if isinstance(found, KafkaError):
        _write({"n": number, "error": [found.code(), found.str()]})
        return not is_retriable(found)
    _write({"n": number, "found": found})
    return True


def _write(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


# librdkafka takes offsets for one group at a time, but any number of times, and groups themselves together.


def _committed(config: Mapping[str, str]) -> Ask:
    return ExactOffsets(config).committed


def _commit(config: Mapping[str, str]) -> Ask:
    return ExactOffsets(config).commit


def _describe(config: Mapping[str, str]) -> Ask:
    admin = _admin(config)
    return lambda groups, patience: _results(
        groups, admin.describe_consumer_groups(list(groups), request_timeout=patience), _described
    )


def _delete(config: Mapping[str, str]) -> Ask:
    admin = _admin(config)
    return lambda groups, patience: _results(
        groups, admin.delete_consumer_groups(list(groups), request_timeout=patience), lambda _: True
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
