"""`zkgroups demo`: what `make demo` shows."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from .running import Terminal, run

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

STORY = [
    r"A real ZooKeeper is running at 127\.0\.0\.1:\d+",
    "'orders' has 6 partitions",
    "anna, ben, cleo",
    r"billing +Stable +3 +1 +6 +6 +0",
    "ben wants orders/0 and is refused: orders/0 is claimed by 'anna' of session 0x",
    "commits an offset",
    "anna releases orders/1. ben claims it, and will go on at offset 101",
    "session of cleo ends",
    r"billing +CompletingRebalance +2 +1 +6 +4 +6",
    r"orders +4 +104 .*unowned",
    "anna takes orders/4 and commits 250",
    "cleo wakes up, commits 150 for orders/4, and is refused: .*session .* has ended, nothing was changed",
    "The offset is still 250",
    r"orders +4 +250 +anna",
    "It has 6 offsets, 6 owners and 2 members",
    "group 'billing' is deleted",
    r"demo +billing +orders +0 +100 +anna",
    r"demo +billing +orders +4 +250 +anna",
    "gone with its data",
]


def test_the_story_is_told_in_its_order_and_plain_in_a_pipe() -> None:
    ended = run("demo", env={"ZKGROUPS_OUTPUT": "json"})
    assert (ended.code, ended.err) == (0, "")
    found = [re.search(step, ended.out) for step in STORY]
    assert all(found), STORY[found.index(None)]
    assert all(a.start() < b.start() for a, b in pairwise(step for step in found if step))
    assert "\x1b" not in ended.out


def test_on_a_terminal_it_has_colours() -> None:
    with Terminal("demo", columns=120) as terminal:
        ended = terminal.end()
    assert ended.code == 0
    assert "\x1b[32mStable" in ended.out
