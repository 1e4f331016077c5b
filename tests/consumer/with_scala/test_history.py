"""The history in ZooKeeper's log shows the commits of a Scala member and of a zkgroups member in one group."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.messages.looping import Topic, read_by, written
from tests.waiting import eventually
from zkgroups import Consumergroup, Registry
from zkgroups.core.history.events import Commit, PastInstance
from zkgroups.core.rebalance.assignors import range_assignor
from zkgroups.core.znodes.values import Dialect
from zkgroups.testing import ZooKeeperServer

from .. import journal
from ..history import at
from ..scala import STILL, settle
from .conftest import Ours, Scala


def test_every_commit_has_the_session_and_the_instance_of_its_member(
    legacy_zookeeper: ZooKeeperServer,
    registry: Registry,
    group: Consumergroup,
    topic: Topic,
    scala: Scala,
    loop: Ours,
) -> None:
    theirs, mine = scala("s", {topic.name: 1}), loop(topic, id="zz:1")
    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    sessions = {instance.id: instance.session for instance in group.instances()}
    with written(topic):
        assert eventually(lambda: len(theirs.messages) > 100 < len(mine.messages))
    assert eventually(lambda: set(read_by(theirs, mine)) == topic.texts)
    read: dict[str, Any] = {theirs.id: theirs.messages, mine.id: mine.messages}
    theirs.stop()
    mine.stop()

    found: dict[PastInstance, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in journal.read(legacy_zookeeper.data_dir, group.name, chroot="/kafka"):
        if isinstance(event, Commit) and event.offset:
            assert event.instance is not None
            assert event.session == event.instance.session == sessions[event.instance.id]
            assert event.is_of_owner
            found[event.instance][at(event)].append(event.offset)
    dialects = {instance.id: instance.dialect for instance in found}
    assert dialects == {theirs.id: Dialect.SCALA, mine.id: Dialect.ZKGROUPS}
    for instance, offsets in found.items():
        ends = {str(at): offset + 1 for at, offset, _text in read[instance.id]}
        assert {partition: committed[-1] for partition, committed in offsets.items()} == ends
        assert all(committed == sorted(committed) for committed in offsets.values())
