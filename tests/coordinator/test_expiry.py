"""Unused offsets and groups are removed, and nothing else."""

from __future__ import annotations

from zkgroups.coordinator import CoordinatorConfig, GroupMoved, KafkaError
from zkgroups.coordinator.storage.work import ExpireOffsets, WorkFailed

from .clients import AT_ONCE, GROUP, ORDERS, PAYMENTS, Clients, SlowStorage, protocols

DAY = 86400.0
WEEK = 7 * DAY
OLD = {"requires_known_member_id": False}


def test_a_group_without_members_and_offsets_is_removed_after_its_timeout() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=1000, cleanup_interval=600))
    clients.leave(*clients.stable("a"))
    clients.wait(999)
    assert clients.state == "Empty"
    clients.wait(1)
    assert clients.coordinator.groups() == []
    assert clients.reported == ["GROUP_EXPIRED"]
    assert clients.coordinator.next_deadline is None


def test_a_group_is_removed_exactly_when_its_timeout_has_elapsed() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=100))
    [member] = clients.stable("a", session_timeout=300)
    clients.wait(150)
    clients.leave(member)
    clients.wait(99)
    assert clients.state == "Empty"
    clients.wait(1)
    assert clients.coordinator.groups() == []


def test_a_group_with_offsets_is_not_removed() -> None:
    clients = Clients()
    clients.commit()
    clients.wait(DAY)
    assert clients.coordinator.groups() == [GROUP]


def test_a_group_with_members_is_not_removed() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=0, cleanup_interval=5))
    clients.stable("a", session_timeout=300)
    clients.wait(20)
    assert clients.state == "Stable"


def test_a_group_of_which_an_id_waits_to_be_used_is_not_removed() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=0, cleanup_interval=5))
    given = clients.new_id(session_timeout=100)
    clients.wait(50)
    assert clients.answer(clients.join(given)).error == 0


def test_a_removed_group_continues_with_the_stored_generation() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=100))
    clients.leave(*clients.stable("a"))
    clients.wait(1000)
    clients.stable("b")
    assert clients.group.generation == 3


def test_offsets_of_a_simple_consumer_expire_by_the_time_of_their_commit() -> None:
    clients = Clients()
    clients.commit(1, ORDERS)
    clients.wait(DAY)
    clients.commit(2, PAYMENTS)
    clients.wait(WEEK - DAY - 1)
    assert clients.fetch() == {"orders/0": 1, "payments/0": 2}
    clients.wait(601)
    assert clients.fetch() == {"payments/0": 2}
    clients.wait(DAY)
    assert clients.fetch() == {}
    assert clients.coordinator.groups() == []


def test_offsets_of_a_simple_consumer_expire_by_their_commit_also_if_the_group_was_loaded_since() -> None:
    clients = Clients()
    clients.commit(1, ORDERS)
    later = Clients(storage=clients.storage)
    later.now = WEEK - 10
    later.commit(2, PAYMENTS)
    later.wait(700)
    assert later.fetch() == {"payments/0": 2}


def test_offsets_of_an_empty_group_expire_by_the_time_when_it_became_empty() -> None:
    clients = Clients()
    [member] = clients.stable("a", session_timeout=300)
    clients.commit(1, ORDERS, member_id=member, generation=1)
    for _ in range(400):
        clients.wait(299)
        clients.beat(member)
    clients.leave(member)
    clients.wait(WEEK - 1)
    assert clients.fetch() == {"orders/0": 1}
    clients.wait(601)
    assert clients.fetch() == {}


def test_an_offset_that_was_reset_in_an_empty_group_stays_for_the_whole_time() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    clients.commit(1, PAYMENTS)
    clients.wait(WEEK - 10)
    clients.commit(5, ORDERS)
    clients.wait(DAY)
    assert clients.fetch() == {"orders/0": 5}


def test_a_stable_group_keeps_the_offsets_of_its_topics_and_loses_those_of_others() -> None:
    clients = Clients()
    clients.commit(1, ORDERS)
    clients.commit(2, PAYMENTS)
    [member] = clients.stable("a", session_timeout=300)
    for _ in range(2100):
        clients.wait(299)
        clients.beat(member)
    assert clients.now > WEEK
    assert clients.fetch() == {"orders/0": 1}


def test_no_offset_expires_in_a_stable_group_whose_subscriptions_cannot_be_read() -> None:
    for fields in ({"protocols": protocols("range", metadata=b"?")}, {"protocol_type": "connect"}):
        clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, offset_retention=100, cleanup_interval=10))
        clients.commit(2, PAYMENTS)
        clients.stable("a", session_timeout=300, **fields)
        clients.wait(200)
        assert clients.fetch() == {"payments/0": 2}


def test_no_offset_expires_during_a_rebalance() -> None:
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=150, offset_retention=100, cleanup_interval=10))
    clients.commit(2, PAYMENTS)
    clients.join(rebalance_timeout=200, **OLD)
    clients.wait(140)
    assert clients.fetch() == {"payments/0": 2}


def test_offsets_never_expire_without_a_retention_time() -> None:
    clients = Clients(CoordinatorConfig(offset_retention=None))
    clients.commit()
    clients.wait(WEEK * 2)
    assert clients.fetch() == {"orders/0": 17}


def test_a_check_that_fails_is_repeated() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    clients.commit()
    storage.slow = (ExpireOffsets,)
    clients.wait(AT_ONCE.cleanup_interval)
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
    clients.wait(AT_ONCE.cleanup_interval)
    assert len(storage.open) == 1


def test_the_result_of_a_check_means_nothing_to_a_group_that_has_moved() -> None:
    storage = SlowStorage()
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=100), storage)
    clients.leave(*clients.stable("a"))
    storage.slow = (ExpireOffsets,)
    clients.wait(100)
    clients.receive(GroupMoved(GROUP))
    clients.receive_work(*storage.take())
    assert (clients.coordinator.next_deadline, clients.reported) == (None, [])


def test_a_group_that_is_used_again_during_the_check_is_not_removed() -> None:
    storage = SlowStorage()
    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, empty_group_timeout=100), storage)
    clients.leave(*clients.stable("a"))
    storage.slow = (ExpireOffsets,)
    clients.wait(100)
    clients.stable("b")
    clients.receive_work(*storage.take())
    assert clients.state == "Stable"
