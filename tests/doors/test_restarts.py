"""Members and migrations with each login, while the servers of ZooKeeper restart in turn. No secret is logged."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from kazoo.exceptions import NoAuthError

from tests.consumer.conftest import Running, plant_topic
from tests.releases import needs_tls
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.exceptions import NoPermissionError
from zkgroups.kafka import BrokerOptions
from zkgroups.migration import local
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

from .doors import LOGINS, LONGEST, SECRET, Doors

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(1000), needs_tls]

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.mark.parametrize("login", LOGINS)
def test_members_keep_their_partitions_while_all_servers_restart_in_turn(
    doors: Doors, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    with ExitStack() as stack:
        registries = [stack.enter_context(doors.connect(login, session_timeout=LONGEST)) for _ in range(2)]
        plant_topic(registries[0].client, "orders", 2)
        group = f"members by {login}"
        members = [
            stack.enter_context(Running(each.group(group), ["orders"], id=id))
            for each, id in zip(registries, "ab", strict=True)
        ]
        for member, at in zip(members, (P0, P1), strict=True):
            member.until_holding(at)
        sessions = [each.session_id for each in registries]
        generations = [member.generations[-1] for member in members]
        offset = 0
        for node in doors.nodes:
            doors.restart(node)
            offset += 10
            for generation in generations:
                generation.commit(dict.fromkeys(generation.partitions, offset))
        assert [member.generations[-1] for member in members] == generations
        assert all(generation.active for generation in generations)
        assert [each.session_id for each in registries] == sessions
        offsets = registries[0].group(group).offsets.fetch_many([P0, P1])
        assert [each.offset for each in offsets.values() if isinstance(each, CommittedOffset)] == [offset] * 2
        passwords = [each.credentials().password for each in registries]
        refused_to_others(doors, group)
    assert_nothing_is_logged(caplog, *passwords)


def assert_nothing_is_logged(caplog: pytest.LogCaptureFixture, *passwords: bytes) -> None:
    assert any(record.name == "kazoo.client" and record.levelno <= logging.DEBUG for record in caplog.records)
    log = "\n".join(record.getMessage() for record in caplog.records)
    for secret in (
        SECRET,
        repr(SECRET)[1:-1],
        *(each.hex() for each in passwords),
        *(repr(each)[2:-1] for each in passwords),
    ):
        assert secret not in log


def refused_to_others(doors: Doors, group: str, topic: str = "orders") -> None:
    """Check that a client without a login can neither read nor change the group."""
    offset = f"/consumers/{group}/offsets/{topic}/0"
    with doors.stranger() as stranger:
        for attempt in (
            lambda: stranger.get(offset),
            lambda: stranger.set(offset, b"0"),
            lambda: stranger.get_children(f"/consumers/{group}/offsets"),
            lambda: stranger.create(f"/consumers/{group}/offsets/{topic}/7"),
        ):
            with pytest.raises(NoAuthError):
                stranger.retry(attempt)
    with Registry.connect(doors.plain_address, timeout=LONGEST) as registry, pytest.raises(NoPermissionError):
        registry.group(group).offsets.fetch(TopicPartition(topic, 0))


T = TypeVar("T")
GROUPS = 3
_numbers = itertools.count()


@pytest.mark.parametrize("login", LOGINS)
def test_groups_are_moved_and_moved_back_while_all_servers_restart_in_turn(
    doors: Doors, login: str, kafka_broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    topic = f"locked-{next(_numbers)}"
    kafka_broker.create_topic(topic, 2)
    names = [f"moved by {login} {number}" for number in range(GROUPS)]
    at = TopicPartition(topic, 0)
    with doors.connect(login) as registry:
        for name in names:
            registry.group(name).offsets.set_many({at: 0, TopicPartition(topic, 1): 0})
    source = ZooKeeperSource(**doors.source(login), groups=f"moved by {login} .*")
    brokers, folder = BrokerOptions(kafka_broker.address), str(tmp_path / "plan")

    planned = while_restarting(doors, 0, lambda: local.plan(folder, source, brokers))
    assert (planned.groups, planned.blocked) == (GROUPS, 0)
    applied = while_restarting(doors, 1, lambda: local.apply(folder, brokers, source, execute=True))
    assert (applied.groups, applied.left, applied.failed) == (GROUPS, 0, 0)
    verified = while_restarting(doors, 2, lambda: local.verify(folder, brokers, source))
    assert dict(verified.counts) == {"equal": 2 * GROUPS}
    assert {each.stage for each in local.status(folder, brokers, source)} == {MigrationStage.DONE}
    undone = local.rollback(folder, brokers, source, execute=True)
    assert (undone.left, undone.failed) == (0, 0)
    refused_to_others(doors, names[0], topic)
    found = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert SECRET.encode() not in found
    assert_nothing_is_logged(caplog)


def while_restarting(doors: Doors, number: int, step: Callable[[], T]) -> T:
    """Carry out a step while a server restarts."""
    thread = threading.Thread(target=doors.restart, args=(doors.nodes[number],))
    thread.start()
    try:
        return step()
    finally:
        thread.join()
