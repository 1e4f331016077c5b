"""One grammar for durations, times and partitions in all commands, and names of commands that are typed wrongly."""

from __future__ import annotations

from typing import Any

import click
import pytest
from zkgroups_cli.shared.parameter_types import (
    Duration,
    MomentType,
    PartitionNumbers,
    SnapshotChoice,
    TopicOrPartitions,
)
from zkgroups_cli.shared.parameter_types import Time as TimeType

from zkgroups import TopicPartition

from .conftest import Zkgroups
from .running import run

NOBODY = ("-z", "127.0.0.1:1", "--timeout", "0.1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), ("0.5", 0.5), ("90s", 90), ("1h", 3600), ("PT1.5S", 1.5), (7.0, 7)],
)
def test_a_duration_is_a_number_of_seconds_or_has_a_unit(text: str | float, seconds: float) -> None:
    assert Duration()(text) == seconds


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon", "1.5h", ""])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration()(text)
    assert run("groups", "list", "--timeout", text).code == 2


def test_snapshots_are_chosen_by_the_same_times() -> None:
    kind = SnapshotChoice()
    for text in ("latest", "previous", "20260131T120007.005Z"):
        assert kind(text) == text
    assert kind("2026-01-31 12:00") == "2026-01-31T12:00:00.000Z"
    assert kind("yesterday").endswith("T00:00:00.000Z")
    assert kind("2h") < kind("now")
    with pytest.raises(click.BadParameter, match="neither latest"):
        kind("tomorrow")


def test_a_moment_is_a_time_or_a_transaction() -> None:
    kind = MomentType()
    assert kind("0x1F").zxid == 31
    assert kind("2026-01-31").time_ms == TimeType()("2026-01-31T00:00Z") == 1769817600000


@pytest.mark.parametrize(
    ("text", "topic", "numbers"),
    [
        ("orders", "orders", None),
        ("orders:", "orders", None),
        ("orders:1,0", "orders", (1, 0)),
        ("orders:0-3", "orders", (0, 1, 2, 3)),
        ("orders:0-2,7,1", "orders", (0, 1, 2, 7)),
        ("orders/3", "orders", (3,)),
        ("orders/0-1", "orders", (0, 1)),
        ("orders:0,1:", "orders:0,1", None),
        ("host:a", "host:a", None),
    ],
)
def test_partitions_are_named_like_this(text: str, topic: str, numbers: tuple[int, ...] | None) -> None:
    assert TopicOrPartitions()(text) == (topic, numbers)
    if numbers:
        assert PartitionNumbers()(text.removeprefix(topic)[1:]) == numbers


@pytest.mark.parametrize(
    "text",
    ["", ":0", "orders:3-0", "orders:0-", "orders:0,", "orders:0 1", "orders/x", "orders/", "a/b/1"],
)
def test_invalid_partitions_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        TopicOrPartitions()(text)
    assert run(*NOBODY, "owners", "list", "--topic", text).code == 2


def test_a_range_has_a_limit() -> None:
    with pytest.raises(click.BadParameter, match="at most 100000"):
        PartitionNumbers()("0-2147483647")


ONE = (("orders", "0"), ("orders/0",), ("orders:0",), ("orders", "0-0"))


@pytest.mark.usefixtures("billing")
@pytest.mark.parametrize("place", ONE, ids=" ".join)
def test_a_partition_may_be_an_argument_in_every_way(zkgroups: Zkgroups, registry: Any, place: tuple[str, ...]) -> None:
    group = registry.group("old")
    group.create()
    for number in range(2):
        group.offsets.set(TopicPartition("orders", number), 5 + number)
    assert zkgroups("offsets", "get", "old", *place, "-o", "csv", "--no-headers").out.startswith("old,orders,0,5,")
    assert zkgroups("owners", "list", "billing", *place, "-o", "name").code == 0
    assert zkgroups("offsets", "reset", "old", *place, "--to-offset", "9").out.count("\n") == 2
    assert zkgroups("offsets", "delete", "old", *place).out.count("\n") == 2
    assert zkgroups("offsets", "set", "old", *place, "8").code == 0
    assert group.offsets.fetch(TopicPartition("orders", 0)).offset == 8
    assert zkgroups("release", "billing", *place, "--expect-owner", "anna").code == 0
    assert zkgroups("claim", "old", *place, "--", "sh", "-c", "echo $ZKGROUPS_PARTITIONS").out == "0\n"


def test_several_partitions_may_be_arguments(zkgroups: Zkgroups, registry: Any, billing: Any) -> None:
    group = registry.group("old")
    billing.copy("old")
    group.offsets.set(TopicPartition("orders", 1), 7)
    for place in (("orders", "0-1"), ("orders", "0", "1"), ("orders", "0,1"), ("orders/0", "orders/1")):
        assert len(zkgroups("offsets", "get", "old", *place, "-o", "name").lines) == 2
    assert zkgroups("claim", "old", "orders", "1", "0", "--", "sh", "-c", "echo $ZKGROUPS_PARTITIONS").out == "1,0\n"


def test_a_group_that_is_named_like_partitions_is_not_taken_for_them(zkgroups: Zkgroups, billing: Any) -> None:
    billing.copy("orders")
    billing.copy("1")
    billing.copy("orders:1")
    for place, unclear in (("orders", "1"), "1"), (("orders:1",), "orders:1"):
        refused = zkgroups("offsets", "get", "billing", *place)
        assert (refused.code, f"{unclear!r} may be a partition or a group" in refused.err) == (2, True)
    assert len(zkgroups("offsets", "get", "1", "billing", "orders", "-o", "name").lines) == 3
