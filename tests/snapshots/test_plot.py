"""Plots: their lines, their contents, and their readability on light and dark backgrounds."""

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

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import InvalidOptionError, NotFoundError
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.snapshots.plot import COLOURS, INK, draw, select_lines
from zkgroups.snapshots.timeline import (
    FEW,
    TIMES,
    LineKind,
    RecordedOffset,
    Timeline,
    default_line_kind,
    lines,
    sample_evenly,
    timeline,
)
from zkgroups.storage.files import parse_timestamp, timestamp_text
from zkgroups.tables.source_options import SourceOptions

from ..spark.commands import command_on

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
START = 1_769_817_600.0


def seen(offsets: Sequence[int | None], *, step: float = 10.0, created: str = "a") -> dict[float, RecordedOffset]:
    """Build the offsets of a partition at consecutive times, with two commits each; None if it is missing."""
    return {
        START + step * number: RecordedOffset(offset, 2 * number, created)
        for number, offset in enumerate(offsets)
        if offset is not None
    }


def points(found: Mapping[TopicPartition, Mapping[float, RecordedOffset]], by: LineKind) -> list[list[tuple[Any, ...]]]:
    times = sorted({time for each in found.values() for time in each})
    return [
        [(point.offset, point.messages, point.commits) for point in line.points] for line in lines(found, times, by)
    ]


# Lines


def test_a_rate_is_measured_since_the_previous_snapshot() -> None:
    [line] = points({P0: seen([100, 150, 150])}, LineKind.PARTITION)
    assert line == [(100, None, None), (150, 5.0, 0.2), (150, 0.0, 0.2)]


def test_unknown_rates_are_none() -> None:
    """No rate over a gap, or if the offset went back."""
    [line, _] = points({P0: seen([100, None, 150, 120, 130]), P1: seen([0, 0, 0, 0, 0])}, LineKind.PARTITION)
    assert line == [(100, None, None), (None, None, None), (150, None, None), (120, None, 0.2), (130, 1.0, 0.2)]


def test_a_recreated_node_counts_its_commits_from_its_creation() -> None:
    made_anew = {START: RecordedOffset(100, 900, "a"), START + 10: RecordedOffset(110, 4, "b")}
    [line] = points({P0: made_anew}, LineKind.PARTITION)
    assert line[1] == (110, 1.0, 0.5)


def test_a_topic_sums_its_partitions_and_a_missing_one_causes_no_dip() -> None:
    [line] = points({P0: seen([100, 110, 120]), P1: seen([5, None, 25])}, LineKind.TOPIC)
    assert line == [(105, None, None), (115, 1.0, 0.2), (145, 1.0, 0.2)]


def test_the_lag_of_a_topic_is_unknown_if_that_of_a_partition_is() -> None:
    def at(*lags: int | None) -> dict[float, RecordedOffset]:
        return {START + number: RecordedOffset(5, 0, "a", lag) for number, lag in enumerate(lags)}

    found = {P0: at(1, 2, 3, None), P1: at(10, None, 30, None)}
    for by, wanted in (
        (LineKind.TOPIC, [[11, None, 33, None]]),
        (LineKind.PARTITION, [[1, 2, 3, None], [10, None, 30, None]]),
    ):
        times = sorted(found[P0])
        assert [[point.lag for point in line.points] for line in lines(found, times, by)] == wanted


def test_a_line_stands_for_a_partition_if_they_are_few_or_of_one_topic() -> None:
    few = {TopicPartition(f"t{number}", 0): {} for number in range(FEW)}
    assert default_line_kind(few) is LineKind.PARTITION
    assert default_line_kind(few | {P0: {}}) is LineKind.TOPIC
    assert default_line_kind({TopicPartition("t", number): {} for number in range(500)}) is LineKind.PARTITION


