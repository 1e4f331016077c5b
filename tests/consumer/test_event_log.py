"""What a member logs about its events."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from zkgroups import EventKind, TopicPartition
from zkgroups.consumer.callbacks import Callbacks

SOME = frozenset(TopicPartition("orders", number) for number in (1, 0))
MANY = frozenset(TopicPartition("orders", number) for number in range(22))
SHOWN = ", ".join(f"orders/{number}" for number in range(20))


@pytest.fixture
def callbacks() -> Callbacks:
    options: Any = SimpleNamespace(on_event=None)
    return Callbacks("'anna' of group 'billing'", options, lambda: 1, lambda _result: None)


@pytest.mark.parametrize(
    ("kind", "partitions", "detail", "level", "text"),
    [
        (EventKind.JOINED, frozenset(), "", logging.INFO, "joined"),
        (EventKind.ASSIGNED, SOME, "", logging.INFO, "was assigned orders/0, orders/1"),
        (EventKind.ASSIGNED, MANY, "", logging.INFO, f"was assigned {SHOWN} and 2 more"),
        (EventKind.IDLE, SOME, "no mark", logging.WARNING, "is idle and releases orders/0, orders/1: no mark"),
        (EventKind.WAITING, SOME, "orders/0: ben", logging.INFO, "waits for partitions: orders/0: ben"),
        (EventKind.WAITING, SOME, "", logging.INFO, "waits for partitions orders/0, orders/1"),
        (EventKind.COMMITTED, SOME, "", logging.DEBUG, "committed offsets of orders/0, orders/1"),
    ],
)
def test_an_event_is_logged_with_its_partitions_unless_its_detail_names_them(
    callbacks: Callbacks,
    caplog: pytest.LogCaptureFixture,
    kind: EventKind,
    partitions: frozenset[TopicPartition],
    detail: str,
    level: int,
    text: str,
) -> None:
    with caplog.at_level(logging.DEBUG, "zkgroups.member"):
        callbacks.event(kind, partitions, detail)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (level, f"member 'anna' of group 'billing' {text}")
    ]


def test_each_error_of_a_step_is_one_warning_until_the_step_works_again(
    callbacks: Callbacks, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = OSError("one"), OSError("two")
    warned = [callbacks.failed("commit", error) for error in (first, second, first)]
    callbacks.worked("commit")
    warned += [callbacks.failed("commit", first), callbacks.failed("join", first)]
    assert warned == [True, True, False, True, True]
    with caplog.at_level(logging.DEBUG, "zkgroups.member"):
        assert sum(callbacks.failed("look", OSError(str(number))) for number in range(20)) == 16
