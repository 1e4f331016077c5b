"""The page of one group: members, partitions by owner, offsets in their logs, recent events, and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...core.doctor.findings import Finding, command
from ...core.health import Status
from ...core.session_lifetime import session_hex
from ...core.znodes.paths import GroupPaths
from ...core.znodes.topic_partition import TopicPartition
from ..picture.values import EventKind, GroupEvent, GroupPicture, MemberPicture, PartitionPicture
from . import html
from .html import (
    UNKNOWN,
    Heading,
    Html,
    badge,
    cell,
    count,
    element,
    exact,
    group_path,
    joined,
    moment,
    pager,
    rate,
    reason,
    seconds,
    severity_class,
    since,
    table,
    time_of_day,
    topic_path,
)
from .overview import catch_up, paged

# Who owned which partition when, as far as the recent events tell, as a drawing.


MOST_ROWS: Final = 30
ROW: Final = 18
LEFT: Final = 150
WIDTH: Final = 960


class Span(NamedTuple):
    """A time in which a partition had one owner, or None."""

    start_ms: int
    end_ms: int
    owner: str | None


def spans(
    events: Sequence[GroupEvent], owners: Mapping[TopicPartition, str | None], now_ms: int
) -> dict[TopicPartition, list[Span]]:
    """Return the owners of each partition that has changed hands, from the first event until now.

    The owner before an event is known if the event before it, or the release itself, names it.
    """
    changes: dict[TopicPartition, list[GroupEvent]] = {}
    for event in events:
        if event.at is not None:
            changes.setdefault(event.at, []).append(event)
    if not changes:
        return {}
    first_ms = min(some[0].ms for some in changes.values())
    found = {}
    for at, some in sorted(changes.items()):
        before = some[0].subject if some[0].kind is EventKind.RELEASED else None
        row, start = [], first_ms
        for event in some:
            if event.ms > start:
                row.append(Span(start, event.ms, before))
            start, before = event.ms, event.subject if event.kind is EventKind.CLAIMED else None
        row.append(Span(start, max(now_ms, start), owners.get(at)))
        found[at] = row
    return found


def timeline(group: GroupPicture, color: Callable[[str], str], now_ms: int) -> Html | None:
    """Draw the owners over time. None if no partition has changed hands."""
    found = spans(group.events, {each.at: each.owner for each in group.partitions}, now_ms)
    if not found:
        return None
    rows = list(found.items())[:MOST_ROWS]
    first_ms = min(row[0].start_ms for _, row in rows)
    scale = (WIDTH - LEFT) / max(1, now_ms - first_ms)
    drawn = []
    for number, (at, row) in enumerate(rows):
        y = number * ROW
        drawn.append(element("text", _short(str(at)), x=0, y=y + 12))
        for span in row:
            drawn.append(
                element(
                    "rect",
                    element("title", f"{at}: {span.owner or 'no owner'}"),
                    x=f"{LEFT + (span.start_ms - first_ms) * scale:.1f}",
                    y=y + 2,
                    width=f"{max(1.0, (span.end_ms - span.start_ms) * scale):.1f}",
                    height=ROW - 5,
                    rx=2,
                    class_=color(span.owner or ""),
                )
            )
    height = len(rows) * ROW
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=f"Owners of {len(rows)} partitions over time",
        class_="timeline",
    )


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"…{name[-21:]}"


PARTITIONS_PER_PAGE: Final = 200
STRIP_CELLS: Final = 1000
"""The most partitions of the strip. More cannot be told apart on a screen."""
COLORS: Final = 8
EVENTS_SHOWN: Final = 40

Owners = Mapping[str, int]
"""The number of each owner, from 1: shown in the strip and in the table of members."""


def group_page(group: GroupPicture, page: int, now_ms: int) -> Html:
    """Return the contents of the page."""
    owners = _numbered(group)
    shown, page, pages = paged(group.partitions, page, PARTITIONS_PER_PAGE)
    path = group_path(group.name)
    before, after = f"{path}?page={page - 1}", f"{path}?page={page + 1}"
    numbers = f"page {page} of {pages}" if pages > 1 else ""
    return joined(
        element("nav", element("a", "← All groups", href="/", id="back"), class_="crumbs", aria_label="Back"),
        _title(group),
        _facts(group, now_ms),
        _section("Partitions by owner", _strip(group, owners), _legend(group, owners)) if group.partitions else None,
        _blockers(group),
        _section("Members", _members(group, owners, now_ms)),
        _section("Lag and commits", _history(group)),
        _section("Partitions", _partitions(shown, owners, now_ms)),
        pager("Pages of partitions", page, pages, (before, after), numbers),
        _timeline(group, owners, now_ms),
        _section("Recent events", _events(group.events)),
        _section("Findings of the doctor", _findings(group)),
    )


def _title(group: GroupPicture) -> Html:
    return element(
        "header",
        element("h1", group.name),
        badge(group.verdict),
        element("p", group.verdict.reason),
        element("p", f"Next: {group.next_step}", class_="quiet") if group.next_step else None,
        class_="title",
    )


def _section(title: str, *children: Html | None) -> Html:
    return element("section", element("h2", title), *children)


def _numbered(group: GroupPicture) -> Owners:
    """Number all owners: members first, then owners that are not registered."""
    members = [member.id for member in group.members]
    others = sorted({each.owner for each in group.partitions if each.owner is not None} - set(members))
    return {name: number for number, name in enumerate([*members, *others], start=1)}


def _facts(group: GroupPicture, now_ms: int) -> Html:
    facts = {
        "State": group.state.value,
        "Lag": exact(group.lag),
        "Time lag": seconds(group.time_lag),
        "Consumed": rate(group.consumed),
        "Produced": rate(group.produced),
        "Catch-up": catch_up(group),
        "Members": exact(group.living),
        "Partitions": exact(len(group.partitions)),
        "Unowned": exact(group.unowned),
        "Last commit": since(group.last_commit_ms, now_ms),
    }
    shown = [element("div", element("dt", name), element("dd", value)) for name, value in facts.items()]
    return element("dl", shown, class_="facts")


# Owners


def _strip(group: GroupPicture, owners: Owners) -> Html:
    """Show each partition as a cell with the colour and the number of its owner."""
    cells = [_strip_cell(partition, owners) for partition in group.partitions[:STRIP_CELLS]]
    left = len(group.partitions) - len(cells)
    more = element("p", f"{exact(left)} more partitions are not shown here.", class_="empty") if left > 0 else None
    return joined(element("ol", cells, class_="strip", aria_label="Partitions by owner"), more)


def _strip_cell(partition: PartitionPicture, owners: Owners) -> Html:
    number = owners.get(partition.owner or "", 0)
    owner = partition.owner or "no owner"
    return element(
        "li",
        element("span", str(number) if number else "·", aria_hidden="true"),
        element("span", f"{partition.at}: {owner}", class_="hidden"),
        class_=f"{_color(number)} {severity_class(partition.verdict.severity)}",
        title=f"{partition.at}: {owner}",
        data_key=str(partition.at),
    )


def _color(number: int) -> str:
    return f"owner-{(number - 1) % COLORS + 1}" if number else "owner-none"


def _legend(group: GroupPicture, owners: Owners) -> Html:
    counts: dict[str, int] = dict.fromkeys(owners, 0)
    for partition in group.partitions:
        if partition.owner is not None:
            counts[partition.owner] += 1
    items = [
        element("li", _swatch(owners, name), f" {name} ", element("span", exact(number), class_="quiet"), data_key=name)
        for name, number in list(counts.items())[:50]
    ]
    return element("ul", items, class_="legend", aria_label="Owners") if items else Html("")


def _swatch(owners: Owners, name: str) -> Html:
    number = owners.get(name, 0)
    return element("span", str(number) if number else "·", class_=f"swatch {_color(number)}", aria_hidden="true")


def _blockers(group: GroupPicture) -> Html | None:
    """Say which owners keep members from which partitions."""
    bad = [each for each in group.partitions if each.verdict.status in (Status.BLOCKED, Status.ORPHANED)]
    if not bad:
        return None
    items = [
        element("li", element("strong", str(each.at)), f" {each.verdict.reason}. ", _release(group.name, each))
        for each in bad[:20]
    ]
    return _section("Held by others", element("ul", items, class_="list"))


def _release(group: str, partition: PartitionPicture) -> Html | None:
    """Return the command that releases the claim of the holder, or None if `release` may not find it."""
    at, holder = partition.at, partition.holder
    if holder is None or holder.path not in ("", GroupPaths(group).owner(at)):
        return None  # beside a node of pykafka, `release` first finds another owner at the usual path
    session = session_hex(holder.session)
    words = ("release", group, at.topic, str(at.partition))
    return _command(command(*words, expect_owner=holder.id, expect_session=session))


def _command(text: str) -> Html:
    return element("code", text)


def _members(group: GroupPicture, owners: Owners, now_ms: int) -> Html:
    headings = [
        Heading("Instance"),
        Heading("State"),
        Heading("Host"),
        Heading("Owned", "number"),
        Heading("Client"),
        Heading("Subscription"),
        Heading("Since", "number"),
    ]
    rows = [_member(member, owners, now_ms) for member in group.members]
    return table("Members", headings, rows, empty="No instance is registered.")


def _member(member: MemberPicture, owners: Owners, now_ms: int) -> Html:
    return element(
        "tr",
        element("th", _swatch(owners, member.id), " ", member.id, scope="row", class_="name"),
        cell(member.state.value),
        cell(member.host or UNKNOWN),
        cell(exact(member.owned), class_="number"),
        cell(member.dialect or UNKNOWN),
        cell(member.subscription or UNKNOWN, class_="wrap"),
        cell(since(member.registered_ms, now_ms), class_="number", title=moment(member.registered_ms)),
        data_key=member.id,
    )


# Partitions


def _partitions(partitions: Sequence[PartitionPicture], owners: Owners, now_ms: int) -> Html:
    headings = [
        Heading("Status"),
        Heading("Partition"),
        Heading("Reason"),
        Heading("Owner"),
        Heading("Offset", "number"),
        Heading("In the log", help="The committed offset between log start and log end"),
        Heading("Log end", "number"),
        Heading("Lag", "number"),
        Heading("Time lag", "number"),
        Heading("Commits", "number"),
        Heading("Last commit", "number"),
    ]
    return table("Partitions", headings, (_partition(each, owners, now_ms) for each in partitions), class_="partitions")


def _partition(each: PartitionPicture, owners: Owners, now_ms: int) -> Html:
    log = each.log
    where = Html("")
    if log is not None and each.offset is not None:
        label = f"{exact(each.offset)} between {exact(log.start)} and {exact(log.end)}"
        where = html.position(log.start, log.end, each.offset, label)
    return element(
        "tr",
        cell(badge(each.verdict)),
        element(
            "th",
            element("a", each.at.topic, href=topic_path(each.at.topic)),
            f"/{each.at.partition}",
            scope="row",
            class_="name",
        ),
        reason(each.verdict),
        _owner(each, owners),
        cell(exact(each.offset), class_="number"),
        cell(where),
        cell(exact(None if log is None else log.end), class_="number"),
        cell(count(each.lag), class_="number strong", title=exact(each.lag)),
        cell(seconds(each.time_lag), class_="number"),
        cell(exact(each.commits), class_="number"),
        cell(since(each.committed_ms, now_ms), class_="number", title=moment(each.committed_ms)),
        data_key=str(each.at),
        class_=severity_class(each.verdict.severity),
    )


def _owner(each: PartitionPicture, owners: Owners) -> Html:
    if each.owner is None:
        return cell(UNKNOWN)
    title = f"{each.owner}, since {moment(each.owner_ms)}"
    return cell(_swatch(owners, each.owner), " ", each.owner, class_="owner", title=title)


def _history(group: GroupPicture) -> Html:
    points = group.trend.points
    if len(points) < 2:
        return element("p", "Drawn after the second sweep.", class_="empty")
    first, last = points[0], points[-1]
    text = f"Lag from {exact(first.lag)} to {exact(last.lag)}; {exact(sum(each.commits for each in points))} commits"
    return joined(
        html.history(points, text),
        element("p", f"{time_of_day(first.ms)} – {time_of_day(last.ms)} UTC. {text}.", class_="quiet"),
    )


# Events and findings


def _timeline(group: GroupPicture, owners: Owners, now_ms: int) -> Html | None:
    drawn = timeline(group, lambda name: _color(owners.get(name, 0)), now_ms)
    return None if drawn is None else _section("Owners over time", drawn)


def _events(events: Sequence[GroupEvent]) -> Html:
    if not events:
        return element("p", "None since the server started.", class_="empty")
    items = [
        element("li", element("time", time_of_day(event.ms), title=moment(event.ms)), " ", _event(event))
        for event in reversed(events[-EVENTS_SHOWN:])
    ]
    return element("ol", items, class_="events")


def _event(event: GroupEvent) -> Html:
    match event.kind:
        case EventKind.STATUS:
            return joined(event.subject)
        case EventKind.JOINED | EventKind.LEFT:
            return joined(element("strong", event.subject), f" {event.kind}")
    verb = "claimed" if event.kind is EventKind.CLAIMED else "released"
    return joined(element("strong", event.subject), f" {verb} {event.at}")


def _findings(group: GroupPicture) -> Html:
    rows: Iterable[Html] = (_finding(finding) for finding in group.findings[:100])
    headings = [Heading("Severity"), Heading("Problem"), Heading("What to do")]
    return table("Findings", headings, rows, class_="findings", empty="No problem was found.")


def _finding(finding: Finding) -> Html:
    return element(
        "tr",
        cell(element("span", finding.severity.value, class_=f"badge {severity_class(finding.severity)}")),
        cell(
            element("strong", finding.code.value),
            " ",
            finding.what,
            element("span", finding.path, class_="path"),
            class_="wrap",
        ),
        cell(_command(finding.fix) if finding.fix.startswith("zkgroups ") else finding.fix, class_="wrap"),
    )
