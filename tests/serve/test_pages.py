"""Pages: every name is text, the worst is first, and addresses keep what is shown.

Pictures: what is remembered between sweeps, and what is forgotten.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.health import Limits, Status
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.group_description import GroupView
from zkgroups.core.znodes.values import MalformedNode, Owner, Registration
from zkgroups.serve.page import html as svg
from zkgroups.serve.page.group import Span, spans, timeline
from zkgroups.serve.page.html import element, group_path
from zkgroups.serve.page.overview import ORDERS, Query, paged
from zkgroups.serve.page.views import page, view
from zkgroups.serve.picture.past import EVENTS, OLDER_MS, OLDER_POINTS, TREND_POINTS, GroupHistory, LogEnds
from zkgroups.serve.picture.values import EventKind, GroupEvent, Picture, SourceState, TrendPoint

from .pictures import HOSTILE, NOW, Sweeps, at, log, mixed
from .pictures import view as group_view

NAMES = [name.replace("/", "|") for name in HOSTILE]


class Tags(HTMLParser):
    """All elements of a document, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    return tags


def shown(address: str, picture: Picture | None = None) -> Tags:
    return parsed(page(view(picture or mixed(), address, NOW)))


def rows(tags: Tags) -> list[str]:
    return [str(attributes["data-key"]) for tag, attributes in tags.tags if tag == "tr" and "data-key" in attributes]


def test_a_name_is_never_markup_and_pages_need_nothing_from_elsewhere() -> None:
    for address in ("/", *map(group_path, NAMES), "/groups/billing", "/groups/half", "/topics", "/topics/orders"):
        tags = shown(address)
        [script] = [attributes for tag, attributes in tags.tags if tag == "script"]
        assert str(script["src"]).startswith("/static/")
        assert not any(tag in ("i", "b", "img") for tag, _ in tags.tags)
        assert not re.search("[\u202e\u200b]", tags.text + str(tags.tags)), "invisible characters are shown as numbers"
        for tag, attributes in tags.tags:
            assert not any(key.startswith("on") or key == "style" for key in attributes)
            for key in ("src", "href"):
                assert (attributes.get(key) or "/").startswith(("/", "#")), (tag, attributes)


def test_the_link_to_a_group_leads_to_its_page() -> None:
    links = {attributes.get("href") for tag, attributes in shown("/").tags if tag == "a"}
    for name in NAMES:
        assert group_path(name) in links
        found = view(mixed(), group_path(name), NOW)
        assert found.exists
        assert name.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b") in found.title


@given(st.text(), st.text())
@example("</a><b>", '"><b onload="x"')
def test_text_and_attributes_are_escaped(text: str, value: str) -> None:
    tags = parsed(element("a", text, title=value))
    assert [tag for tag, _ in tags.tags if tag != "span"] == ["a"]
    assert list(tags.tags[0][1]) == ["title"]


def test_the_worst_group_is_first() -> None:
    first = rows(shown("/"))
    assert first[:3] == ["ahead", "half", "stopped"]
    assert first[-1] == "billing" or first.index("billing") > first.index("bad")


def test_each_order_can_be_reversed() -> None:
    for order, key in ORDERS.items():
        forward, backward = (Query(order=text).found(mixed()) for text in (order, f"-{order}"))
        assert [key(group) for group in forward] == sorted(key(group) for group in forward)
        assert [key(group) for group in backward] == [key(group) for group in reversed(forward)]


def test_filters_count_all_groups_and_choose_some() -> None:
    tags = shown("/?status=STOP")
    assert rows(tags) == ["stopped"]
    assert "1 stop" in tags.text
    assert f"{len(mixed().groups)} all" in tags.text
    assert [Query.parse({"status": status.value}).status for status in Status] == list(Status)
    assert rows(shown("/?q=BILL")) == ["billing"], "in any case"
    assert len(rows(shown("/?q=topic:ORD"))) == len(mixed().groups)
    assert rows(shown("/?q=topic:nothing")) == []


@given(st.dictionaries(st.sampled_from(["status", "q", "sort", "page"]), st.text(max_size=20)))
def test_any_address_shows_a_page_and_its_links_keep_the_choice(given_: dict[str, str]) -> None:
    query = Query.parse(given_)
    assert query.page >= 1
    link = query.text(page=query.page)
    assert Query.parse(dict(parse_qsl(urlsplit(link).query))) == query


def test_pages_have_bounds() -> None:
    many = Sweeps().sweep(*(group_view(f"g{number:03d}", {at(0): 1}) for number in range(120)), ends=log(1))
    assert [len(rows(shown(f"/?page={number}", many))) for number in (1, 2, 3, 99)] == [50, 50, 20, 20]
    assert "51–100 of 120" in shown("/?page=2", many).text
    assert paged([1, 2, 3], 2, 2) == ([3], 2, 2)


