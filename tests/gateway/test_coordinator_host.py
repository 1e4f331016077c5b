"""The coordinator in the event loop, in simulated time: a storage that answers later, failures, and a process that was
suspended; and work beside the callbacks that forward bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from tests.simulation.loop import simulated
from zkgroups import TopicPartition, coordinator
from zkgroups.coordinator import KafkaError
from zkgroups.coordinator.storage import Result, Work
from zkgroups.exceptions import NotConnectedError
from zkgroups.gateway.connections.streams import Worker
from zkgroups.gateway.groups.coordinator_host import CoordinatorHost, MemoryGroupStorage, Report
from zkgroups.gateway.groups.group_service import GroupService
from zkgroups.gateway.protocol.offered_apis import GroupRouting, Permission
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.codec import ReceivedRequest, RequestKind
from zkgroups.kafka.wire.errors import Address, DamagedRequestError

from .running import QUICK

AT = TopicPartition("orders", 0)
RANGE = coordinator.GroupProtocol(
    "range", coordinator.encode_subscription(coordinator.Subscription(frozenset({"orders"})))
)


class LateStorage:
    """Answers all work from another thread, a moment later."""

    def __init__(self, report: Callable[[coordinator.Event], None]) -> None:
        self._memory = coordinator.MemoryStorage({"orders": 2})
        self._report = report

    def start(self, work_id: int, work: Work) -> Result | None:
        result = self._memory.start(work_id, work)
        asyncio.get_running_loop().run_in_executor(None, self._report, coordinator.WorkFinished(work_id, result))
        return None

    def may_be_lost(self, _group: str) -> bool:
        return False


def hosted(storage: Callable[[Report], Any], use: Callable[[CoordinatorHost], Awaitable[None]]) -> None:
    async def main() -> None:
        host = CoordinatorHost(storage, QUICK, most_groups=10)
        async with asyncio.timeout(300):
            await use(host)
        host.close()

    with simulated():
        asyncio.run(main())


async def joined(host: CoordinatorHost, *, session: float = 60.0) -> tuple[str, int]:
    """Join alone. Return the member id and the generation."""
    request = coordinator.JoinRequest("g", "", (RANGE,), session, 10.0, requires_known_member_id=False)
    answer: Any = await host.answer(request)
    assert answer.error is KafkaError.NONE
    return answer.member_id, answer.generation


def test_a_storage_may_answer_later() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host)
        synced: Any = await host.answer(coordinator.SyncRequest("g", member, generation, {}))
        assert len(coordinator.decode_assignment(synced.assignment) or ()) == 2
        committed: Any = await host.answer(
            coordinator.CommitRequest("g", {AT: coordinator.CommittedValue(7)}, member, generation)
        )
        assert committed.errors == {AT: KafkaError.NONE}

    hosted(LateStorage, use)


@pytest.mark.parametrize("error", [NotConnectedError("no broker"), TypeError("a defect")])
def test_a_plan_that_fails_is_an_error_for_the_member_and_not_silence(error: Exception) -> None:
    async def counts(_topics: Collection[str]) -> Mapping[str, int]:
        raise error

    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host)
        synced: Any = await host.answer(coordinator.SyncRequest("g", member, generation, {}))
        assert synced.error is not KafkaError.NONE

    hosted(lambda report: MemoryGroupStorage(counts, report), use)


def test_a_member_expires_by_itself() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=10.0)
        await host.answer(coordinator.SyncRequest("g", member, generation, {}))
        while host.groups()[0].members:
            await asyncio.sleep(0.1)
        late: Any = await host.answer(coordinator.HeartbeatRequest("g", member, generation))
        assert late.error is KafkaError.UNKNOWN_MEMBER_ID

    hosted(lambda _report: coordinator.MemoryStorage({"orders": 1}), use)


def test_a_heartbeat_that_arrived_while_the_process_was_suspended_counts() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=10.0)
        await host.answer(coordinator.SyncRequest("g", member, generation, {}))
        time.sleep(17)  # the whole process stands still
        for _ in range(3):  # the timer is called before the heartbeat is read from its connection
            await asyncio.sleep(0)
        found: Any = await host.answer(coordinator.HeartbeatRequest("g", member, generation))
        assert found.error is KafkaError.NONE

    hosted(lambda _report: coordinator.MemoryStorage({"orders": 1}), use)


def test_a_member_expires_after_the_process_was_suspended_although_requests_keep_coming() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=10.0)
        await host.answer(coordinator.SyncRequest("g", member, generation, {}))
        time.sleep(17)  # the whole process stands still
        while host.groups()[0].members:
            await host.answer(coordinator.HeartbeatRequest("another", "x", 1))
            await asyncio.sleep(0.1)
        late: Any = await host.answer(coordinator.HeartbeatRequest("g", member, generation))
        assert late.error is KafkaError.UNKNOWN_MEMBER_ID

    hosted(lambda _report: coordinator.MemoryStorage({"orders": 1}), use)


def test_everything_unanswered_is_answered_at_the_end() -> None:
    async def use(host: CoordinatorHost) -> None:
        waiting = asyncio.create_task(
            host.answer(coordinator.JoinRequest("g", "", (RANGE,), 1.0, 10.0, requires_known_member_id=False))
        )
        await asyncio.sleep(0)
        host.close()
        answer: Any = await waiting
        assert answer.error is KafkaError.NOT_COORDINATOR

    hosted(lambda _report: coordinator.MemoryStorage({"orders": 1}), use)


class Permitted:
    """A client with all permissions. Its broker knows no groups."""

    host, node = "/10.0.0.7", 1

    async def ask(self, message: Any, _version: int) -> Any:
        described = codec.DescribeGroupsResponse.DescribedGroup
        return codec.DescribeGroupsResponse(groups=[described(group_id=name) for name in message.groups])

    async def allowed(self, _permission: Permission, groups: Sequence[str]) -> set[str]:
        return set(groups)

    async def brokers(self) -> Mapping[int, Address]:
        return {1: Address("gateway", 9092)}

    def add_gateway(self, _address: Address) -> int:
        return 1


@pytest.mark.parametrize(
    "request_of",
    [
        lambda names: codec.DescribeGroupsRequest(groups=names),
        lambda names: codec.DeleteGroupsRequest(groups_names=names),
        lambda names: codec.FindCoordinatorRequest(key_type=0, coordinator_keys=names),
        lambda names: codec.OffsetFetchRequest(
            groups=[codec.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        ),
    ],
    ids=["describe", "delete", "find", "fetch"],
)
def test_others_are_served_while_a_client_names_very_many_groups(request_of: Callable[[list[str]], Any]) -> None:
    names = [f"group-{number}" for number in range(6000)]
    message = request_of(names)
    key = message.API_KEY
    received = ReceivedRequest(RequestKind(key, codec.SERVED[key].last, 1), "tool", message)
    turns = 0

    async def use(host: CoordinatorHost) -> None:
        nonlocal turns
        service = GroupService(host, GroupRouting("group-.*[02468]"), read_only=False, most_entries=6000)
        if key != codec.DESCRIBE_GROUPS:
            service = GroupService(host, GroupRouting(), read_only=False, most_entries=6000)
        answering = asyncio.ensure_future(service.answer(received, Permitted()))
        while not answering.done():
            turns += 1
            await asyncio.sleep(0)
        answer = answering.result()
        found = next(getattr(answer, name) for name in ("groups", "results", "coordinators") if hasattr(answer, name))
        assert sorted(getattr(each, "group_id", None) or each.key for each in found) == sorted(names)

    hosted(lambda _report: coordinator.MemoryStorage(), use)
    assert turns >= len(names) / 500


def test_others_are_served_between_the_long_requests_of_several_clients() -> None:
    member = codec.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id=None)
    message = codec.LeaveGroupRequest(group_id="g", members=[member] * 600)
    received = ReceivedRequest(RequestKind(codec.LEAVE_GROUP, 4, 1), "tool", message)
    turns = 0

    async def use(host: CoordinatorHost) -> None:
        nonlocal turns
        service = GroupService(host, GroupRouting(), read_only=False, most_entries=6000)
        answering = asyncio.gather(*(service.answer(received, Permitted()) for _ in range(8)))
        while not answering.done():
            turns += 1
            await asyncio.sleep(0)
        assert {len(each.members) for each in answering.result()} == {600}

    hosted(lambda _report: coordinator.MemoryStorage(), use)
    assert turns >= 16, "each request has two long steps, and each of them needs a turn of its own"


def test_only_requests_for_groups_here_are_limited() -> None:
    def asked(*names: str) -> ReceivedRequest:
        topic = codec.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(9)))
        messages = (
            codec.OffsetFetchRequest(group_id=names[0], topics=[topic]),
            codec.DescribeGroupsRequest(groups=names),
        )
        message = messages[len(names) > 1]
        return ReceivedRequest(RequestKind(message.API_KEY, 5, 1), "tool", message)

    async def use(host: CoordinatorHost) -> None:
        service = GroupService(host, GroupRouting("here.*"), read_only=False, most_entries=9)
        assert await service.answer(asked("brokers"), Permitted()) is None
        for request in (asked("here"), asked(*(f"group-{number}" for number in range(10)))):
            with pytest.raises(DamagedRequestError, match="10 entries; at most 9 are accepted"):
                await service.answer(request, Permitted())

    hosted(lambda _report: coordinator.MemoryStorage(), use)


def test_a_client_without_a_known_strategy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    strategy = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="stream", metadata=b"")
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000}
    message = codec.JoinGroupRequest(
        group_id="g", member_id="", protocol_type="consumer", protocols=[strategy], **times
    )
    received = ReceivedRequest(RequestKind(codec.JOIN_GROUP, 5, 1), "streams-app", message)

    async def use(host: CoordinatorHost) -> None:
        service = GroupService(host, GroupRouting(), read_only=False, most_entries=6000)
        errors = [(await service.answer(received, Permitted())).error_code for _ in range(3)]
        assert errors == [KafkaError.INCONSISTENT_GROUP_PROTOCOL] * 3

    hosted(lambda _report: coordinator.MemoryStorage(), use)
    [logged] = [each.getMessage() for each in caplog.records]
    assert "refused client 'streams-app' at /10.0.0.7 in group 'g': it offers 'stream'" in logged


# Work beside the callbacks


async def nothing() -> None:
    pass


async def fail() -> None:
    raise OSError("broken")


async def cancelled_elsewhere() -> None:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


def test_work_that_was_cancelled_has_failed() -> None:
    """Otherwise a connection would go on without the answer to a request."""

    async def end(work: Coroutine[Any, Any, None]) -> BaseException | None:
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        worker = Worker(ended.set_result)
        worker.start(work)
        assert worker.is_busy
        error = await asyncio.wait_for(ended, 30)
        assert not worker.is_busy
        return error

    async def kinds() -> list[type]:
        return [type(await end(work())) for work in (nothing, fail, cancelled_elsewhere)]

    with simulated():
        found = asyncio.run(kinds())
    assert found == [type(None), OSError, asyncio.CancelledError]
