"""Which copies are written to the brokers, when, and how a release waits for them. Without servers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import TopicPartition
from zkgroups.core.znodes.values import Side
from zkgroups.deadline import uptime
from zkgroups.exceptions import NotConnectedError
from zkgroups.messages import offsets_on_brokers
from zkgroups.messages.broker_offsets import SideReports
from zkgroups.messages.offsets_on_brokers import BrokerCopy

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOTH = frozenset({P0, P1})


class Brokers:
    """Offsets on brokers that answer when the test says so."""

    group = "billing"
    timeout = 30.0

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.written: list[dict[TopicPartition, int]] = []
        self.error: Exception | None = None
        self.writing, self.may_write = threading.Event(), threading.Event()
        self.may_write.set()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        if self.error is not None:
            raise self.error
        return {at: self.offsets.get(at) for at in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        assert timeout > 0
        self.writing.set()
        assert self.may_write.wait(60)
        self.written.append(dict(offsets))
        self.offsets |= offsets

    def close(self) -> None: ...


class Claims(dict[TopicPartition, Any]):
    """Claims that the test takes away."""

    certain_until = uptime() + 3600.0

    def __init__(self, *partitions: TopicPartition) -> None:
        super().__init__({at: type("Claim", (), {"held": True}) for at in partitions})

    def lose(self, at: TopicPartition) -> None:
        self[at].held = False


class Heard:
    """The reports."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.errors: list[Exception] = []
        self.recovered = 0

    def reports(self) -> SideReports:
        return SideReports(
            Side.ZOOKEEPER,
            differ=lambda _at, text: self.differences.append(text),
            cannot=lambda error, _at: self.errors.append(error),
            can=self._recover,
        )

    def _recover(self) -> None:
        self.recovered += 1


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def claims() -> Claims:
    return Claims(P0, P1)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def copy(brokers: Brokers, claims: Claims, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerCopy]:
    monkeypatch.setattr(offsets_on_brokers, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(offsets_on_brokers, "_LONGEST_PAUSE", 0.1)  # while a test stands still, attempts go on failing
    copy = BrokerCopy(brokers, heard.reports(), writes=True)  # type: ignore[arg-type]
    copy.use(claims)  # type: ignore[arg-type]
    yield copy
    brokers.may_write.set()
    copy.close()


def test_committed_offsets_are_copied_but_never_over_higher_ones(copy: BrokerCopy, brokers: Brokers) -> None:
    brokers.offsets = {P0: 5, P1: 50}
    copy.put({P0: 7, P1: 9}, [])
    copy.settle(BOTH)
    assert brokers.written == [{P0: 7}]


def test_an_offset_that_was_reset_replaces_a_higher_one(copy: BrokerCopy, brokers: Brokers) -> None:
    brokers.offsets = {P0: 5, P1: 50}
    copy.put({P1: 9}, [P1])
    copy.settle(BOTH)
    assert brokers.offsets == {P0: 5, P1: 9}


def test_a_reset_counts_also_if_a_later_offset_is_written_instead(copy: BrokerCopy, brokers: Brokers) -> None:
    brokers.offsets, brokers.error = {P1: 50}, NotConnectedError("down")
    copy.put({P1: 3}, [P1])
    copy.put({P1: 9}, [])
    brokers.error = None
    assert eventually(lambda: brokers.offsets == {P1: 9})


def test_copies_that_differ_are_reported_once_and_those_behind_are_written(
    copy: BrokerCopy, brokers: Brokers, heard: Heard
) -> None:
    brokers.offsets = {P0: 5, P1: 50}
    for _ in range(2):
        copy.begin({P0: 7, P1: 9})
        assert eventually(lambda: not copy._begun)
        copy.settle(BOTH)
    assert brokers.offsets == {P0: 7, P1: 50}
    texts = "orders/0: 7 in ZooKeeper, 5 on the brokers; orders/1: 9 in ZooKeeper, 50 on the brokers"
    assert heard.differences == [f"{texts}; reading those of ZooKeeper"]


def test_a_partition_that_was_lost_is_copied_no_more(
    copy: BrokerCopy, brokers: Brokers, claims: Claims, heard: Heard
) -> None:
    brokers.error = NotConnectedError("down")
    copy.put({P0: 7, P1: 9}, [])
    claims.lose(P0)
    before = len(heard.errors)
    assert eventually(lambda: len(heard.errors) > before + 1)  # an attempt has begun since
    brokers.error = None
    assert eventually(lambda: brokers.written)
    assert brokers.written == [{P1: 9}]


def test_nothing_is_written_after_the_session_may_have_ended(
    copy: BrokerCopy, brokers: Brokers, claims: Claims, heard: Heard
) -> None:
    claims.certain_until = uptime() - 1.0
    brokers.commit = lambda _offsets, timeout: heard.errors.append(NotConnectedError(f"{timeout}"))  # type: ignore[method-assign]
    copy.put({P0: 7}, [])
    assert eventually(lambda: heard.errors)
    assert float(str(heard.errors[0])) < 0
    assert brokers.written == []


def assert_waits(copy: BrokerCopy, brokers: Brokers) -> None:
    """Release, and let the brokers answer while the release waits."""
    settled = threading.Thread(target=copy.settle, args=[BOTH])
    settled.start()
    settled.join(0.3)
    assert settled.is_alive()
    brokers.may_write.set()
    settled.join(60)
    assert not settled.is_alive()


def test_a_release_waits_for_a_copy_under_way_and_the_newest_offset_is_written_last(
    copy: BrokerCopy, brokers: Brokers
) -> None:
    brokers.may_write.clear()
    copy.put({P0: 7}, [])
    assert brokers.writing.wait(60)
    copy.put({P0: 8}, [])
    assert_waits(copy, brokers)
    assert brokers.written == [{P0: 7}, {P0: 8}]


def test_a_release_does_not_wait_for_brokers_that_do_not_answer(
    copy: BrokerCopy, brokers: Brokers, heard: Heard
) -> None:
    brokers.error = NotConnectedError("down")
    copy.put({P0: 7, P1: 9}, [])
    assert eventually(lambda: heard.errors)
    before = uptime()
    copy.settle(frozenset({P0}))
    assert uptime() - before < brokers.timeout / 2
    brokers.error = None
    assert eventually(lambda: heard.recovered)
    assert (brokers.written, heard.recovered) == ([{P1: 9}], 1)


def test_after_closing_it_can_be_used_again(copy: BrokerCopy, brokers: Brokers) -> None:
    for offset in (7, 8):
        copy.put({P0: offset}, [])
        copy.settle(BOTH)
        copy.close()
    assert brokers.written == [{P0: 7}, {P0: 8}]


def test_without_writes_differences_are_reported_only(brokers: Brokers, claims: Claims, heard: Heard) -> None:
    brokers.offsets = {P0: 5}
    copy = BrokerCopy(brokers, heard.reports(), writes=False)  # type: ignore[arg-type]
    copy.use(claims)  # type: ignore[arg-type]
    copy.begin({P0: 7})
    assert eventually(lambda: heard.differences)
    copy.settle(BOTH)
    copy.close()
    assert brokers.written == []
