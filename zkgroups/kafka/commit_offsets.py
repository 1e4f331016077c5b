"""Offsets are committed for Kafka's own groups, without taking part in them.

A thousand in one request, and several groups at a time. A broker answers for each partition, and so do we: None where
the offset is there now, or the error. What has had no answer is looked for, and sent again only where it is not there:
the same number, sent twice, is the same as once. Where it could not be found out, that is the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from confluent_kafka import KafkaError

from ..core.kafka_values import NativeOffset
from ..core.migration.plain_groups import Numbers, Shape
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..deadline import Deadline
from ..exceptions import (
    GroupInUseError,
    InvalidInputError,
    InvalidOptionError,
    NotConnectedError,
    OutcomeUnknownError,
    ZkgroupsException,
)
from .errors import is_retriable, translate, words
from .fetch_offsets import MAX_TEXT_BYTES, check_native_group, committed
from .isolated_client import AT_A_TIME, IN_FLIGHT, caused
from .native_groups import LOOK, in_use
from .retry import attempts
from .worker import Asker

Offsets = Mapping[str, Mapping[TopicPartition, NativeOffset | int]]
Outcomes = dict[str, Mapping[TopicPartition, ZkgroupsException | None]]

# Of one request, of requests that are under way together, and of one process.
_A_CALL: Final = 1_000
_IN_FLIGHT: Final = 20_000
_OF_A_PROCESS: Final = 100_000
_MAX_OFFSET: Final = 2**63 - 1
_MAX_EPOCH: Final = 2**31 - 1


@dataclass(eq=False, slots=True)
class Call:
    """Offsets of one group that go together."""

    group: str
    offsets: Sequence[NativeOffset] | Numbers

    def each(self) -> list[NativeOffset]:
        """One by one."""
        if isinstance(self.offsets, Numbers):
            return [NativeOffset(self.group, at, offset) for at, offset in self.offsets.items()]
        return list(self.offsets)

    def question(self) -> tuple[Any, ...]:
        """The group and columns, as `ExactOffsets` takes them."""
        if isinstance(self.offsets, Numbers):
            shape = self.offsets.shape
            return self.group, shape.topics, shape.partitions, self.offsets.offsets, None, None
        return (
            self.group,
            [each.at.topic for each in self.offsets],
            [each.at.partition for each in self.offsets],
            [each.offset for each in self.offsets],
            [each.metadata for each in self.offsets],
            [each.leader_epoch for each in self.offsets],
        )


def is_sendable(offsets: Mapping[TopicPartition, NativeOffset | int]) -> TypeGuard[Numbers]:
    """Whether these are numbers only, and in order."""
    return isinstance(offsets, Numbers) and len(offsets) > 0 and min(offsets.offsets) >= 0


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


def commit(asker: Asker, offsets: Sequence[NativeOffset], plain: Mapping[str, Numbers], timeout: float) -> Outcomes:
    """Commit all these, and tell of each what became of it."""
    outcomes: Outcomes = {}
    for calls in _packed(_calls(offsets, plain), AT_A_TIME, _OF_A_PROCESS):
        for group, those in _Commit(asker, calls, Deadline(timeout)).run().items():
            outcomes[group] = {**outcomes[group], **those} if group in outcomes else those
    refused = {
        group: [at for at, error in those.items() if isinstance(error, GroupInUseError)]
        for group, those in outcomes.items()
        if any(those.values())
    }
    live = in_use(asker, [group for group, those in refused.items() if those], max(LOOK, timeout))
    for group, error in live.items():
        outcomes[group] = {**outcomes[group], **dict.fromkeys(refused[group], error)}
    return outcomes


def _calls(offsets: Sequence[NativeOffset], plain: Mapping[str, Numbers]) -> Iterator[Call]:
    groups: defaultdict[str, list[NativeOffset]] = defaultdict(list)
    for each in offsets:
        groups[each.group].append(each)
    for group, numbers in plain.items():
        if len(numbers) <= _A_CALL:
            yield Call(group, numbers)
        else:
            groups[group] += Call(group, numbers).each()
    for group, those in groups.items():
        for first in range(0, len(those), _A_CALL):
            yield Call(group, those[first : first + _A_CALL])


def _packed(calls: Iterable[Call], most: int, offsets: int) -> Iterator[list[Call]]:
    """So many calls together, with so many offsets in all; there is always one."""
    pack: list[Call] = []
    size = 0
    for call in calls:
        if pack and (len(pack) == most or size + len(call.offsets) > offsets):
            yield pack
            pack, size = [], 0
        pack.append(call)
        size += len(call.offsets)
    if pack:
        yield pack


class _Commit:
    """Some calls, and what became of each of their offsets."""

    def __init__(self, asker: Asker, calls: Sequence[Call], deadline: Deadline) -> None:
        self._asker = asker
        self._calls = calls
        self._deadline = deadline
        self._done: set[Call] = set()
        """Those of which every offset is there."""
        self._outcomes: dict[NativeOffset, ZkgroupsException | None] = {}
        self._sent: set[NativeOffset] = set()
        self._reason = KafkaError(KafkaError.NOT_COORDINATOR)

    def run(self) -> Outcomes:
        """Send what is left, and look for what has had no answer, until nothing is left or time is up."""
        left = self._calls
        for patience in attempts(self._deadline):
            self._send(left, patience)
            if left := self._left(left):
                self._look([each for call in left for each in call.each() if each in self._sent], max(LOOK, patience))
                left = self._left(left)
            if not left:
                break
        for each in (each for call in left for each in call.each()):
            self._outcomes[each] = self._open(each)
        return self._told()

    def _told(self) -> Outcomes:
        outcomes: Outcomes = {}
        for call in self._done:
            well = (
                _well(call.offsets.shape)
                if isinstance(call.offsets, Numbers)
                else dict.fromkeys(each.at for each in call.offsets)
            )
            outcomes[call.group] = {**outcomes[call.group], **well} if call.group in outcomes else well
        others: defaultdict[str, dict[TopicPartition, ZkgroupsException | None]] = defaultdict(dict)
        for each, outcome in self._outcomes.items():
            others[each.group][each.at] = outcome
        return outcomes | {group: {**outcomes.get(group, {}), **those} for group, those in others.items()}

    def _left(self, calls: Sequence[Call]) -> Sequence[Call]:
        left = (
            Call(call.group, [each for each in call.each() if each not in self._outcomes])
            for call in calls
            if call not in self._done
        )
        return [call for call in left if call.offsets]

    def _send(self, calls: Sequence[Call], patience: float) -> None:
        waves = [[call.question() for call in wave] for wave in _packed(calls, IN_FLIGHT, _IN_FLIGHT)]
        answers = self._asker.ask("commit", waves, patience)
        self._done |= {calls[n] for n, found in answers.found.items() if found is True}
        for n, error in answers.errors.items():
            for each in calls[n].each():
                self._note(each, error)
        for n, rows in answers.found.items():
            if rows is not True:
                self._note_all(calls[n], {(topic, number): error for topic, number, error in rows})
        unsure = (call for call in calls[: answers.sent] if call not in self._done)
        self._sent.update(each for call in unsure for each in call.each())

    def _note_all(self, call: Call, errors: Mapping[tuple[str, int], tuple[int, str] | None]) -> None:
        for each in call.each():
            error = errors.get((each.at.topic, each.at.partition), _NO_ANSWER)
            self._note(each, None if error is None else KafkaError(*error))

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


@lru_cache(maxsize=256)
def _well(shape: Shape) -> Mapping[TopicPartition, ZkgroupsException | None]:
    return MappingProxyType(dict.fromkeys(shape.ats))