def test_of_many_lines_the_unusual_ones_are_drawn() -> None:
    moved = {TopicPartition("t", number): seen([0, 1000 + number % 3]) for number in range(200)}
    special = {17: [0, 0], 40: [0, 9000], 99: [500, 400, 1501]}
    moved |= {TopicPartition("t", number): seen(offsets) for number, offsets in special.items()}
    drawn, others = select_lines(lines(moved, [START, START + 10, START + 20], LineKind.PARTITION))
    assert {"t/17", "t/40", "t/99"} <= {line.name for line in drawn}
    assert (len(drawn), len(drawn) + len(others)) == (FEW - 1, 200)
    assert select_lines(drawn) == (drawn, [])


def test_sampled_snapshots_cover_the_time_evenly() -> None:
    begin = parse_timestamp("20260131T120000.000Z")
    often = [timestamp_text(begin + timedelta(minutes=number)) for number in range(3000)]
    chosen = sample_evenly(often, TIMES)
    assert (len(chosen), chosen[0], chosen[-1]) == (TIMES, often[0], often[-1])
    assert max(often.index(b) - often.index(a) for a, b in pairwise(chosen)) <= 3000 // TIMES + 2
    assert sample_evenly(often[:5], TIMES) == often[:5]
    assert sample_evenly(often[:5], 1) == [often[0], often[4]]