def test_a_group_page_shows_owners_reasons_and_commands() -> None:
    text = shown("/groups/half").text
    assert "no member owns it" in text
    assert "anna" in text
    assert "orders/1" in text


HELD = "/consumers/billing/owners/orders/0"


def held_by(path: str, *, since_s: int = 60, owned: tuple[int, ...] = (1, 2)) -> GroupView:
    """A group of which anna owns these partitions, and ghost-0, which is not registered, has an owner node."""
    found = group_view("billing", {at(0): 100}, members={"anna": owned})
    ghost = Owner(at(0), "ghost-0", 42, from_ms(NOW - since_s * 1000), path=path)
    return replace(found, owners=(*found.owners, ghost))


def held_by_others(found: GroupView) -> str:
    """Return the text of the section that names the holders of partitions."""
    html = view(Sweeps().sweep(found, ends=log(100)), "/groups/billing", NOW).html
    return parsed(html.partition("Held by others</h2>")[2].partition("</section>")[0]).text


def test_the_holder_of_a_partition_is_named_with_the_command_that_releases_it_and_no_other() -> None:
    """An owner that `release` does not find has no command, and of an unreadable node nothing is claimed."""
    found = group_view("billing", {at(0): 100}, members={"anna": [0], "ben": []})
    shares = group_view("billing", {at(0): 100}, members={"anna": [0], "ben": [1, 2]})

    def with_anna(view: GroupView, registration: Any) -> GroupView:
        anna = replace(view.instances[0], registration=registration)
        return replace(view, instances=(anna, *view.instances[1:]))

    orphan = held_by("/consumers/billing/owners/b'orders'/1001-0", since_s=20, owned=(0, 1, 2))
    left_over = MalformedNode(HELD, b"anna-0", "it belongs to no session", created_at=from_ms(NOW - 60_000))
    bad = MalformedNode("/consumers/billing/ids/anna", b"x", "it is not JSON", 100)
    release = "zkgroups release --expect-owner={} --expect-session={} billing orders 0"
    for shown, text, command in (
        (held_by(HELD), "1m by ghost-0, which is not registered. ", release.format("ghost-0", "0x2a")),
        (
            with_anna(found, Registration({"refunds": 1})),
            "1m by anna, which does not subscribe. ",
            release.format("anna", "0x64"),
        ),
        (with_anna(shares, bad), "1m by anna, whose registration cannot be read. ", release.format("anna", "0x64")),
        (orphan, "20s by ghost-0, which is not registered. ", ""),
        (
            group_view("billing", {at(0): 100}, members={"anna": [1, 2]}, unreadable=[left_over]),
            "1m by an owner node that cannot be read. ",
            "",
        ),
    ):
        assert held_by_others(shown) == f"orders/0 held for {text}{command}"


def test_a_finding_that_can_disappear_is_shown_when_two_checks_have_found_it() -> None:
    sweeps = Sweeps()
    half = group_view("half", {at(0): 100}, members={"anna": [0]})
    first, second = (sweeps.sweep(half, ends=log(100), now=NOW + number).groups["half"] for number in range(2))
    assert [each.code.value for each in first.findings] == []
    assert [each.code.value for each in second.findings] == ["unowned-partition"]


def test_banners_tell_which_source_does_not_answer_and_how_old_the_page_is() -> None:
    bad = SourceState(NOW - 60_000, "connection refused <b>", NOW - 30_000)
    picture = replace(mixed(), zookeeper=bad, brokers=bad)
    tags = shown("/", picture)
    assert "ZooKeeper does not answer for 30s" in tags.text
    assert "The brokers do not answer." in tags.text
    assert "connection refused <b>" in tags.text
    read_only = replace(mixed(), zookeeper=SourceState(NOW, is_read_only=True))
    assert "ZooKeeper has no leader." in shown("/", read_only).text


def test_before_the_first_sweep_the_page_says_so() -> None:
    empty = Picture(0, "prod", SourceState(), None)
    assert "being read for the first time" in shown("/", empty).text
    assert view(empty, "/groups/billing", NOW).exists, "it may exist"
    missing = view(mixed(), "/groups/nothing", NOW)
    assert (missing.exists, "Not found" in missing.html) == (False, True)


def test_the_owners_over_time_are_those_of_the_events() -> None:
    events = [
        GroupEvent(100, EventKind.CLAIMED, "anna", at(0)),
        GroupEvent(150, EventKind.RELEASED, "anna", at(0)),
        GroupEvent(150, EventKind.RELEASED, "carl", at(1)),
        GroupEvent(200, EventKind.CLAIMED, "ben", at(0)),
    ]
    assert spans(events, {at(0): "ben", at(1): None}, 300) == {
        at(0): [Span(100, 150, "anna"), Span(150, 200, None), Span(200, 300, "ben")],
        at(1): [Span(100, 150, "carl"), Span(150, 300, None)],
    }
    assert spans([], {}, 300) == {}


