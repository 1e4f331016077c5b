"""`zkgroups demo`: what `make demo` shows."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from .running import Terminal, environment, run

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1000)]

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
    "cleo wakes up, commits 150 for orders/4, and is refused: .*session .* (ended,|expired;) nothing was changed",
    "The offset is still 250",
    r"orders +4 +250 +anna",
    "It has 6 offsets, 6 owners and 2 members",
    "Everybody leaves",
    r"demo +billing +orders +0 +100 +anna",
    r"demo +billing +orders +4 +250 +anna",
    r"A real Kafka 4\.\d\.\d is running at 127\.0\.0\.1:\d+",
    r"billing +billing +orders +4 +250 +0 +300 +- +250 +commit +unchanged",
    "6 offsets are written. Verified: 6 of 6 are equal",
    "anna tries to register again, and is refused: group 'billing' was moved to Kafka's own offsets",
    "gone with their data",
]


def test_the_story_is_told_in_its_order_with_colours_on_a_terminal_and_nothing_else_is_said() -> None:
    """Whatever may be set for commands that have data."""
    with Terminal("demo", env={"ZKGROUPS_OUTPUT": "json"}, columns=120) as terminal:
        ended = terminal.end()
    assert ended.code == 0
    assert "\x1b[32mStable" in ended.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.out)
    assert "\x1b" not in plain
    assert not re.search("WARN|Traceback|Stage", plain)
    found = [re.search(step, plain) for step in STORY]
    assert all(found), STORY[found.index(None)]
    assert all(a.start() < b.start() for a, b in pairwise(step for step in found if step))


def test_where_no_kafka_can_be_had_a_sentence_says_so(tmp_path: Path) -> None:
    """The last step alone: all the others need none."""
    code = (
        "from contextlib import ExitStack; from zkgroups_cli.demo import demo;"
        "from zkgroups_cli.shared.options import Options;"
        "stack = ExitStack(); stage = demo.Stage(demo.Output(Options()), stack);"
        "demo.fetch_kafka(stage); demo.move_to_kafka(stage); stack.close()"
    )
    env = environment({"XDG_CACHE_HOME": str(tmp_path), "ZKGROUPS_MAVEN_REPOSITORY": "http://127.0.0.1:1/"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"No Kafka can be had here \(.*\): so nothing is moved to one\.\n", done.stdout)


@pytest.mark.soak
def test_in_a_pipe_it_is_plain() -> None:
    ended = run("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out


def test_make_demo_is_this_command() -> None:
    rule = (Path(__file__).parents[2] / "Makefile").read_text().partition("\ndemo: ")[2]
    assert rule.splitlines()[1] == "\t@$(BIN)/zkgroups demo"
