"""Requests of members and administrators are checked here, and become events of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..core.znodes.topic_partition import TopicPartition
from . import group_events as events
from . import storage, values
from .consumer_protocol import CONSUMER
from .generation_rules import schedule_cleanup
from .group import Group, GroupState, described
from .join_rules import admit, check_commit, check_heartbeat, check_member, check_sync
from .outbox import Outbox
from .transitions import TRANSITIONS
from .values import KafkaError

# All groups of a coordinator. A group is loaded from the storage before its first request is processed.


Then = Callable[[Group], None]
Refuse = Callable[[KafkaError], None]


class GroupsInMemory:
    """The groups that are loaded, and the requests that wait until a group is loaded."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._groups: dict[str, Group] = {}
        self._waiting: dict[str, list[tuple[Then, Refuse]]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(tuple(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> Group | None:
        """Return a group; None if it is not loaded."""
        return self._groups.get(name)

    def use(self, name: str, then: Then, refuse: Refuse) -> None:
        """Call `then` with the group, now or when it is loaded, or `refuse` with an error if it cannot be loaded.

        A group that the storage does not know has `exists=False`. It is removed again, unless `then` creates it.
        """
        if (group := self._groups.get(name)) is not None:
            then(group)
        elif name in self._waiting:
            self._waiting[name].append((then, refuse))
        else:
            self._waiting[name] = [(then, refuse)]
            self._outbox.start(storage.LoadGroup(name), lambda result: self._loaded(name, result))

    def keep(self, group: Group) -> None:
        """Keep a group from now on, until it is deleted or expires."""
        if not group.exists:
            group.exists = True
            schedule_cleanup(group)

    def drop(self, group: Group, error: KafkaError) -> None:
        """Remove a group from memory. Its parked requests get the error."""
        group.receive(events.GroupDropped(error))
        del self._groups[group.name]

    def _loaded(self, name: str, result: storage.Result) -> None:
        waiting = self._waiting.pop(name)
        if not isinstance(result, storage.GroupLoaded):
            error = result.error if isinstance(result, storage.WorkFailed) else KafkaError.COORDINATOR_NOT_AVAILABLE
            for _then, refuse in waiting:
                refuse(error)
            return
        group = Group(name, self._outbox, TRANSITIONS, result.generation, result.protocol_type)
        self._groups[name] = group
        if result.exists:
            self.keep(group)
        for then, refuse in waiting:
            if self._groups.get(name) is group:
                then(group)
            else:  # an earlier request has deleted the group
                self.use(name, then, refuse)
        if not group.exists and self._groups.get(name) is group:
            del self._groups[name]


# The requests of members: join, sync, heartbeat, leave and commit. They are checked here, and become group events.


class MemberRequests:
    """Checks the requests of members. All methods answer a request, or pass it on as an event."""

    def __init__(self, outbox: Outbox, groups: GroupsInMemory) -> None:
        self._outbox = outbox
        self._groups = groups

    def join(self, request_id: int, request: values.JoinRequest, group: Group) -> None:
        admitted = admit(group, request_id, request)
        if isinstance(admitted, KafkaError):
            if admitted is KafkaError.GROUP_MAX_SIZE_REACHED:
                self._give_place_up(group, request.member_id)
                request = replace(request, member_id="")
            self._refuse(request_id, request, admitted)
            return
        self._groups.keep(group)
        group.receive(admitted)

    def _give_place_up(self, group: Group, member_id: str) -> None:
        """Remove a member that is refused because the group is full: the others must not wait for it."""
        if member_id in group.members.pending_ids:
            group.receive(events.PendingIdDropped(member_id))
        elif member_id in group.members:
            group.receive(events.MemberLeft(member_id))

    def sync(self, request_id: int, request: values.SyncRequest, group: Group) -> None:
        self._pass_on(group, check_sync(group, request), request_id, request, events.MemberSynced(request_id, request))

    def heartbeat(self, request_id: int, request: values.HeartbeatRequest, group: Group) -> None:
        event = events.HeartbeatReceived(request_id, request.member_id)
        self._pass_on(group, check_heartbeat(group, request), request_id, request, event)

    def commit(self, request_id: int, request: values.CommitRequest, group: Group) -> None:
        if not group.exists:
            if request.generation >= 0:
                self._refuse(request_id, request, KafkaError.ILLEGAL_GENERATION)
                return
            self._groups.keep(group)
        self._pass_on(
            group, check_commit(group, request), request_id, request, events.CommitReceived(request_id, request)
        )

    def leave(self, request_id: int, request: values.LeaveRequest, group: Group) -> None:
        errors = tuple(self._leave(group, member) for member in request.members)
        self._outbox.answer(request_id, values.LeaveAnswer(KafkaError.NONE, errors))

    def _leave(self, group: Group, leaving: values.MemberIdentity) -> KafkaError:
        """Remove one member. An administrator may name a static member by its instance id alone."""
        member_id = leaving.member_id
        if not member_id:
            member_id = group.members.static_ids.get(leaving.instance_id or "", "")
        elif member_id in group.members.pending_ids:
            group.receive(events.PendingIdDropped(member_id))
            return KafkaError.NONE
        error = check_member(group, member_id, leaving.instance_id)
        if not error:
            group.receive(events.MemberLeft(member_id))
        return error

    def _pass_on(
        self,
        group: Group,
        error: KafkaError,
        request_id: int,
        request: values.SyncRequest | values.HeartbeatRequest | values.CommitRequest,
        event: events.GroupEvent,
    ) -> None:
        if error:
            self._refuse(request_id, request, error)
        else:
            group.receive(event)

    def _refuse(
        self,
        request_id: int,
        request: values.JoinRequest | values.SyncRequest | values.HeartbeatRequest | values.CommitRequest,
        error: KafkaError,
    ) -> None:
        self._outbox.answer(request_id, values.refusal(request, error))


# The requests of administrators and their tools: fetch, list, describe and delete.


GROUP_TYPE = "classic"
"""The type of all groups here, in Kafka's words."""


class AdminRequests:
    """Answers the requests of administrators, from the groups in the storage and the groups in memory."""

    def __init__(self, outbox: Outbox, groups: GroupsInMemory) -> None:
        self._outbox = outbox
        self._groups = groups

    def locate(self, request_id: int, request: values.LocateRequest) -> None:
        """Find the other coordinators of groups. The groups are not loaded here."""

        def answer(found: storage.GroupsLocated) -> values.LocateAnswer:
            return values.LocateAnswer(KafkaError.NONE, found.elsewhere, found.are_elected)

        self._read(request_id, request, storage.LocateGroups(request.groups), answer)

    def fetch(self, request_id: int, request: values.FetchRequest) -> None:
        """Fetch offsets. The group may be in any state, and need not exist."""

        def answer(found: storage.OffsetsRead) -> values.FetchAnswer:
            return values.FetchAnswer(found.groups)

        self._read(request_id, request, storage.ReadOffsets(request.groups), answer)

    def list(self, request_id: int, request: values.ListRequest) -> None:
        def answer(found: storage.StoredListed) -> values.ListAnswer:
            return values.ListAnswer(KafkaError.NONE, self._listed(request, found))

        self._read(request_id, request, storage.ListStored(), answer)

    def _listed(self, request: values.ListRequest, stored: storage.StoredListed) -> tuple[values.ListedGroup, ...]:
        found = {name: values.ListedGroup(name, each.protocol_type, each.state) for name, each in stored.groups.items()}
        for group in self._groups:
            if group.exists and (group.state is not GroupState.EMPTY or group.name not in found):
                found[group.name] = values.ListedGroup(group.name, group.protocol_type, group.state)
        states = {state.casefold() for state in request.states}
        types = {type.casefold() for type in request.types}
        if types and GROUP_TYPE not in types:
            return ()
        groups = (group for _name, group in sorted(found.items()))
        return tuple(group for group in groups if not states or group.state.casefold() in states)

    def describe(self, request_id: int, request: values.DescribeRequest) -> None:
        def answer(found: storage.StoredDescribed) -> values.DescribeAnswer:
            groups = (described(name, self._existing(name), found.groups.get(name)) for name in request.groups)
            return values.DescribeAnswer(tuple(groups))

        self._read(request_id, request, storage.DescribeStored(request.groups), answer)

    def _read(
        self, request_id: int, request: values.Request, work: storage.Work, answer: Callable[[Any], values.Answer]
    ) -> None:
        """Start work that reads, and answer with its result, or with its error."""

        def finish(result: storage.Result) -> None:
            error = _error_of(result)
            self._outbox.answer(request_id, values.refusal(request, error) if error else answer(result))

        self._outbox.start(work, finish)

    def _existing(self, name: str) -> Group | None:
        group = self._groups.get(name)
        return group if group is not None and group.exists else None

    def delete_groups(self, request_id: int, request: values.DeleteGroupsRequest) -> None:
        """Delete each group that has no members. The answer is sent when the last result is known."""
        names = set(request.groups)
        errors: dict[str, KafkaError] = {}

        def done(name: str, error: KafkaError) -> None:
            errors[name] = error
            if len(errors) == len(names):
                in_order = {group: errors[group] for group in request.groups}
                self._outbox.answer(request_id, values.DeleteGroupsAnswer(in_order))

        if not names:
            self._outbox.answer(request_id, values.DeleteGroupsAnswer({}))
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
                self._outbox.start(storage.RemoveGroup(name), lambda result: done(_error_of(result)))

        self._groups.use(name, then, done)

    def delete_offsets(self, request_id: int, request: values.DeleteOffsetsRequest, group: Group) -> None:
        """Delete offsets of topics to which no member subscribes. If the subscriptions are unknown, delete nothing."""
        if not group.exists:
            self._outbox.answer(request_id, values.DeleteOffsetsAnswer(KafkaError.GROUP_ID_NOT_FOUND))
            return
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            self._outbox.answer(request_id, values.DeleteOffsetsAnswer(KafkaError.NON_EMPTY_GROUP))
            return
        free = tuple(at for at in request.partitions if not _is_subscribed(group, at))
        refused = dict.fromkeys(request.partitions, KafkaError.GROUP_SUBSCRIBED_TO_TOPIC)

        def removed(result: storage.Result) -> None:
            errors = refused | dict.fromkeys(free, _error_of(result))
            if isinstance(result, storage.OffsetsRemoved):
                errors |= result.errors
            self._outbox.answer(request_id, values.DeleteOffsetsAnswer(KafkaError.NONE, errors))

        if free:
            self._outbox.start(storage.RemoveOffsets(group.name, free), removed)
        else:
            self._outbox.answer(request_id, values.DeleteOffsetsAnswer(KafkaError.NONE, refused))


def _is_subscribed(group: Group, at: TopicPartition) -> bool:
    if group.state is GroupState.EMPTY:
        return False
    return group.topics is None or at.topic in group.topics


def _error_of(result: storage.Result) -> KafkaError:
    return result.error if isinstance(result, storage.WorkFailed) else KafkaError.NONE
