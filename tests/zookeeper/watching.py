"""The changes that a watch reports."""

from __future__ import annotations

from zkgroups import (
    Change,
    Watch,
)

ENOUGH = 40.0
"""In seconds. A change that takes longer counts as missed."""


def told(watch: Watch) -> Change:
    change = watch.next(timeout=ENOUGH)
    assert change is not None, "nothing was told"
    return change


def told_many(watch: Watch, count: int) -> list[Change]:
    return [told(watch) for _ in range(count)]


def seen(change: Change) -> tuple[str, str]:
    return str(change.kind), change.path
