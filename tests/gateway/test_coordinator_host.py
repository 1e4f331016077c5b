"""The coordinator in the event loop: a storage that answers later, failures, and a process that was suspended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import pytest

from zkgroups import TopicPartition
from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    Event,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    KafkaError,
    MemoryStorage,
    Subscription,
    SyncRequest,
    WorkFinished,
    decode_assignment,
    encode_subscription,
)
from zkgroups.coordinator.storage.work import Result, Work
from zkgroups.exceptions import NotConnectedError
from zkgroups.gateway.groups.coordinator_host import CoordinatorHost, Report
from zkgroups.gateway.groups.memory_group_storage import MemoryGroupStorage

from .running import QUICK

AT = TopicPartition("orders", 0)
RANGE = GroupProtocol("range", encode_subscription(Subscription(frozenset({"orders"}))))


class LateStorage:
    """Answers all work from another thread, a moment later."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        self._memory = MemoryStorage({"orders": 2})
        self._report = report

    def start(self, work_id: int, work: Work) -> Result | None:
        result = self._memory.start(work_id, work)
        asyncio.get_running_loop().run_in_executor(None, self._report, WorkFinished(work_id, result))
        return None

    def may_be_lost(self, _group: str) -> bool:
        return False


def hosted(storage: Callable[[Report], Any], use: Callable[[CoordinatorHost], Awaitable[None]]) -> None:
    async def main() -> None:
        host = CoordinatorHost(storage, QUICK, most_groups=10)
        async with asyncio.timeout(30):
            await use(host)
        host.close()

    asyncio.run(main())


async def joined(host: CoordinatorHost, *, session: float = 60.0) -> tuple[str, int]:
    """Join alone. Return the member id and the generation."""
    request = JoinRequest("g", "", (RANGE,), session, 10.0, requires_known_member_id=False)
    answer: Any = await host.answer(request)
    assert answer.error is KafkaError.NONE
    return answer.member_id, answer.generation


def test_a_storage_may_answer_later() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host)
        synced: Any = await host.answer(SyncRequest("g", member, generation, {}))
        assert len(decode_assignment(synced.assignment) or ()) == 2
        committed: Any = await host.answer(CommitRequest("g", {AT: CommittedValue(7)}, member, generation))
        assert committed.errors == {AT: KafkaError.NONE}

    hosted(LateStorage, use)


@pytest.mark.parametrize("error", [NotConnectedError("no broker"), TypeError("a defect")])
def test_a_plan_that_fails_is_an_error_for_the_member_and_not_silence(error: Exception) -> None:
    async def counts(_topics: Collection[str]) -> Mapping[str, int]:
        raise error

    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host)
        synced: Any = await host.answer(SyncRequest("g", member, generation, {}))
        assert synced.error is not KafkaError.NONE

    hosted(lambda report: MemoryGroupStorage(counts, report), use)


def test_a_member_expires_by_itself() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=1.0)
        await host.answer(SyncRequest("g", member, generation, {}))
        while host.groups()[0].members:
            await asyncio.sleep(0.01)
        late: Any = await host.answer(HeartbeatRequest("g", member, generation))
        assert late.error is KafkaError.UNKNOWN_MEMBER_ID

    hosted(lambda _report: MemoryStorage({"orders": 1}), use)


def test_a_heartbeat_that_arrived_while_the_process_was_suspended_counts() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=1.0)
        await host.answer(SyncRequest("g", member, generation, {}))
        time.sleep(1.7)  # the whole process stands still
        for _ in range(3):  # the timer is called before the heartbeat is read from its connection
            await asyncio.sleep(0)
        found: Any = await host.answer(HeartbeatRequest("g", member, generation))
        assert found.error is KafkaError.NONE

    hosted(lambda _report: MemoryStorage({"orders": 1}), use)


def test_a_member_expires_after_the_process_was_suspended_although_requests_keep_coming() -> None:
    async def use(host: CoordinatorHost) -> None:
        member, generation = await joined(host, session=1.0)
        await host.answer(SyncRequest("g", member, generation, {}))
        time.sleep(1.7)  # the whole process stands still
        while host.groups()[0].members:
            await host.answer(HeartbeatRequest("another", "x", 1))
            await asyncio.sleep(0.01)
        late: Any = await host.answer(HeartbeatRequest("g", member, generation))
        assert late.error is KafkaError.UNKNOWN_MEMBER_ID

    hosted(lambda _report: MemoryStorage({"orders": 1}), use)


def test_everything_unanswered_is_answered_at_the_end() -> None:
    async def use(host: CoordinatorHost) -> None:
        waiting = asyncio.create_task(
            host.answer(JoinRequest("g", "", (RANGE,), 1.0, 10.0, requires_known_member_id=False))
        )
        await asyncio.sleep(0)
        host.close()
        answer: Any = await waiting
        assert answer.error is KafkaError.NOT_COORDINATOR

    hosted(lambda _report: MemoryStorage({"orders": 1}), use)
