"""Migrations with each login, while the servers of ZooKeeper restart in turn."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.releases import needs_tls
from zkgroups import TopicPartition
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.kafka import BrokerOptions
from zkgroups.migration import local
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

from .doors import LOGINS, SECRET, Doors
from .test_members import refused_to_others

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(1000), needs_tls]

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
    assert SECRET not in "\n".join(record.getMessage() for record in caplog.records)
    assert any(record.levelno <= logging.DEBUG for record in caplog.records)


def while_restarting(doors: Doors, number: int, step: Callable[[], T]) -> T:
    """Carry out a step while a server restarts."""
    thread = threading.Thread(target=doors.restart, args=(doors.nodes[number],))
    thread.start()
    try:
        return step()
    finally:
        thread.join()
