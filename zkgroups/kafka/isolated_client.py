"""Requests about groups, sent from a separate process because librdkafka may crash.

If a broker answers that it is not the coordinator of a group, librdkafka (up to 2.16) aborts the process that requested
its offsets (librdkafka issue 5040). It also aborts if a broker stops while many requests about groups are in flight
(issue 3663; reproduced with commit, describe and delete, each within four broker restarts). Coordinators move whenever
a broker is restarted. So a worker process sends these requests (`worker.py`), and after a crash another one continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from ..deadline import Deadline
from ..exceptions import NotConnectedError
from ..input_errors import ZkgroupsException
from .errors import is_retriable, translate, words
from .retry import attempts
from .worker import Answers, Asker

# Groups per worker process, and requests in flight at a time.
AT_A_TIME: Final = 500
IN_FLIGHT: Final = 100

T = TypeVar("T")


def ask_each(
    asker: Asker, kind: str, groups: Sequence[str], timeout: float, read: Callable[[str, Any], T]
) -> dict[str, T | ZkgroupsException]:
    """Send a read-only request for each of these groups until all are answered or the timeout has passed."""
    found: dict[str, T | ZkgroupsException] = {}
    for first in range(0, len(groups), AT_A_TIME):
        found |= _ask_some(asker, kind, groups[first : first + AT_A_TIME], Deadline(timeout), read)
    return found


def _ask_some(
    asker: Asker, kind: str, groups: Sequence[str], deadline: Deadline, read: Callable[[str, Any], T]
) -> dict[str, T | ZkgroupsException]:
    found: dict[str, T | ZkgroupsException] = {}
    reason = KafkaError(KafkaError.NOT_COORDINATOR)
    for timeout in attempts(deadline):
        left = [group for group in groups if group not in found]
        answers = ask(asker, kind, left, timeout)
        found |= {left[n]: read(left[n], answer) for n, answer in answers.found.items()}
        for n, error in answers.errors.items():
            if is_retriable(error):
                reason = error
            else:
                found[left[n]] = caused(translate(error, f"group {left[n]!r}", group=left[n]), error)
        if len(found) == len(groups):
            break
    return {group: found[group] if group in found else _unanswered(group, reason, deadline) for group in groups}


def _unanswered(group: str, reason: KafkaError, deadline: Deadline) -> ZkgroupsException:
    text = f"no broker answered about group {group!r} within {deadline.seconds:g} s: {words(reason)}"
    return caused(NotConnectedError(text), reason)


def caused(ours: ZkgroupsException, theirs: KafkaError) -> ZkgroupsException:
    """Chain the cause to an error that is returned, not raised."""
    ours.__cause__ = KafkaException(theirs)
    return ours


def ask(asker: Asker, kind: str, questions: Sequence[Any], timeout: float) -> Answers:
    """Return the answers that one worker process received before it ended."""
    return asker.ask(kind, list(_parts(questions)), timeout)


def _parts(questions: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(questions), IN_FLIGHT):
        yield questions[first : first + IN_FLIGHT]
