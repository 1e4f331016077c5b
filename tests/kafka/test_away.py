"""Brokers that are unreachable, start late, hang, or end: an error in time with the reason, or the late answer."""

from __future__ import annotations

import gc
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.simulation.loop import simulated
from tests.waiting import eventually
from zkgroups import deadline
from zkgroups.core.kafka_values import NativeGroup, NativeState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import NotConnectedError, OutcomeUnknownError, UnreachableError
from zkgroups.input_errors import ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster, Runner
from zkgroups.kafka.wire.connection import Code
from zkgroups.kafka.wire.errors import AnswerLostError, NotSentError
from zkgroups.kafka.wire.link import Link
from zkgroups.testing import KafkaBroker, kafka_broker

from .wire.fake_broker import FakeBroker, never

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

AT = TopicPartition("orders", 0)

CALLS: dict[str, Callable[[Brokers], object]] = {
    "partitions": lambda brokers: brokers.partitions(),
    "ranges": lambda brokers: brokers.ranges([AT]),
    "offsets_at": lambda brokers: brokers.offsets_at({AT: 0}),
    "message_times": lambda brokers: brokers.message_times({AT: 0}, now_ms=0),
    "committed": lambda brokers: brokers.committed(["billing"]),
    "groups": lambda brokers: brokers.groups(["billing"]),
    "commit": lambda brokers: brokers.commit({"billing": {AT: 7}}),
    "delete_groups": lambda brokers: brokers.delete_groups(["no-such-group"]),
    "delete_offsets": lambda brokers: brokers.delete_offsets({"no-such-group": [AT]}),
    "topic_ids": lambda brokers: brokers.topic_ids(["orders"]),
    "offsets_retention": lambda brokers: brokers.offsets_retention(),
}


