"""Pictures: what is remembered between sweeps, and what is forgotten."""

from __future__ import annotations

import re

from zkgroups.core.health.partition_health import Limits
from zkgroups.core.health.verdicts import Status
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.serve.page import svg
from zkgroups.serve.page.timeline import timeline
from zkgroups.serve.picture.group_history import EVENTS, TREND_POINTS
from zkgroups.serve.picture.log_ends import LogEnds

from .pictures import NOW, Sweeps, at, log, view

SECOND = 1000


def test_a_picture_never_changes() -> None:
    sweeps = Sweeps()
    first = sweeps.sweep(view("billing", {at(0): 5}), ends=log(10))
    before = (dict(first.groups), dict(first.topics), first.groups["billing"])
    second = sweeps.sweep(view("audit", {at(0): 6}), ends=log(20), now=NOW + SECOND)
    assert (dict(first.groups), dict(first.topics), first.groups["billing"]) == before
    assert list(second.groups) == ["audit"]


def test_deleted_groups_and_partitions_are_forgotten() -> None:
    sweeps = Sweeps()
    held = view("billing", {at(0): 5, at(1): 5}, members={"anna": []})
    sweeps.sweep(held, view("audit", {at(0): 5}), ends=log(10))
    past = sweeps.state.past["billing"]
    assert past.records.keys() == {at(0), at(1)}
    assert past.holds.keys() == {at(0), at(1), at(2)}
    sweeps.sweep(view("billing", {at(1): 6}), ends=log(10), now=NOW + SECOND)
    assert (past.records.keys(), past.holds.keys()) == ({at(1)}, set())
    assert sweeps.state.past.keys() == {"billing"}


def test_logs_that_no_group_needs_are_forgotten() -> None:
    ends = LogEnds()
    ends.update({at(0): OffsetRange(0, 5), at(1): OffsetRange(0, 5)}, NOW)
    assert ends.to_ask([(at(0), 2), (at(1), 3), (at(1), 1)], 10) == {at(0): 2, at(1): 1}
    assert ends.to_ask([(at(0), 2)], 10) == {}, "each partition is asked for once"
    ends.forget_asked([at(1)])
    assert ends.to_ask([(at(0), 2), (at(1), 3)], 10) == {at(1): 3}
    ends.keep_only({at(1)})
    assert ends.ranges.keys() == {at(1)}
    assert ends.history(at(0)) is None
    assert ends.history(at(1)) is not None


def test_what_is_remembered_has_a_limit() -> None:
    sweeps = Sweeps()
    for number in range(3 * EVENTS):
        members = {f"member-{number}": [0]}
        picture = sweeps.sweep(view("billing", {at(0): 5}, members=members), ends=log(10), now=NOW + number * SECOND)
    group = picture.groups["billing"]
    assert (len(group.events), len(group.trend)) == (EVENTS, TREND_POINTS)
    assert group.counters.joined == group.counters.left == 3 * EVENTS - 1


def test_an_unowned_partition_becomes_an_error_when_that_lasts() -> None:
    sweeps = Sweeps(limits=Limits())
    owned = view("billing", {at(0): 10, at(1): 10, at(2): 10}, members={"anna": [0, 1, 2]})
    released = view("billing", {at(0): 10, at(1): 10, at(2): 10}, members={"anna": [0, 1]})
    sweeps.sweep(owned, ends=log(10))
    severities = []
    for seconds in (15, 74, 75, 76):
        picture = sweeps.sweep(released, ends=log(10), now=NOW + seconds * SECOND)
        verdict = picture.groups["billing"].verdict
        assert verdict.status is Status.UNOWNED
        severities.append(str(verdict.severity))
    assert severities == ["warning", "warning", "error", "error"]


def test_at_the_first_sweep_the_znodes_tell_since_when_a_partition_is_unowned() -> None:
    """The members of these tests registered 90 seconds ago."""
    picture = Sweeps().sweep(view("billing", {at(0): 10}, members={"anna": [0]}), ends=log(10))
    assert str(picture.groups["billing"].verdict.severity) == "error"


def test_a_sparkline_is_interrupted_where_the_lag_is_unknown() -> None:
    [path] = re.findall(r' d="(.*?)"', svg.sparkline([0, 10, None, 5], "lag"))
    assert re.findall(r"[ML][\d.]+ [\d.]+", path) == ["M2.0 20.0", "L24.7 2.0", "M70.0 11.0"]
    assert svg.sparkline([1], "lag") == svg.sparkline([None, None], "lag") == ""


def test_a_position_is_within_the_log() -> None:
    for offset, width in ((5, "0.0"), (10, "0.0"), (15, "60.0"), (20, "120.0"), (99, "120.0")):
        assert f'class="done" x="0" y="0" width="{width}"' in svg.position(10, 20, offset, "")
    assert 'width="0.0"' in svg.position(7, 7, 7, "")


def test_a_history_has_a_bar_for_each_sweep_with_commits() -> None:
    drawn = svg.history([0, 50, 100], [0, 2, 1], "lag")
    assert [float(height) for height in re.findall(r'class="commits".*? height="([\d.]+)"', drawn)] == [20.0, 10.0]
    assert ' d="M0.0 68.0L320.0 36.0L640.0 4.0"' in drawn
    assert svg.history([1], [1], "lag") == ""


def test_the_timeline_draws_each_owner_in_proportion_to_its_time() -> None:
    sweeps = Sweeps()
    for seconds, members in ((0, {"anna": [0]}), (10, {"ben": [0]}), (20, {"carl": [0]})):
        swept = sweeps.sweep(view("g", {at(0): 5}, members=members), ends=log(10), now=NOW + seconds * SECOND)
    drawn = timeline(swept.groups["g"], lambda name: f"owner-{name}", NOW + 30 * SECOND)
    assert drawn is not None
    found = re.findall(r'x="([\d.]+)" y="2" width="([\d.]+)" height="13" rx="2" class="(.*?)"', drawn)
    assert found == [("150.0", "405.0", "owner-ben"), ("555.0", "405.0", "owner-carl")]
    quiet = Sweeps().sweep(view("g", {at(0): 5}), ends=log(10)).groups["g"]
    assert timeline(quiet, str, NOW) is None
