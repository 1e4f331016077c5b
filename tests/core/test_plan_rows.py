"""The rows of a migration: derived values, and pickling."""

from __future__ import annotations

import pickle

import pytest

from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.topic_partition import TopicPartition


def _row(topic: str | None, partition: int | None, before: int | None) -> PlanRow:
    return PlanRow(
        plan="p",
        planned_ms=1,
        source="zk1:2181/kafka",
        brokers=None,
        retention_seconds=None,
        group="billing",
        topic=topic,
        partition=partition,
        offset=7,
        zxid=1,
        committed_ms=1,
        stale=False,
        problem=None,
        target="accounts",
        log_start=None,
        log_end=None,
        before=before,
        before_metadata="note",
        before_epoch=3,
        action=Action.COMMIT,
        reason=Reason.LOG_NOT_CHECKED,
        planned=7,
        obstacles=(),
    )


def test_the_earlier_offset_has_metadata_and_epoch() -> None:
    at = TopicPartition("orders", 0)
    assert _row("orders", 0, 5).prior == NativeOffset("accounts", at, 5, "note", 3)
    assert _row("orders", 0, None).prior is None


@pytest.mark.parametrize(("topic", "partition"), [(None, None), ("orders", None)])
def test_a_row_of_an_unreadable_node_has_no_partition_and_restores_nothing(
    topic: str | None, partition: int | None
) -> None:
    row = _row(topic, partition, 5)
    assert row.at is None
    assert row.prior is None


def test_a_row_travels_between_processes() -> None:
    row = _row("orders", 0, 5)
    assert pickle.loads(pickle.dumps(row)) == row
