"""Failure 19: ZooKeeper is restored from a backup, or wiped, between the steps of a migration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.restoring import restorable
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.group_status import MigrationStage
from zkgroups.core.migration.plan_rows import Outcome
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.following.follow import follow
from zkgroups.migration.rollback import rollback_groups
from zkgroups.migration.verify import status_of_groups

from .conftest import MakeTopic
from .rows import details, numbers, outcomes, plan_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_failure_19_a_plan_does_not_write_the_offsets_of_a_zookeeper_that_was_restored_or_wiped_since(
    brokers: Brokers, make_topic: MakeTopic, tmp_path: Path
) -> None:
    at = TopicPartition(make_topic(), 0)
    target = f"restored-{at.topic}"
    with restorable(tmp_path / "wiped") as other, restorable(tmp_path / "restored") as server:
        with Registry.connect(server.address) as registry:
            registry.group("billing").offsets.set(at, 7)
        server.back_up()
        with Registry.connect(server.address) as registry:
            registry.group("billing").offsets.set(at, 9)
            rows = plan_of(registry, brokers, {"billing": target})
        server.restore()
        with Registry.connect(server.address) as registry, Registry.connect(other.address) as wiped:
            for source, words in ((registry, "were written since the plan"), (wiped, "group 'billing' does not exist")):
                report = apply_groups(rows, brokers, source, execute=True)
                assert outcomes(report) == {"left"}
                [detail] = details(report, target)
                assert words in detail
            [followed] = follow(rows, brokers, registry, execute=True)
            assert (followed.state, followed.detail) == (
                FollowState.LEFT,
                f"the offset of {at} is older than in the plan: this is another ZooKeeper, or it was restored from a "
                "backup",
            )
            assert numbers(brokers, target) == {}
            rows = plan_of(registry, brokers, {"billing": target})
            assert outcomes(apply_groups(rows, brokers, registry, execute=True)) == {Outcome.WRITTEN}
            assert [each.stage for each in status_of_groups(rows, brokers, registry)] == [MigrationStage.DONE]
        server.restore()  # the mark is gone
        with Registry.connect(server.address) as registry:
            assert [each.stage for each in status_of_groups(rows, brokers, registry)] == [MigrationStage.NOT_MARKED]
            report = rollback_groups(rows, brokers, registry, execute=True)
            assert outcomes(report) == {"left"}
            [detail] = details(report, target)
            assert "the group has no mark of this plan in ZooKeeper" in detail
        assert numbers(brokers, target) == {at: 7}
