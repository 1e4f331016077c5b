"""Committing offsets for groups on the brokers, without joining them.

Up to a thousand offsets go in one request, for several groups at a time. The answer for each partition is None if the
offset is committed, or the error. If a reply is lost, the offset is read back, and sent again only if it is missing.
If that fails, too, the answer is OutcomeUnknownError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError

from ..core.kafka_values import NativeOffset
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..deadline import Deadline
from ..exceptions import GroupInUseError, NotConnectedError, OutcomeUnknownError
from ..input_errors import InvalidInputError, InvalidOptionError, ZkgroupsException
from .errors import is_retriable, translate, words
from .fetch_offsets import MAX_TEXT_BYTES, check_native_group, committed
from .isolated_client import AT_A_TIME, IN_FLIGHT, caused
from .native_groups import LOOK, in_use
from .retry import attempts
from .worker import Asker

Offsets = Mapping[str, Mapping[TopicPartition, NativeOffset | int]]
Outcomes = dict[str, Mapping[TopicPartition, ZkgroupsException | None]]

_MAX_PER_REQUEST: Final = 1_000
_MAX_IN_FLIGHT: Final = 20_000
_MAX_PER_WORKER: Final = 100_000
_MAX_OFFSET: Final = 2**63 - 1
_MAX_EPOCH: Final = 2**31 - 1


@dataclass(eq=False, slots=True)
class CommitRequest:
    """Offsets of one group that are sent together."""

    group: str
    offsets: Sequence[NativeOffset]

    def columns(self) -> tuple[Any, ...]:
        """Return the group and columns, as `OffsetsWithMetadata.commit` takes them."""
        metadata = [each.metadata for each in self.offsets]
        epochs = [each.leader_epoch for each in self.offsets]
        plain = not any(metadata) and epochs.count(None) == len(epochs)
        return (
            self.group,
            [each.at.topic for each in self.offsets],
            [each.at.partition for each in self.offsets],
            [each.offset for each in self.offsets],
            None if plain else metadata,
            None if plain else epochs,
        )


def checked(offsets: Offsets) -> list[NativeOffset]:
    """Return the offsets to commit, or raise an error for values that cannot be sent."""
    names = ((check_native_group(group), those) for group, those in offsets.items())
    return [_checked(group, check_at(at), offset) for group, those in names for at, offset in those.items()]


def _checked(group: str, at: TopicPartition, offset: NativeOffset | int) -> NativeOffset:
    if not isinstance(offset, NativeOffset):
        offset = NativeOffset(group, at, offset)
    if (offset.group, offset.at) != (group, at):
        raise InvalidInputError(
            f"the offset given for {at} of group {group!r} is for {offset.at} of group {offset.group!r}"
        )
    _check_number("offset", offset.offset, _MAX_OFFSET)
    if offset.leader_epoch is not None:
        _check_number("leader_epoch", offset.leader_epoch, _MAX_EPOCH)
    if offset.metadata is not None:
        _check_metadata(offset.metadata)
    # Brokers return empty metadata as no metadata, so the offset would not compare equal when read back.
    return offset._replace(metadata=None) if offset.metadata == "" else offset


def _check_number(option: str, number: object, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise InvalidOptionError(option, number, f"it must be a whole number from 0 to {most}")


def _check_metadata(text: object) -> None:
    if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidOptionError("metadata", text, "it must be text")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidOptionError("metadata", text, f"it must not be longer than {MAX_TEXT_BYTES} bytes")


def commit(asker: Asker, offsets: Sequence[NativeOffset], timeout: float) -> Outcomes:
    """Commit these offsets, and return the outcome of each."""
    outcomes: Outcomes = {}
    for requests in _packed(_requests(offsets), AT_A_TIME, _MAX_PER_WORKER):
        for group, those in _Commit(asker, requests, Deadline(timeout)).run().items():
            outcomes[group] = {**outcomes.get(group, {}), **those}
    refused = {
        group: [at for at, error in those.items() if isinstance(error, GroupInUseError)]
        for group, those in outcomes.items()
        if any(those.values())
    }
    live = in_use(asker, [group for group, those in refused.items() if those], max(LOOK, timeout))
    for group, error in live.items():
        outcomes[group] = {**outcomes[group], **dict.fromkeys(refused[group], error)}
    return outcomes


def _requests(offsets: Sequence[NativeOffset]) -> Iterator[CommitRequest]:
    groups: defaultdict[str, list[NativeOffset]] = defaultdict(list)
    for each in offsets:
        groups[each.group].append(each)
    for group, those in groups.items():
        for first in range(0, len(those), _MAX_PER_REQUEST):
            yield CommitRequest(group, those[first : first + _MAX_PER_REQUEST])


def _packed(requests: Iterable[CommitRequest], most: int, offsets: int) -> Iterator[list[CommitRequest]]:
    """Group requests, at most `most` with at most `offsets` offsets together, but at least one."""
    pack: list[CommitRequest] = []
    size = 0
    for request in requests:
        if pack and (len(pack) == most or size + len(request.offsets) > offsets):
            yield pack
            pack, size = [], 0
        pack.append(request)
        size += len(request.offsets)
    if pack:
        yield pack


class _Commit:
    """Some requests, and the outcome of each of their offsets."""

    def __init__(self, asker: Asker, requests: Sequence[CommitRequest], deadline: Deadline) -> None:
        self._asker = asker
        self._requests = requests
        self._deadline = deadline
        self._outcomes: dict[NativeOffset, ZkgroupsException | None] = {}
        self._sent: set[NativeOffset] = set()
        """Offsets that were sent and have no answer."""
        self._last_error = KafkaError(KafkaError.NOT_COORDINATOR)

    def run(self) -> Outcomes:
        """Send the requests until all offsets have an outcome, or the deadline has passed."""
        left = self._requests
        for timeout in attempts(self._deadline):
            self._send(left, timeout)
            if left := self._remaining(left):
                self._read_back(
                    [each for request in left for each in request.offsets if each in self._sent], max(LOOK, timeout)
                )
                left = self._remaining(left)
            if not left:
                break
        for each in (each for request in left for each in request.offsets):
            self._outcomes[each] = self._timeout_error(each)
        found: defaultdict[str, dict[TopicPartition, ZkgroupsException | None]] = defaultdict(dict)
        for each, outcome in self._outcomes.items():
            found[each.group][each.at] = outcome
        return dict(found)

    def _remaining(self, requests: Sequence[CommitRequest]) -> Sequence[CommitRequest]:
        left = (
            CommitRequest(request.group, [each for each in request.offsets if each not in self._outcomes])
            for request in requests
        )
        return [request for request in left if request.offsets]

    def _send(self, requests: Sequence[CommitRequest], timeout: float) -> None:
        waves = [[request.columns() for request in wave] for wave in _packed(requests, IN_FLIGHT, _MAX_IN_FLIGHT)]
        answers = self._asker.ask("commit", waves, timeout)
        for n, error in answers.errors.items():
            for each in requests[n].offsets:
                self._record(each, error)
        for n, rows in answers.found.items():
            if rows is True:
                self._outcomes |= dict.fromkeys(requests[n].offsets)
            else:
                self._record_all(requests[n], {(topic, number): error for topic, number, error in rows})
        sent = (each for request in requests[: answers.sent] for each in request.offsets)
        self._sent.update(each for each in sent if each not in self._outcomes)

    def _record_all(self, request: CommitRequest, errors: Mapping[tuple[str, int], tuple[int, str] | None]) -> None:
        for each in request.offsets:
            error = errors.get((each.at.topic, each.at.partition), _NO_ANSWER)
            self._record(each, None if error is None else KafkaError(*error))

    def _record(self, each: NativeOffset, error: KafkaError | None) -> None:
        if error is None:
            self._outcomes[each] = None
        elif is_retriable(error) and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            # An error does not prove that nothing was written: a broker may write and then lose its coordinator role.
            self._last_error = error
        else:
            what = f"{each.at} of group {each.group!r}"
            self._outcomes[each] = caused(translate(error, what, group=each.group, at=each.at), error)

    def _read_back(self, unsure: Sequence[NativeOffset], timeout: float) -> None:
        """Find out which offsets without an answer were committed."""
        groups = list(dict.fromkeys(each.group for each in unsure))
        found = committed(self._asker, groups, timeout) if groups else {}
        for each in unsure:
            there = found[each.group]
            if not isinstance(there, ZkgroupsException) and there.get(each.at) == each:
                self._outcomes[each] = None

    def _timeout_error(self, each: NativeOffset) -> ZkgroupsException:
        what = f"offset {each.offset} for {each.at} of group {each.group!r}"
        text = f"within {self._deadline.seconds:g} s: {words(self._last_error)}"
        if each in self._sent:
            error = OutcomeUnknownError(f"it is not known whether {what} was committed {text}")
            return caused(error, self._last_error)
        return caused(NotConnectedError(f"no broker accepted {what} {text}"), self._last_error)


_NO_ANSWER: Final = (KafkaError._TIMED_OUT, "no answer for this partition")
