"""Callbacks of watches."""

from __future__ import annotations

import logging
import threading

import pytest

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.testing import TcpProxy

from .conftest import Connect
from .test_watch_end import TROUBLE, Trouble
from .waiting import AT_ONCE, in_time
from .watching import ENOUGH

pytestmark = pytest.mark.zookeeper


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_callbacks_run_on_the_thread_of_the_watch_and_may_call_zookeeper(
    registry: Registry, group: Consumergroup
) -> None:
    kazoos = {thread.ident for thread in threading.enumerate()}
    threads: set[threading.Thread] = set()
    done = threading.Event()

    def copy(change: Change) -> None:
        threads.add(threading.current_thread())
        if isinstance(change.now, CommittedOffset):
            registry.group("copy").offsets.set(change.now.at, change.now.offset)
            done.set()

    with group.watch(Watched.OFFSETS).follow(copy):
        group.offsets.set(P0, 5)
        assert done.wait(ENOUGH)
    assert {thread.name for thread in threads} == {"zkgroups-watch-billing"}
    assert not kazoos & {thread.ident for thread in threads}
    assert not any(thread.is_alive() for thread in threads)
    copied = registry.group("copy").offsets.fetch(P0)
    assert copied is not None
    assert copied.offset == 5


def test_a_callback_that_fails_is_logged_and_called_again(
    group: Consumergroup, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail(change: Change) -> None:
        if change.kind is ChangeKind.APPEARED:
            done.set()
        raise ZeroDivisionError(change.path)

    with caplog.at_level(logging.ERROR, "zkgroups"), group.watch(Watched.OFFSETS).follow(fail):
        group.offsets.set(P0, 5)
        assert done.wait(ENOUGH)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
    assert "the callback for offsets of group billing failed" in caplog.text


def test_a_callback_may_close_its_watch(group: Consumergroup) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    found: list[Change] = []
    ended = threading.Event()
    offsets = group.watch(Watched.OFFSETS)

    def once(change: Change) -> None:
        found.append(change)
        offsets.close()
        ended.set()

    offsets.follow(once)
    assert ended.wait(ENOUGH)
    offsets.close()
    assert [change.kind for change in found] == [ChangeKind.RESCANNED]


@TROUBLE
def test_close_ends_the_thread_of_a_callback(far: Watch, proxy: TcpProxy, trouble: Trouble) -> None:
    far.follow(lambda _change: None)
    with trouble(proxy), in_time(AT_ONCE):
        far.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zkgroups-watch")]


def test_a_callback_of_a_closed_registry_ends_with_a_log_line(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    registry = connect()
    begun = threading.Event()
    with registry.group("billing").watch(Watched.MEMBERS).follow(lambda _change: begun.set()) as members:
        assert begun.wait(ENOUGH)
        registry.close()
        assert members._thread is not None
        members._thread.join(30)
        assert not members._thread.is_alive()
    assert "stopped watching members of group billing: the connection to ZooKeeper is closed" in caplog.text


def test_a_watch_has_one_callback(group: Consumergroup) -> None:
    with (
        group.watch(Watched.MEMBERS).follow(lambda _change: None) as members,
        pytest.raises(RuntimeError, match="already has a callback"),
    ):
        members.follow(lambda _change: None)
