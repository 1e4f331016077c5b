"""The requests of administrators and their tools: fetch, list, describe and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.znodes.topic_partition import TopicPartition
from .group.group import Group, GroupState
from .group.metadata import described
from .groups_in_memory import GroupsInMemory
from .outbox import Outbox
from .storage.work import (
    DescribeStored,
    GroupsLocated,
    ListStored,
    LocateGroups,
    OffsetsRead,
    OffsetsRemoved,
    ReadOffsets,
    RemoveGroup,
    RemoveOffsets,
    Result,
    StoredDescribed,
    StoredListed,
    WorkFailed,
)
from .values.answers import (
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    FetchAnswer,
    FetchedOffsets,
    ListAnswer,
    ListedGroup,
    LocateAnswer,
    refusal,
)
from .values.consumer_protocol import CONSUMER
from .values.kafka_errors import KafkaError
from .values.offset_values import CommittedValue
from .values.requests import (
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchRequest,
    ListRequest,
    LocateRequest,
    Request,
)

GROUP_TYPE = "classic"
"""The type of all groups here, in Kafka's words."""


class AdminRequests:
    """Answers the requests of administrators, from the groups in the storage and the groups in memory."""

    def __init__(self, outbox: Outbox, groups: GroupsInMemory) -> None:
        self._outbox = outbox
        self._groups = groups

    def locate(self, request_id: int, request: LocateRequest) -> None:
        """Find the other coordinators of groups. The groups are not loaded here."""

        def located(result: Result) -> None:
            if isinstance(result, GroupsLocated):
                self._outbox.answer(request_id, LocateAnswer(KafkaError.NONE, result.elsewhere, result.are_elected))
            else:
                self._refuse(request_id, request, result)

        self._outbox.start(LocateGroups(request.groups), located)

    def fetch(self, request_id: int, request: FetchRequest) -> None:
        """Fetch offsets. The group may be in any state, and need not exist."""

        def read(result: Result) -> None:
            if not isinstance(result, OffsetsRead):
                self._refuse(request_id, request, result)
                return
            found = {group: _fetched(result.groups.get(group, {})) for group in request.groups}
            self._outbox.answer(request_id, FetchAnswer(found))

        self._outbox.start(ReadOffsets(request.groups), read)

    def list(self, request_id: int, request: ListRequest) -> None:
        def listed(result: Result) -> None:
            if isinstance(result, StoredListed):
                self._outbox.answer(request_id, ListAnswer(KafkaError.NONE, self._listed(request, result)))
            else:
                self._refuse(request_id, request, result)

        self._outbox.start(ListStored(), listed)

    def _listed(self, request: ListRequest, stored: StoredListed) -> tuple[ListedGroup, ...]:
        found = {name: ListedGroup(name, each.protocol_type, each.state) for name, each in stored.groups.items()}
        for group in self._groups:
            if group.exists and (group.state is not GroupState.EMPTY or group.name not in found):
                found[group.name] = ListedGroup(group.name, group.protocol_type, group.state)
        states = {state.casefold() for state in request.states}
        types = {type.casefold() for type in request.types}
        if types and GROUP_TYPE not in types:
            return ()
        groups = (group for _name, group in sorted(found.items()))
        return tuple(group for group in groups if not states or group.state.casefold() in states)

    def describe(self, request_id: int, request: DescribeRequest) -> None:
        def read(result: Result) -> None:
            if not isinstance(result, StoredDescribed):
                self._refuse(request_id, request, result)
                return
            groups = (described(name, self._existing(name), result.groups.get(name)) for name in request.groups)
            self._outbox.answer(request_id, DescribeAnswer(tuple(groups)))

        self._outbox.start(DescribeStored(request.groups), read)

    def _existing(self, name: str) -> Group | None:
        group = self._groups.get(name)
        return group if group is not None and group.exists else None

    def delete_groups(self, request_id: int, request: DeleteGroupsRequest) -> None:
        """Delete each group that has no members. The answer is sent when the last result is known."""
        names = set(request.groups)
        errors: dict[str, KafkaError] = {}

        def done(name: str, error: KafkaError) -> None:
            errors[name] = error
            if len(errors) == len(names):
                in_order = {group: errors[group] for group in request.groups}
                self._outbox.answer(request_id, DeleteGroupsAnswer(in_order))

        if not names:
            self._outbox.answer(request_id, DeleteGroupsAnswer({}))
        for name in sorted(names):
            self._delete_group(name, lambda error, name=name: done(name, error))  # type: ignore[misc]

    def _delete_group(self, name: str, done: Callable[[KafkaError], None]) -> None:
        def then(group: Group) -> None:
            if not group.exists:
                done(KafkaError.GROUP_ID_NOT_FOUND)
            elif group.state is not GroupState.EMPTY:
                done(KafkaError.NON_EMPTY_GROUP)
            else:
                self._groups.drop(group, KafkaError.COORDINATOR_NOT_AVAILABLE)
                self._outbox.start(RemoveGroup(name), lambda result: done(_error_of(result)))

        self._groups.use(name, then, done)

    def delete_offsets(self, request_id: int, request: DeleteOffsetsRequest, group: Group) -> None:
        """Delete offsets of topics to which no member subscribes. If the subscriptions are unknown, delete nothing."""
        if not group.exists:
            self._outbox.answer(request_id, DeleteOffsetsAnswer(KafkaError.GROUP_ID_NOT_FOUND))
            return
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            self._outbox.answer(request_id, DeleteOffsetsAnswer(KafkaError.NON_EMPTY_GROUP))
            return
        free = tuple(at for at in request.partitions if not _is_subscribed(group, at))
        refused = dict.fromkeys(request.partitions, KafkaError.GROUP_SUBSCRIBED_TO_TOPIC)

        def removed(result: Result) -> None:
            errors = refused | dict.fromkeys(free, _error_of(result))
            if isinstance(result, OffsetsRemoved):
                errors |= result.errors
            self._outbox.answer(request_id, DeleteOffsetsAnswer(KafkaError.NONE, errors))

        if free:
            self._outbox.start(RemoveOffsets(group.name, free), removed)
        else:
            self._outbox.answer(request_id, DeleteOffsetsAnswer(KafkaError.NONE, refused))

    def _refuse(self, request_id: int, request: Request, result: Result) -> None:
        error = _error_of(result) or KafkaError.COORDINATOR_NOT_AVAILABLE
        self._outbox.answer(request_id, refusal(request, error))


def _fetched(offsets: Mapping[TopicPartition, CommittedValue] | KafkaError) -> FetchedOffsets:
    return FetchedOffsets(offsets) if isinstance(offsets, KafkaError) else FetchedOffsets(KafkaError.NONE, offsets)


def _is_subscribed(group: Group, at: TopicPartition) -> bool:
    if group.state is GroupState.EMPTY:
        return False
    return group.topics is None or at.topic in group.topics


def _error_of(result: Result) -> KafkaError:
    return result.error if isinstance(result, WorkFailed) else KafkaError.NONE