# The picture


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the contrast ratio of WCAG, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    parts = [part / 255 for part in colour[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def test_text_and_lines_have_enough_contrast_on_white_and_on_black() -> None:
    """The limits of WCAG 2.1: 4.5 for text, 3 for lines."""
    for ground in ((255, 255, 255), (0, 0, 0)):
        assert contrast(_rgb(INK), ground) >= 4.5
        assert [colour for colour in COLOURS if contrast(_rgb(colour), ground) < 3.2] == []
    assert len(set(COLOURS)) == FEW


def of(
    found: Mapping[TopicPartition, Mapping[float, RecordedOffset]], by: LineKind = LineKind.PARTITION, group: str = "g"
) -> Timeline:
    times = sorted({time for each in found.values() for time in each})
    return Timeline(group, "zk1:2181/kafka", by, len(times), times, lines(found, times, by))


def words(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plot_is_transparent_and_shows_each_line_in_its_colour() -> None:
    found = {TopicPartition("t", number): seen([0, 50 * number, 170 * number]) for number in range(1, 4)}
    with Image.open(io.BytesIO(draw(of(found), "png"))) as picture:
        pixels = picture.convert("RGBA")
    assert pixels.getpixel((2, 2))[3] == 0
    width, height = pixels.size
    left_half = pixels.crop((0, 0, width // 2, height))
    solid = {colour[:3] for _, colour in left_half.getcolors(1 << 20) if colour[3] == 255}
    assert {_rgb(colour) for colour in COLOURS[:3]} <= solid
    assert not {_rgb(colour) for colour in COLOURS[3:]} & solid


def test_special_characters_in_names_are_shown_literally() -> None:
    """Also if matplotlib treats them specially: `$` starts a formula, `_` hides a line."""
    names = ["_hidden", "$x^2$", "注文", "<b>&amp;", "long-" * 40]
    found = {TopicPartition(name, 0): seen([0, 50]) for name in names}
    said = words(draw(of(found, LineKind.TOPIC, group="$зака_зы$"), "svg"))
    assert {"_hidden", "$x^2$", "注文", "<b>&amp;", "long-long-long…long-long-long-"} <= set(said)
    assert any("$зака_зы$ in zk1:2181/kafka, by 2 snapshots" in text for text in said)


def test_a_plot_of_many_partitions_stays_small_and_names_or_counts_all() -> None:
    found = {TopicPartition("t", number): seen([number * time for time in range(60)]) for number in range(500)}
    svg = draw(of(found), "svg")
    assert len(svg) < 300_000
    named = [text for text in words(svg) if re.fullmatch(r"t/\d+", text)]
    assert (len(named), f"{500 - len(named)} others" in words(svg)) == (FEW - 1, True)


@pytest.mark.parametrize("offsets", [[5], [0, None, 7], [2**63 - 2, 2**63 - 1]], ids=str)
def test_a_plot_of_few_points_is_drawn_with_the_lag_if_it_is_known(offsets: list[int | None]) -> None:
    for form in ("svg", "png"):
        assert draw(of({P0: seen(offsets)}), form)
    known = {P0: {START + number: RecordedOffset(5, 0, "a", number) for number in range(3)}}
    assert ("Lag" in words(draw(of(known), "svg")), "Lag" in words(draw(of({P0: seen(offsets)}), "svg"))) == (
        True,
        False,
    )


# From snapshots


@pytest.fixture
def take(zookeeper_hosts: str, tmp_path: Path) -> Any:
    def take(cluster: str | None = None, groups: str | None = None) -> str:
        source = SourceOptions(zookeeper=zookeeper_hosts, cluster=cluster, groups=groups)
        return take_snapshot(str(tmp_path), source).name

    return take


@pytest.fixture
def billing(registry: Registry) -> Iterator[Any]:
    group = registry.group("billing")
    group.offsets.set_many({P0: 50, P1: 60, TopicPartition("refunds", 0): 7})
    return group


@pytest.mark.zookeeper
def test_a_timeline_uses_all_snapshots_with_the_group(
    take: Any, billing: Any, registry: Registry, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.group("other").offsets.set(P0, 1)
    take("blue")
    first = take()
    take(groups="other")
    billing.offsets.set(P0, 90)
    billing.offsets.reset({P1: 10})
    raw.set("/consumers/billing/offsets/refunds/0", b"many")
    last = take()
    layout = ArrowLayout.at(str(tmp_path))

    def found(**options: Any) -> Timeline:
        return timeline(layout, "billing", address=zookeeper_hosts, **options)

    whole = found()
    assert (whole.cluster, whole.by, whole.snapshots) == (zookeeper_hosts, LineKind.PARTITION, 2)
    assert {line.name: [point.offset for point in line.points] for line in whole.lines} == {
        "orders/0": [50, 90],
        "orders/1": [60, 10],
        "refunds/0": [7, None],
    }
    [before, after] = whole.times
    assert parse_timestamp(first).timestamp() <= before < parse_timestamp(last).timestamp() <= after
    assert [point.messages for point in whole.lines[0].points] == [None, pytest.approx(40 / (after - before))]
    assert [point.commits for point in whole.lines[0].points] == [None, pytest.approx(1 / (after - before))]
    some = found(topics={"orders": [1]}, by=LineKind.TOPIC, since=parse_timestamp(last))
    assert [(line.name, [point.offset for point in line.points]) for line in some.lines] == [("orders", [10])]
    assert found(until=parse_timestamp(first)).snapshots == 1
    assert timeline(layout, "billing", cluster="blue").snapshots == 1
    with pytest.raises(InvalidOptionError, match="choose one"):
        timeline(layout, "billing", address="zk9:2181")
    for options in ({"topics": {"none": None}}, {"cluster": "red"}, {"until": parse_timestamp("20010101T000000.000Z")}):
        with pytest.raises(NotFoundError):
            found(**options)


@pytest.mark.zookeeper
def test_the_command_writes_the_plot_and_describes_it(
    take: Any, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    take()
    with command_on(None, None) as zkgroups:
        ended = zkgroups("snapshots", "plot", tmp_path, "billing", tmp_path / "out.svg", "--topic", "orders")
        assert (ended.code, ended.out) == (0, "")
        assert f"{tmp_path}/out.svg shows 2 partitions of group 'billing' from " in ended.err
        assert {"orders/0", "orders/1"} <= set(words((tmp_path / "out.svg").read_bytes()))
        assert zkgroups("snapshots", "plot", tmp_path, "billing", tmp_path / "out.PNG", "--by", "topic", "-q").err == ""
        with Image.open(tmp_path / "out.PNG") as picture:
            assert picture.format == "PNG"
        assert zkgroups("snapshots", "plot", tmp_path, "nobody", tmp_path / "no.svg").code == 3
        assert not (tmp_path / "no.svg").exists()
