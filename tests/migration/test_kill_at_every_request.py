"""A whole migration without Spark and its rollback, by a process that is killed at every request to the brokers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.kafka import Brokers
from zkgroups.kafka.wire.errors import addresses
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from ..kafka.wire.conftest import run
from ..kafka.wire.cutting_proxy import CuttingProxy, Moment
from .conftest import MakeTopic
from .follow.conftest import offsets_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

MOMENTS = (Moment.BEFORE, Moment.AFTER)
SCRIPT = """
import sys
from pathlib import Path
from zkgroups.kafka import BrokerOptions
from zkgroups.migration import arrow_rows
from zkgroups.migration.local import ZooKeeperSource, apply, plan, rollback, verify
arrow_rows.MAX_GROUPS = 1
folder, zookeeper, groups, brokers = sys.argv[1:]
source, brokers = ZooKeeperSource(zookeeper=zookeeper, groups=groups), BrokerOptions(brokers)
moved = Path(folder, "moved")
if not Path(folder, "plan", "_SUCCESS").exists():
    assert not plan(folder, source, brokers).blocked
if not moved.exists():
    applied = apply(folder, brokers, source, execute=True)
    assert not applied.left and not applied.failed, applied
    verified = verify(folder, brokers, source)
    assert verified.counts.keys() <= {"equal", "no offset"}, verified
    moved.touch()
undone = rollback(folder, brokers, source, execute=True)
assert not undone.left and not undone.failed, undone
assert not {"pyspark", "py4j", "pandas"} & set(sys.modules)
"""


class Scene:
    """Two groups, each in a chunk of its own. The target of one has had offsets before, with metadata."""

    def __init__(self, registry: Registry, hosts: str, broker: KafkaBroker, brokers: Brokers, topic: str) -> None:
        self._registry, self._hosts, self._broker, self._brokers = registry, hosts, broker, brokers
        self._at = [TopicPartition(topic, number) for number in range(2)]
        self._count = 0

    async def migrate(self, folder: Path, kill: tuple[int, Moment] | None = None) -> int:
        """Run the script, and again if it was killed. Check both sides. Return the number of requests."""
        self._count += 1
        first, second = names = [f"{self._at[0].topic}-{self._count}-{which}" for which in "ab"]
        before = {self._at[0]: NativeOffset(first, self._at[0], 1, "größe")}
        self._brokers.commit({first: before})
        offsets = {first: {self._at[0]: 3, self._at[1]: 4}, second: {self._at[0]: 2}}
        for name, of_group in offsets.items():
            self._registry.group(name).offsets.set_many(of_group)
        arguments = (str(folder / str(self._count)), self._hosts, f"{self._at[0].topic}-{self._count}-.*")
        [address] = addresses(self._broker.address)
        async with CuttingProxy(address) as proxy:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, *arguments, str(proxy.address))
            if kill is not None:
                proxy.arm(*kill, process.kill)
            assert await process.wait() == (0 if kill is None else -9), kill
            requests = proxy.passed
        if kill is not None:
            again = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, *arguments, self._broker.address)
            assert await again.wait() == 0, kill
        assert self._brokers.committed(names) == {first: before, second: {}}, kill
        assert {name: offsets_of(self._registry, name) for name in names} == offsets
        assert not marks.read(self._registry._context, names)
        return requests


@pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_migration_that_is_killed_at_any_request_is_finished_and_rolled_back_by_the_next_run(
    registry: Registry,
    zookeeper_hosts: str,
    broker: KafkaBroker,
    brokers: Brokers,
    make_topic: MakeTopic,
    tmp_path: Path,
    every: bool,
) -> None:
    """At two of the requests, and for longer at all of them."""
    topic = make_topic()
    for partition in range(2):
        broker.write(topic, partition, 5)
    scene = Scene(registry, zookeeper_hosts, broker, brokers, topic)
    requests = run(scene.migrate(tmp_path))
    kills = [(number, moment) for number in range(1, requests + 1) for moment in MOMENTS]
    for kill in kills if every else [(requests // 3, Moment.AFTER), (2 * requests // 3, Moment.BEFORE)]:
        run(scene.migrate(tmp_path, kill))
