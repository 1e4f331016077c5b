"""Offsets are committed for Kafka's own groups, without taking part in them.

A thousand in one request, and several groups at a time. A broker answers for each partition, and so do we: None where
the offset is there now, or the error. What has had no answer is looked for, and sent again only where it is not there:
the same number, sent twice, is the same as once. Where it could not be found out, that is the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError

from ..core.model import NativeOffset, TopicPartition, check_at
from ..exceptions import (
    GroupInUseError,
    InvalidInputError,
    InvalidOptionError,
    NotConnectedError,
    OutcomeUnknownError,
    ZkgroupsException,
)
from ..zookeeper.deadline import Deadline
from .apart import AT_A_TIME, IN_FLIGHT, caused
from .asker import Asker
from .committed import MAX_TEXT_BYTES, check_native_group, committed
from .errors import is_retriable, translate, words
from .groups import LOOK, in_use
from .patience import attempts

Offsets = Mapping[str, Mapping[TopicPartition, NativeOffset | int]]
Outcomes = dict[str, dict[TopicPartition, ZkgroupsException | None]]

# Of one request, of requests that are under way together, and of one process.
_A_CALL: Final = 1_000
_IN_FLIGHT: Final = 20_000
_OF_A_PROCESS: Final = 100_000
_MAX_OFFSET: Final = 2**63 - 1
_MAX_EPOCH: Final = 2**31 - 1

Call = Sequence[NativeOffset]
"""Offsets of one group that go together."""


def checked(offsets: Offsets) -> list[NativeOffset]:
    """What is to be committed, one by one, or an error for what no broker could be sent."""
    names = ((check_native_group(group), those) for group, those in offsets.items())
    return [_checked(group, check_at(at), offset) for group, those in names for at, offset in those.items()]


def _checked(group: str, at: TopicPartition, offset: NativeOffset | int) -> NativeOffset:
    if not isinstance(offset, NativeOffset):
        offset = NativeOffset(group, at, offset)
    if (offset.group, offset.at) != (group, at):
        raise InvalidInputError(f"the offset given for {at} of group {group!r} is another's: {offset}")
    _check_number("offset", offset.offset, _MAX_OFFSET)
    if offset.leader_epoch is not None:
        _check_number("leader_epoch", offset.leader_epoch, _MAX_EPOCH)
    if offset.metadata is not None:
        _check_metadata(offset.metadata)
    # No metadata and empty metadata are the same to a broker, and would not be found to be there.
    return replace(offset, metadata=None) if offset.metadata == "" else offset


def _check_number(option: str, number: object, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise InvalidOptionError(option, number, f"it must be a whole number from 0 to {most}")


def _check_metadata(text: object) -> None:
    if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidOptionError("metadata", text, "it must be text")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidOptionError("metadata", text, f"it must not have more than {MAX_TEXT_BYTES} bytes")


def commit(asker: Asker, offsets: Sequence[NativeOffset], timeout: float) -> Outcomes:
    """Commit all these, and tell of each what became of it."""
    outcomes: Outcomes = defaultdict(dict)
    for calls in _packed(_calls(offsets), AT_A_TIME, _OF_A_PROCESS):
        for each, outcome in _Commit(asker, calls, Deadline(timeout)).run().items():
            outcomes[each.group][each.at] = outcome
    refused = {
        group: [at for at, error in those.items() if isinstance(error, GroupInUseError)]
        for group, those in outcomes.items()
    }
    live = in_use(asker, [group for group, those in refused.items() if those], max(LOOK, timeout))
    for group, error in live.items():
        outcomes[group] |= dict.fromkeys(refused[group], error)
    return dict(outcomes)


def _calls(offsets: Sequence[NativeOffset]) -> Iterator[Call]:
    groups: defaultdict[str, list[NativeOffset]] = defaultdict(list)
    for each in offsets:
        groups[each.group].append(each)
    for those in groups.values():
        for first in range(0, len(those), _A_CALL):
            yield those[first : first + _A_CALL]


def _packed(calls: Iterator[Call] | Sequence[Call], most: int, offsets: int) -> Iterator[list[Call]]:
    """So many calls together, with so many offsets in all; there is always one."""
    pack: list[Call] = []
    size = 0
    for call in calls:
        if pack and (len(pack) == most or size + len(call) > offsets):
            yield pack
            pack, size = [], 0
        pack.append(call)
        size += len(call)
    if pack:
        yield pack


class _Commit:
    """Some calls, and what became of each of their offsets."""

    def __init__(self, asker: Asker, calls: Sequence[Call], deadline: Deadline) -> None:
        self._asker = asker
        self._calls = calls
        self._deadline = deadline
        self._outcomes: dict[NativeOffset, ZkgroupsException | None] = {}
        self._sent: set[NativeOffset] = set()
        self._reason = KafkaError(KafkaError.NOT_COORDINATOR)

    def run(self) -> dict[NativeOffset, ZkgroupsException | None]:
        """Send what is left, and look for what has had no answer, until nothing is left or time is up."""
        left = self._calls
        for patience in attempts(self._deadline):
            self._send(left, patience)
            if left := self._left(left):
                self._look([each for call in left for each in call if each in self._sent], max(LOOK, patience))
                left = self._left(left)
            if not left:
                break
        return self._outcomes | {each: self._open(each) for call in left for each in call}

    def _left(self, calls: Sequence[Call]) -> Sequence[Call]:
        left = ([each for each in call if each not in self._outcomes] for call in calls)
        return [call for call in left if call]

    def _send(self, calls: Sequence[Call], patience: float) -> None:
        waves = [[_question(call) for call in wave] for wave in _packed(calls, IN_FLIGHT, _IN_FLIGHT)]
        answers = self._asker.ask("commit", waves, patience)
        for n, error in answers.errors.items():
            for each in calls[n]:
                self._note(each, error)
        for n, rows in answers.found.items():
            errors = {(topic, number): error for topic, number, error in rows}
            for each in calls[n]:
                error = errors.get((each.at.topic, each.at.partition), _NO_ANSWER)
                self._note(each, None if error is None else KafkaError(*error))
        self._sent.update(each for call in calls[: answers.sent] for each in call)

    def _note(self, each: NativeOffset, error: KafkaError | None) -> None:
        if error is None:
            self._outcomes[each] = None
        elif is_retriable(error) and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            # Also where the broker has answered: to "not coordinator" it comes after having written, too.
            self._reason = error
        else:
            what = f"{each.at} of group {each.group!r}"
            self._outcomes[each] = caused(translate(error, what, group=each.group, at=each.at), error)

    def _look(self, unsure: Sequence[NativeOffset], timeout: float) -> None:
        """Whether those are there of which no answer has come."""
        groups = list(dict.fromkeys(each.group for each in unsure))
        found = committed(self._asker, groups, timeout) if groups else {}
        for each in unsure:
            there = found[each.group]
            if not isinstance(there, ZkgroupsException) and there.get(each.at) == each:
                self._outcomes[each] = None

    def _open(self, each: NativeOffset) -> ZkgroupsException:
        what = f"{each.offset} for {each.at} of group {each.group!r}"
        text = f"within {self._deadline.seconds:g} s: {words(self._reason)}"
        if each in self._sent:
            return caused(OutcomeUnknownError(f"it is not known whether {what} was committed {text}"), self._reason)
        return caused(NotConnectedError(f"no broker could be sent {what} {text}"), self._reason)


_NO_ANSWER: Final = (KafkaError._TIMED_OUT, "no answer for this partition")


def _question(call: Call) -> tuple[str, list[tuple[str, int, int, str | None, int | None]]]:
    rows = [(each.at.topic, each.at.partition, each.offset, each.metadata, each.leader_epoch) for each in call]
    return call[0].group, rows
