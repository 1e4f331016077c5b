"""A coordinator with a clock for tests, and short ways to send requests to it."""

from __future__ import annotations

from itertools import count
from typing import Any

from zkgroups import TopicPartition, coordinator
from zkgroups.coordinator import GroupCoordinator
from zkgroups.coordinator.coordinator import Outcome
from zkgroups.coordinator.storage import Result, Work

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
SESSION = 10.0
REBALANCE = 60.0
DELAY = 3.0
AT_ONCE = coordinator.CoordinatorConfig(initial_rebalance_delay=0)
OLD: dict[str, Any] = {"requires_known_member_id": False}
"""A client that joins with one request."""


def subscribed(*topics: str, owned: tuple[TopicPartition, ...] = ()) -> bytes:
    return coordinator.encode_subscription(coordinator.Subscription(frozenset(topics), frozenset(owned)))


def protocols(*names: str, metadata: bytes | None = None) -> tuple[coordinator.GroupProtocol, ...]:
    data = subscribed("orders") if metadata is None else metadata
    return tuple(coordinator.GroupProtocol(name, data) for name in names)


RANGE = protocols("range")


class Clients:
    """Sends requests to a coordinator. Answers are kept by request id until they are read."""

    def __init__(self, config: coordinator.CoordinatorConfig = AT_ONCE, storage: Any = None) -> None:
        ids = count(1)
        self.storage = coordinator.MemoryStorage({"orders": 4}) if storage is None else storage
        self.coordinator = GroupCoordinator(self.storage, config, new_id=lambda: str(next(ids)))
        self.now = 0.0
        self.answers: dict[int, Any] = {}
        self.incidents: list[coordinator.ReportIncident] = []
        self.commits: list[coordinator.ReportCommit] = []
        self._ids = count(1)

    # Sending and receiving

    def send(self, request: coordinator.Request) -> int:
        """Send a request, and return its id."""
        id = next(self._ids)
        self.keep(self.coordinator.request(id, request, self.now))
        return id

    def ask(self, request: coordinator.Request) -> Any:
        """Send a request that is answered at once."""
        return self.answers.pop(self.send(request))

    def keep(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, coordinator.SendAnswer):
                assert outcome.request_id not in self.answers, "answered twice"
                self.answers[outcome.request_id] = outcome.answer
            elif isinstance(outcome, coordinator.ReportCommit):
                self.commits.append(outcome)
            else:
                self.incidents.append(outcome)

    def receive(self, event: Any) -> None:
        self.keep(self.coordinator.receive(event, self.now))

    def receive_work(self, work_id: int, result: Result) -> None:
        """Report the result of slow work."""
        self.receive(coordinator.WorkFinished(work_id, result))

    def wait(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        while (deadline := self.coordinator.next_deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.keep(self.coordinator.pass_time(self.now))
        self.now = end

    def answer(self, id: int) -> Any:
        """Take the answer of a request that was parked."""
        return self.answers.pop(id)

    def is_parked(self, id: int) -> bool:
        return id not in self.answers

    @property
    def group(self) -> coordinator.GroupMetadata:
        group = self.coordinator.group(GROUP)
        assert group is not None
        return group

    @property
    def state(self) -> str:
        return self.group.state

    @property
    def members(self) -> list[str]:
        return [member.member_id for member in self.group.members]

    @property
    def reported(self) -> list[str]:
        return [report.incident.name for report in self.incidents]

    # Requests

    def join(self, member_id: str = "", **fields: Any) -> int:
        return self.send(join_request(member_id, **fields))

    def new_id(self, **fields: Any) -> str:
        """Ask for a member id."""
        answer = self.ask(join_request("", **fields))
        assert answer.error.name == "MEMBER_ID_REQUIRED"
        return str(answer.member_id)

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        generation = fields.pop("generation", None)
        generation = self.group.generation if generation is None else generation
        return self.send(coordinator.SyncRequest(GROUP, member_id, generation, assignments or {}, **fields))

    def beat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> str:
        known = self.group.generation if generation is None else generation
        return str(self.ask(coordinator.HeartbeatRequest(GROUP, member_id, known, instance_id)).error.name)

    def leave(self, *members: str | coordinator.MemberIdentity) -> list[str]:
        identities = tuple(coordinator.MemberIdentity(each) if isinstance(each, str) else each for each in members)
        answer = self.ask(coordinator.LeaveRequest(GROUP, identities))
        assert answer.error == 0
        return [error.name for error in answer.members]

    def send_use(self, offset: int = 17, at: TopicPartition = ORDERS, **fields: Any) -> int:
        value = coordinator.CommittedValue(offset, fields.pop("metadata", ""))
        return self.send(coordinator.CommitRequest(fields.pop("group", GROUP), {at: value}, **fields))

    def commit(self, offset: int = 17, at: TopicPartition = ORDERS, **fields: Any) -> str:
        return str(self.answers.pop(self.send_use(offset, at, **fields)).errors[at].name)

    def fetch(self, *partitions: TopicPartition, group: str = GROUP) -> dict[str, int]:
        answer = self.ask(coordinator.FetchRequest({group: partitions or None})).groups[group]
        assert answer.error == 0
        return {str(at): value.offset for at, value in answer.offsets.items()}

    def list(self, **filters: Any) -> dict[str, str]:
        answer = self.ask(coordinator.ListRequest(**{name: frozenset(values) for name, values in filters.items()}))
        return {group.group: group.state for group in answer.groups}

    def describe(self, group: str = GROUP) -> Any:
        [described] = self.ask(coordinator.DescribeRequest((group,))).groups
        return described

    def delete(self, *groups: str) -> dict[str, str]:
        return {name: error.name for name, error in self.ask(coordinator.DeleteGroupsRequest(groups)).errors.items()}

    def send_delete_offsets(self, *partitions: TopicPartition) -> int:
        return self.send(coordinator.DeleteOffsetsRequest(GROUP, partitions))

    def delete_offsets(self, *partitions: TopicPartition) -> Any:
        answer = self.answers.pop(self.send_delete_offsets(*partitions))
        return answer.error.name, {str(at): error.name for at, error in answer.errors.items()}

    # Whole stories

    def stable(self, *client_ids: str, **fields: Any) -> list[str]:
        """Let clients form a stable group from an empty one, with a leader that assigns one byte to each."""
        members = self.joined(*client_ids, **fields)
        self.settle(members)
        assert self.state == "Stable"
        return members

    def joined(self, *client_ids: str, **fields: Any) -> list[str]:
        """Let clients begin a generation, from an empty group. The first one leads. They have not synced."""
        fields.setdefault("requires_known_member_id", False)
        parked = [self.join(client_id=name, **fields) for name in client_ids]
        if len(parked) > 1 and not self.is_parked(parked[0]):
            parked[0] = self.join(self.answer(parked[0]).member_id, client_id=client_ids[0], **fields)
        while any(map(self.is_parked, parked)):
            self.wait(DELAY)
        answers = [self.answer(id) for id in parked]
        assert {answer.error.name for answer in answers} == {"NONE"}
        return [answer.member_id for answer in answers]

    def settle(self, members: list[str]) -> None:
        """Let all members sync. The leader assigns to each the last letter of its id."""
        for id in [self.sync(member, {each: each[-1:].encode() for each in members}) for member in members]:
            if id in self.answers:
                assert self.answer(id).error == 0


def join_request(member_id: str = "", **fields: Any) -> coordinator.JoinRequest:
    fields = {
        "group": GROUP,
        "protocols": RANGE,
        "session_timeout": SESSION,
        "rebalance_timeout": REBALANCE,
        "client_id": "app",
        **fields,
    }
    return coordinator.JoinRequest(member_id=member_id, **fields)


class SlowStorage:
    """Keeps work until the test lets it finish."""

    def __init__(self) -> None:
        self.inner = coordinator.MemoryStorage({"orders": 4})
        self.slow: tuple[type, ...] = ()
        self.lost: set[str] = set()
        self.open: list[tuple[int, Work]] = []
        self.done: list[Work] = []

    def start(self, work_id: int, work: Work) -> Result | None:
        if isinstance(work, self.slow):
            self.open.append((work_id, work))
            return None
        self.done.append(work)
        return self.inner.start(work_id, work)

    def may_be_lost(self, group: str) -> bool:
        return group in self.lost

    def take(self) -> tuple[int, Result]:
        """Carry out the oldest open work, and return its result."""
        work_id, work = self.open.pop(0)
        self.done.append(work)
        return work_id, self.inner.start(work_id, work)