def test_groups_that_are_not_in_use_are_shown_on_demand_and_the_choice_is_kept() -> None:
    old = group_view("old", {at(0): 1}, ago_s=3 * 86_400)
    picture = Sweeps().sweep(old, group_view("new", {at(0): 1}, members={"anna": [0, 1, 2]}), ends=log(5))
    tags = shown("/", picture)
    assert rows(tags) == ["new"]
    assert "show 1 not in use" in tags.text
    assert "/?all=1" in {each.get("href") for tag, each in tags.tags if tag == "a"}
    assert rows(shown("/?all=1&sort=members", picture)) == ["new", "old"]
    assert rows(shown("/?all=1&status=ABANDONED", picture)) == ["old"]
    assert "hide 1 not in use" in shown("/?all=1", picture).text
    hidden = [each for tag, each in shown("/?all=1", picture).tags if tag == "input" and each["type"] == "hidden"]
    assert [(each["name"], each["value"]) for each in hidden] == [("all", "1")]
    step = "Next: start its consumers; if nobody needs it: zkgroups groups delete old"
    assert step in shown("/groups/old", picture).text


# Pictures

SECOND = 1000


def test_a_picture_never_changes() -> None:
    sweeps = Sweeps()
    first = sweeps.sweep(group_view("billing", {at(0): 5}), ends=log(10))
    before = (dict(first.groups), dict(first.topics), first.groups["billing"])
    second = sweeps.sweep(group_view("audit", {at(0): 6}), ends=log(20), now=NOW + SECOND)
    assert (dict(first.groups), dict(first.topics), first.groups["billing"]) == before
    assert list(second.groups) == ["audit"]


def test_deleted_groups_and_partitions_are_forgotten() -> None:
    sweeps = Sweeps()
    held = group_view("billing", {at(0): 5, at(1): 5}, members={"anna": []})
    sweeps.sweep(held, group_view("audit", {at(0): 5}), ends=log(10))
    past = sweeps.state.past["billing"]
    assert past.records.keys() == {at(0), at(1)}
    assert past.holds.keys() == {at(0), at(1), at(2)}
    sweeps.sweep(group_view("billing", {at(1): 6}), ends=log(10), now=NOW + SECOND)
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
        picture = sweeps.sweep(
            group_view("billing", {at(0): 5}, members=members), ends=log(10), now=NOW + number * SECOND
        )
    group = picture.groups["billing"]
    assert (len(group.events), len(group.trend.recent)) == (EVENTS, TREND_POINTS)
    assert group.counters.joined == group.counters.left == 3 * EVENTS - 1


