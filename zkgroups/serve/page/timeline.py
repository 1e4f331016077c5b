"""Who owned which partition when, as far as the recent events tell, as a drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ...core.znodes.topic_partition import TopicPartition
from ..picture.values import EventKind, GroupEvent, GroupPicture
from .html import Html, element

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