@pytest.mark.parametrize("reason", ["Connection refused", "Name or service not known", "no answer from"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_brokers_that_are_away_are_an_error_in_time_with_the_reason_and_nothing_is_printed(
    reason: str, call: Callable[[Brokers], object], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing does not wait for them."""
    with simulated() as network, ExitStack() as stack:
        address = "127.0.0.1:1"
        if reason.startswith("Name"):
            address = "no-such-host.invalid:9092"
            monkeypatch.setattr(socket, "getaddrinfo", _unknown_name)
        elif reason.startswith("no answer"):
            runner, fake = Runner(), FakeBroker()
            stack.callback(runner.close)
            runner.run(fake.start())
            fake.behaviours = dict.fromkeys(codec.APIS, never)
            address = str(fake.address)
        with Brokers.connect(address, timeout=5) as brokers:
            began = network.machine.now
            with pytest.raises(NotConnectedError, match=rf"no broker at {address} answered within 5 s: .*{reason}"):
                call(brokers)
            ended = network.machine.now
        assert ended - began < 10
        assert network.machine.now - ended < 1
    assert capfd.readouterr() == ("", "")


def _unknown_name(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_brokers_that_all_refuse_connections_are_waited_for_only_for_the_shorter_timeout() -> None:
    with simulated() as network:
        with (
            Brokers.connect("127.0.0.1:1,127.0.0.1:2", timeout=600, unreachable_timeout=0.1) as brokers,
            pytest.raises(UnreachableError, match=r"answered within 0\.1 s: .*refused"),
        ):
            brokers.partitions(["orders"])
        network.listen(3, lambda _end: None)  # it never answers
        with (
            Brokers.connect("127.0.0.1:1,127.0.0.1:3", timeout=1, unreachable_timeout=0.1) as brokers,
            pytest.raises(NotConnectedError, match="within 1 s: ") as caught,
        ):
            brokers.partitions(["orders"])
    assert not isinstance(caught.value, UnreachableError)


def test_nothing_is_printed_without_logging_nor_at_the_end_of_a_process_that_does_not_close(own: KafkaBroker) -> None:
    program = f"""
from zkgroups.exceptions import NotConnectedError
from zkgroups.kafka import Brokers
try:
    Brokers.connect("127.0.0.1:1", timeout=0.5).partitions()
except NotConnectedError:
    print("away")
brokers = Brokers.connect({own.address!r}, timeout=120)
brokers.partitions()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout, result.stderr) == (0, "away\n", "")


def _after_answers(monkeypatch: pytest.MonkeyPatch, count: int) -> threading.Event:
    """Return an event that is set once this many requests about groups were answered."""
    reached, left = threading.Event(), itertools.count(count, -1)
    exchange = Link.exchange

    async def counted(self: Link, key: int, frame: Any, *, timeout: float = 30.0) -> tuple[int, bytes]:
        found = await exchange(self, key, frame, timeout=timeout)
        if key in (codec.OFFSET_COMMIT, codec.DESCRIBE_GROUPS, codec.DELETE_GROUPS) and next(left) == 0:
            reached.set()
        return found

    monkeypatch.setattr(Link, "exchange", counted)
    return reached


def test_requests_during_a_restart_of_the_broker_are_carried_out_or_reported_as_failed(
    own: KafkaBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, descriptions and deletions continue after the restart."""
    doing = {_commit_all: 1, _describe_all: 1, _delete_all: 0}
    groups = {call: [f"restarted{call.__name__}-{number}" for number in range(1500)] for call in doing}
    with ExitStack() as stack:
        brokers = {call: stack.enter_context(Brokers.connect(own.address, timeout=180)) for call in doing}
        for call in (_describe_all, _delete_all):
            assert _commit_all(brokers[_commit_all], groups[call]) == []
        pool = stack.enter_context(ThreadPoolExecutor(len(doing)))
        reached = _after_answers(monkeypatch, 100)
        called = {call: pool.submit(call, brokers[call], groups[call]) for call in doing}
        assert reached.wait(60)
        own.kill()
        own.start()
        for call, there in doing.items():
            assert called[call].result(400) == [], call
            found = brokers[call].committed(groups[call])
            assert {len(offsets) for offsets in found.values()} == {there}
            assert {offset.offset for offsets in found.values() for offset in offsets.values()} <= {9}
    assert capfd.readouterr().err == ""


def _commit_all(brokers: Brokers, groups: list[str]) -> list[object]:
    found = brokers.commit({group: {AT: 9} for group in groups})
    return [error for outcomes in found.values() for error in outcomes.values() if error is not None]


def _describe_all(brokers: Brokers, groups: list[str]) -> list[object]:
    return [each for each in brokers.groups(groups).values() if getattr(each, "state", None) is not NativeState.EMPTY]


def _delete_all(brokers: Brokers, groups: list[str]) -> list[object]:
    return [error for error in brokers.delete_groups(groups).values() if error is not None]


def _only_lists_topics(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=2))
    except KafkaException:
        return False


def test_a_commit_waits_for_a_broker_that_never_had_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has yet to create the topic for groups, and may not answer the first request."""
    monkeypatch.setattr(kafka_broker, "serves", _only_lists_topics)
    with KafkaBroker() as fresh, Brokers.connect(fresh.address, timeout=180) as brokers:
        fresh.create_topic("orders")
        assert "__consumer_offsets" not in brokers.partitions()

        assert brokers.commit({"billing": {AT: 3}}) == {"billing": {AT: None}}


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lose the answers to all requests that write: after they were carried out, or before, or unsent."""

    def start(moment: str) -> None:
        ask, exchange = Cluster.ask, Cluster.exchange

        async def lost(sent: Coroutine[Any, Any, Any]) -> NoReturn:
            if moment == "carried out":
                await sent
            sent.close()
            raise NotSentError("no connection") if moment == "unsent" else AnswerLostError("the answer was lost")

        async def without_answer(self: Cluster, node: int | None, request: Any, **more: Any) -> Any:
            found = ask(self, node, request, **more)
            return await (lost(found) if request.API_KEY == codec.DELETE_GROUPS else found)

        async def exchanged(self: Cluster, node: int, key: int, build: Any, **more: Any) -> Any:
            found = exchange(self, node, key, build, **more)
            return await (lost(found) if key == codec.OFFSET_COMMIT else found)

        monkeypatch.setattr(Cluster, "ask", without_answer)
        monkeypatch.setattr(Cluster, "exchange", exchanged)

    return start


def test_a_request_whose_answer_is_lost_is_resolved_by_reading(own: KafkaBroker, lose: Callable[[str], None]) -> None:
    lose("carried out")
    with Brokers.connect(own.address, timeout=60) as brokers:
        assert brokers.commit({"unheard": {AT: 5}}) == {"unheard": {AT: None}}
        assert brokers.committed(["unheard"])["unheard"][AT].offset == 5
        assert brokers.delete_groups(["unheard"]) == {"unheard": None}
        assert brokers.committed(["unheard"]) == {"unheard": {}}


@pytest.mark.parametrize(("moment", "kind"), [("not carried out", OutcomeUnknownError), ("unsent", NotConnectedError)])
def test_an_unanswered_request_and_an_unsent_request_have_different_errors(
    own: KafkaBroker, lose: Callable[[str], None], moment: str, kind: type[ZkgroupsException]
) -> None:
    lose(moment)

    errors: list[object] = []

    def fail(brokers: Brokers) -> bool:
        """Repeat nothing that changes something. A busy machine may not even connect within the timeout."""
        errors[:] = brokers.commit({"billing": {AT: 8}})["billing"][AT], brokers.delete_groups(["billing"])["billing"]
        return [type(error) for error in errors] == [kind, kind]

    with Brokers.connect(own.address, timeout=2) as brokers:
        assert eventually(partial(fail, brokers)), errors
    assert "billing" in str(errors[0])
    with Brokers.connect(own.address) as brokers:
        assert brokers.committed(["billing"])["billing"][AT].offset == 7


def test_work_that_takes_longer_than_the_timeout_goes_on_while_answers_come(
    own: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt gets an answer for one group, and takes half of the timeout, on a clock that jumps."""
    ask, clock, ahead = Cluster.ask, time.monotonic, 0.0

    async def first_only(self: Cluster, node: int | None, request: Any, **more: Any) -> Any:
        nonlocal ahead
        found = await ask(self, node, request, **more)
        if request.API_KEY == codec.DESCRIBE_GROUPS:
            ahead += 60
            for each in found.groups[1:]:
                each.error_code = int(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return found

    monkeypatch.setattr(Cluster, "ask", first_only)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock() + ahead))
    names = [f"slow-{number}" for number in range(4)]
    with Brokers.connect(own.address, timeout=120) as brokers:
        assert brokers.groups(names) == {name: NativeGroup(name, NativeState.DEAD) for name in names}


def test_connections_end_with_brokers_that_were_never_closed(own: KafkaBroker) -> None:
    before = set(threading.enumerate())
    brokers = Brokers.connect(own.address)
    brokers.committed(["billing"])
    [loop] = [each for each in set(threading.enumerate()) - before if each.name == "zkgroups-kafka"]
    del brokers
    gc.collect()
    assert eventually(lambda: not loop.is_alive())