def test_the_trend_covers_a_day_in_limited_memory_and_keeps_peaks_and_commits() -> None:
    past = GroupHistory()
    for number in range(4 * 86_400 // 15):  # four days
        lag = 900 if number == 22_000 else None if number % 2 else 7
        past.see_totals(lag, 3 * number, NOW + number * 15 * SECOND)
    points = past.trend.points
    times = [point.ms for point in points]
    assert len(points) == OLDER_POINTS + TREND_POINTS
    assert times == sorted(times)
    assert 86_400_000 - OLDER_MS <= times[-1] - times[0] <= 86_400_000 + 2 * OLDER_MS
    assert {point.lag for point in points[:OLDER_POINTS]} == {7, 900}
    assert sum(point.commits for point in points[1:]) == 3 * (times[-1] - times[0]) // (15 * SECOND)
    assert 0 < OLDER_MS <= times[1] - times[0] <= OLDER_MS + 15 * SECOND


def test_an_unowned_partition_becomes_an_error_when_that_lasts() -> None:
    sweeps = Sweeps(limits=Limits())
    owned = group_view("billing", {at(0): 10, at(1): 10, at(2): 10}, members={"anna": [0, 1, 2]})
    released = group_view("billing", {at(0): 10, at(1): 10, at(2): 10}, members={"anna": [0, 1]})
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
    picture = Sweeps().sweep(group_view("billing", {at(0): 10}, members={"anna": [0]}), ends=log(10))
    assert str(picture.groups["billing"].verdict.severity) == "error"


def test_a_sparkline_is_interrupted_where_the_lag_is_unknown() -> None:
    [path] = re.findall(r' d="(.*?)"', svg.sparkline([0, 10, None, 5], "lag"))
    assert re.findall(r"[ML][\d.]+ [\d.]+", path) == ["M2.0 20.0", "L24.7 2.0", "M70.0 11.0"]
    assert svg.sparkline([1], "lag") == svg.sparkline([None, None], "lag") == ""


def test_a_position_is_within_the_log() -> None:
    for offset, width in ((5, "0.0"), (10, "0.0"), (15, "60.0"), (20, "120.0"), (99, "120.0")):
        assert f'class="done" x="0" y="0" width="{width}"' in svg.position(10, 20, offset, "")
    assert 'width="0.0"' in svg.position(7, 7, 7, "")


def test_a_history_is_drawn_over_time() -> None:
    points = [TrendPoint(0, 0, 0), TrendPoint(30_000, 50, 30), TrendPoint(40_000, 100, 10)]
    drawn = svg.history(points, "lag")
    assert ' d="M0.0 68.0L480.0 36.0L640.0 4.0"' in drawn
    assert [float(height) for height in re.findall(r'class="commits".*? height="([\d.]+)"', drawn)] == [20.0, 20.0]
    assert svg.history([TrendPoint(0, 1, 1)], "lag") == ""


def test_the_timeline_draws_each_owner_in_proportion_to_its_time() -> None:
    sweeps = Sweeps()
    for seconds, members in ((0, {"anna": [0]}), (10, {"ben": [0]}), (20, {"carl": [0]})):
        swept = sweeps.sweep(group_view("g", {at(0): 5}, members=members), ends=log(10), now=NOW + seconds * SECOND)
    drawn = timeline(swept.groups["g"], lambda name: f"owner-{name}", NOW + 30 * SECOND)
    assert drawn is not None
    found = re.findall(r'x="([\d.]+)" y="2" width="([\d.]+)" height="13" rx="2" class="(.*?)"', drawn)
    assert found == [("150.0", "405.0", "owner-ben"), ("555.0", "405.0", "owner-carl")]
    quiet = Sweeps().sweep(group_view("g", {at(0): 5}), ends=log(10)).groups["g"]
    assert timeline(quiet, str, NOW) is None


HOUR, DAY = 3600.0, 86_400.0


def test_a_group_without_members_is_in_use_until_its_last_commit_is_a_day_old() -> None:
    found = group_view("old", {at(0): 90, at(1): 90}, ago_s=2 * DAY)
    recent = replace(found.offsets[1], committed_at=from_ms(int(NOW - HOUR * 1000)))
    for group, in_use, status in (
        (found, False, Status.ABANDONED),
        (replace(found, offsets=(found.offsets[0], recent)), True, Status.STOP),
        (group_view("held", {at(0): 90}, members={"anna": [0, 1, 2]}, ago_s=2 * DAY), True, Status.STOP),
        (group_view("empty"), False, Status.UNKNOWN),
    ):
        shown = Sweeps().sweep(group, ends=log(100)).groups[group.group]
        assert (shown.in_use, shown.verdict.status) == (in_use, status), group.group


def test_a_topic_that_no_member_reads_any_more_is_abandoned_and_a_pattern_may_read_all() -> None:
    found = group_view("billing", {at(0): 100}, members={"anna": [0, 1, 2]})
    left = group_view("billing", {at(0, "refunds"): 5}, ago_s=2 * DAY, topic="refunds").offsets
    ends = log(100) | log(9, topic="refunds", partitions=1)
    both = replace(found, offsets=(*found.offsets, *left))
    shown = Sweeps().sweep(both, ends=ends).groups["billing"]
    assert (shown.in_use, shown.verdict.status) == (True, Status.ABANDONED)
    registration = MalformedNode("/consumers/billing/ids/anna", b"x", "it is not JSON", 100)
    unknown = replace(both, instances=tuple(replace(each, registration=registration) for each in both.instances))
    assert Sweeps().sweep(unknown, ends=ends).groups["billing"].verdict.status is Status.STOP


def test_a_commit_in_the_future_does_not_age_the_others() -> None:
    """The clock of a server was wrong for a while: its commits count as new when they are first seen."""
    sweeps = Sweeps()
    healthy = group_view("billing", {at(0): 90}, members={"anna": [0]}, partitions=1)
    ahead = group_view("ahead", {at(0): 90}, members={"ben": [0]}, partitions=1, ago_s=-100 * 86_400)
    first = sweeps.sweep(healthy, ahead, ends=log(100, partitions=1))
    assert {name: group.verdict.status for name, group in first.groups.items()} == {
        "ahead": Status.OK,
        "billing": Status.OK,
    }
    later = NOW + 7_200_000
    healthy = group_view("billing", {at(0): 95}, members={"anna": [0]}, partitions=1, now=later)
    second = sweeps.sweep(healthy, ahead, now=later)
    assert second.groups["billing"].verdict.status is Status.OK
    assert second.groups["ahead"].verdict.status is Status.STOP, "nothing was committed for two hours"
    assert second.groups["ahead"].last_commit_ms == NOW
