"""Plots: what the lines are of, that a picture shows them, and that it can be read on light and on dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import InvalidOptionError, NotFoundError
from zkgroups.spark import SourceOptions, take_snapshot
from zkgroups.spark.snapshots.layout import snapshot_name, snapshot_time
from zkgroups.spark.snapshots.plot import COLOURS, INK, draw, told_apart
from zkgroups.spark.snapshots.timeline import (
    FEW,
    TIMES,
    By,
    Line,
    Point,
    Sighting,
    Timeline,
    lines,
    lines_by,
    spread,
    timeline,
)

from .commands import command_on

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
START = 1_769_817_600.0


def seen(offsets: Sequence[int | None], *, step: float = 10.0, created: str = "a") -> dict[float, Sighting]:
    """A partition at one time after the other, committed twice each time; None where it was not seen."""
    return {
        START + step * number: Sighting(offset, 2 * number, created)
        for number, offset in enumerate(offsets)
        if offset is not None
    }


def points(found: Mapping[TopicPartition, Mapping[float, Sighting]], by: By) -> list[list[tuple[Any, ...]]]:
    times = sorted({time for each in found.values() for time in each})
    return [
        [(point.offset, point.messages, point.commits) for point in line.points] for line in lines(found, times, by)
    ]


# Lines


def test_a_rate_is_what_was_done_since_the_snapshot_before() -> None:
    [line] = points({P0: seen([100, 150, 150])}, By.PARTITION)
    assert line == [(100, None, None), (150, 5.0, 0.2), (150, 0.0, 0.2)]


def test_what_is_not_known_is_not_guessed() -> None:
    """Neither over a gap, nor of who went back."""
    [line, _] = points({P0: seen([100, None, 150, 120, 130]), P1: seen([0, 0, 0, 0, 0])}, By.PARTITION)
    assert line == [(100, None, None), (None, None, None), (150, None, None), (120, None, 0.2), (130, 1.0, 0.2)]


def test_a_node_that_was_made_anew_counts_its_commits_from_its_beginning() -> None:
    made_anew = {START: Sighting(100, 900, "a"), START + 10: Sighting(110, 4, "b")}
    [line] = points({P0: made_anew}, By.PARTITION)
    assert line[1] == (110, 1.0, 0.5)


def test_a_topic_is_all_of_its_partitions_and_one_that_was_not_seen_for_once_makes_no_dip() -> None:
    [line] = points({P0: seen([100, 110, 120]), P1: seen([5, None, 25])}, By.TOPIC)
    assert line == [(105, None, None), (115, 1.0, 0.2), (145, 1.0, 0.2)]


def test_a_line_is_of_a_partition_where_these_are_few_or_of_one_topic() -> None:
    few = {TopicPartition(f"t{number}", 0): {} for number in range(FEW)}
    assert lines_by(few) is By.PARTITION
    assert lines_by(few | {P0: {}}) is By.TOPIC
    assert lines_by({TopicPartition("t", number): {} for number in range(500)}) is By.PARTITION


def test_of_many_lines_those_are_drawn_that_went_back_or_moved_least_like_the_rest() -> None:
    moved = {TopicPartition("t", number): seen([0, 1000 + number % 3]) for number in range(200)}
    special = {17: [0, 0], 40: [0, 9000], 99: [500, 400, 1501]}
    moved |= {TopicPartition("t", number): seen(offsets) for number, offsets in special.items()}
    drawn, others = told_apart(lines(moved, [START, START + 10, START + 20], By.PARTITION))
    assert {"t/17", "t/40", "t/99"} <= {line.name for line in drawn}
    assert (len(drawn), len(drawn) + len(others)) == (FEW - 1, 200)
    assert told_apart(drawn) == (drawn, [])


def test_snapshots_are_spread_over_the_time_with_the_first_and_the_last() -> None:
    begin = snapshot_time("20260131T120000.000Z")
    often = [snapshot_name(begin + timedelta(minutes=number)) for number in range(3000)]
    chosen = spread(often, TIMES)
    assert (len(chosen), chosen[0], chosen[-1]) == (TIMES, often[0], often[-1])
    assert max(often.index(b) - often.index(a) for a, b in pairwise(chosen)) <= 3000 // TIMES + 2
    assert spread(often[:5], TIMES) == often[:5]
    assert spread(often[:5], 1) == [often[0], often[4]]


# The picture


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """As WCAG has it: from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    parts = [part / 255 for part in colour[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


WHITE, BLACK = (255, 255, 255), (0, 0, 0)


@pytest.mark.parametrize("ground", [WHITE, BLACK], ids=["light", "dark"])
def test_words_and_lines_stand_out_from_the_ground(ground: tuple[int, ...]) -> None:
    """By the numbers of WCAG 2.1: 4.5 for words, 3 for lines."""
    assert contrast(_rgb(INK), ground) >= 4.5
    assert [colour for colour in COLOURS if contrast(_rgb(colour), ground) < 3.2] == []
    assert len(set(COLOURS)) == FEW


def of(found: Mapping[TopicPartition, Mapping[float, Sighting]], by: By = By.PARTITION, group: str = "g") -> Timeline:
    times = sorted({time for each in found.values() for time in each})
    return Timeline(group, "zk1:2181/kafka", by, len(times), times, lines(found, times, by))


def words(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_has_no_ground_and_shows_each_line_in_its_colour() -> None:
    found = {TopicPartition("t", number): seen([0, 50 * number, 170 * number]) for number in range(1, 4)}
    with Image.open(io.BytesIO(draw(of(found), "png"))) as picture:
        pixels = picture.convert("RGBA")
    assert pixels.getpixel((2, 2))[3] == 0
    width, height = pixels.size
    left_half = pixels.crop((0, 0, width // 2, height))
    solid = {colour[:3] for _, colour in left_half.getcolors(1 << 20) if colour[3] == 255}
    assert {_rgb(colour) for colour in COLOURS[:3]} <= solid
    assert not {_rgb(colour) for colour in COLOURS[3:]} & solid


def test_names_are_shown_as_they_are() -> None:
    """Also where they mean something to whoever draws: `$` begins a formula, `_` hides a line."""
    names = ["_hidden", "$x^2$", "注文", "<b>&amp;", "long-" * 40]
    found = {TopicPartition(name, 0): seen([0, 50]) for name in names}
    said = words(draw(of(found, By.TOPIC, group="$зака_зы$"), "svg"))
    assert {"_hidden", "$x^2$", "注文", "<b>&amp;", "long-long-long…long-long-long-"} <= set(said)
    assert any("$зака_зы$ in zk1:2181/kafka, by 2 snapshots" in text for text in said)


def test_many_partitions_make_no_large_picture_and_all_are_named_or_counted() -> None:
    found = {TopicPartition("t", number): seen([number * time for time in range(60)]) for number in range(500)}
    svg = draw(of(found), "svg")
    assert len(svg) < 300_000
    named = [text for text in words(svg) if re.fullmatch(r"t/\d+", text)]
    assert (len(named), f"{500 - len(named)} others" in words(svg)) == (FEW - 1, True)


@pytest.mark.parametrize("offsets", [[5], [5, 5], [0, None, 7], [2**63 - 2, 2**63 - 1]], ids=str)
def test_little_is_drawn_too(offsets: list[int | None]) -> None:
    for form in ("svg", "png"):
        assert draw(of({P0: seen(offsets)}), form)
    assert draw(Timeline("g", "c", By.TOPIC, 1, [START], [Line("t", [Point(5)])]), "svg")


def test_the_same_is_drawn_the_same() -> None:
    found = of({P0: seen([1, 2, 3])})
    assert draw(found, "svg") == draw(found, "svg")


# From snapshots


@pytest.fixture
def take(spark: SparkSession, zookeeper_hosts: str, tmp_path: Path) -> Any:
    def take(cluster: str | None = None, groups: str | None = None) -> str:
        source = SourceOptions(zookeeper=zookeeper_hosts, cluster=cluster, groups=groups, parallelism=1)
        return take_snapshot(spark, str(tmp_path), source).name

    return take


@pytest.fixture
def billing(registry: Registry) -> Iterator[Any]:
    group = registry.group("billing")
    group.offsets.commit_many({P0: 50, P1: 60, TopicPartition("refunds", 0): 7})
    return group


@pytest.mark.zookeeper
def test_a_group_is_drawn_from_all_snapshots_that_have_seen_it(
    spark: SparkSession, take: Any, billing: Any, registry: Registry, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.group("other").offsets.commit(P0, 1)
    take("blue")
    first = take()
    take(groups="other")
    billing.offsets.commit(P0, 90)
    billing.offsets.reset({P1: 10})
    raw.set("/consumers/billing/offsets/refunds/0", b"many")
    last = take()
    destination = str(tmp_path)

    def found(**options: Any) -> Timeline:
        return timeline(spark, destination, "billing", address=zookeeper_hosts, **options)

    whole = found()
    assert (whole.cluster, whole.by, whole.snapshots) == (zookeeper_hosts, By.PARTITION, 2)
    assert {line.name: [point.offset for point in line.points] for line in whole.lines} == {
        "orders/0": [50, 90],
        "orders/1": [60, 10],
        "refunds/0": [7, None],
    }
    [before, after] = whole.times
    assert snapshot_time(first).timestamp() <= before < snapshot_time(last).timestamp() <= after
    assert [point.messages for point in whole.lines[0].points] == [None, pytest.approx(40 / (after - before))]
    assert [point.commits for point in whole.lines[0].points] == [None, pytest.approx(1 / (after - before))]
    some = found(topics={"orders": [1]}, by=By.TOPIC, since=snapshot_time(last))
    assert [(line.name, [point.offset for point in line.points]) for line in some.lines] == [("orders", [10])]
    assert found(until=snapshot_time(first)).snapshots == 1
    assert timeline(spark, destination, "billing", cluster="blue").snapshots == 1
    with pytest.raises(InvalidOptionError, match="say which"):
        timeline(spark, destination, "billing", address="zk9:2181")
    for options in ({"topics": {"none": None}}, {"cluster": "red"}, {"until": snapshot_time("20010101T000000.000Z")}):
        with pytest.raises(NotFoundError):
            found(**options)


@pytest.mark.zookeeper
def test_the_command_writes_the_picture_and_says_what_it_shows(
    spark: SparkSession, take: Any, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    take()
    with command_on(spark, None) as zkgroups:
        ended = zkgroups("snapshots", "plot", tmp_path, "billing", tmp_path / "out.svg", "--topic", "orders")
        assert (ended.code, ended.out) == (0, "")
        assert f"{tmp_path}/out.svg shows 2 partitions of group 'billing' from " in ended.err
        assert {"orders/0", "orders/1"} <= set(words((tmp_path / "out.svg").read_bytes()))
        assert zkgroups("snapshots", "plot", tmp_path, "billing", tmp_path / "out.PNG", "--by", "topic", "-q").err == ""
        with Image.open(tmp_path / "out.PNG") as picture:
            assert picture.format == "PNG"
        assert zkgroups("snapshots", "plot", tmp_path, "nobody", tmp_path / "no.svg").code == 3
        assert not (tmp_path / "no.svg").exists()
