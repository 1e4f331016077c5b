"""Brokers are asked about groups by a process of its own.

When a broker answers that it is not, or not yet, the coordinator of a group, librdkafka (2.16, and all before) ends the
process that has asked for its offsets (its issue 5040). And when a broker ends while many questions about groups are
under way, of whatever kind, it does so, too (its issue 3663; tried: commit, describe and delete, each within four
restarts of a broker). Coordinators move whenever a broker is restarted, so that process must not be ours: see
`worker.py`. Where it was ended, another one asks for what is left.
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

# Groups of one process, and how many of them a broker is asked for before it has answered.
AT_A_TIME: Final = 500
IN_FLIGHT: Final = 100

T = TypeVar("T")


def ask_each(
    asker: Asker, kind: str, groups: Sequence[str], timeout: float, read: Callable[[str, Any], T]
) -> dict[str, T | ZkgroupsException]:
    """The same question about each of these groups, which changes nothing, until it is answered or time is up."""
    found: dict[str, T | ZkgroupsException] = {}
    for first in range(0, len(groups), AT_A_TIME):
        found |= _ask_some(asker, kind, groups[first : first + AT_A_TIME], Deadline(timeout), read)
    return found


def _ask_some(
    asker: Asker, kind: str, groups: Sequence[str], deadline: Deadline, read: Callable[[str, Any], T]
) -> dict[str, T | ZkgroupsException]:
    found: dict[str, T | ZkgroupsException] = {}
    reason = KafkaError(KafkaError.NOT_COORDINATOR)
    for patience in attempts(deadline):
        left = [group for group in groups if group not in found]
        answers = ask(asker, kind, left, patience)
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
    text = f"there was no answer about group {group!r} within {deadline.seconds:g} s: {words(reason)}"
    return caused(NotConnectedError(text), reason)


def caused(ours: ZkgroupsException, theirs: KafkaError) -> ZkgroupsException:
    """Chain the cause to an error that is not raised here."""
    ours.__cause__ = KafkaException(theirs)
    return ours


def ask(asker: Asker, kind: str, questions: Sequence[Any], patience: float) -> Answers:
    """The answers that one process got; those to questions it was ended over are not there."""
    return asker.ask(kind, list(_parts(questions)), patience)


def _parts(questions: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(questions), IN_FLIGHT):
        yield questions[first : first + IN_FLIGHT]
