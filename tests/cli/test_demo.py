"""`zkgroups demo`, which is `make demo`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from zkgroups_cli.demo import demo
from zkgroups_cli.shared.options import Options

from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ChildProcess, KafkaBroker, kafka_releases
from zkgroups.testing.maven import CACHE_VARIABLE, cache_folder, downloaded_bytes

from .running import Terminal, environment, run

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1000)]

STORY = [
    r"A real ZooKeeper is running at 127\.0\.0\.1:\d+",
    "'orders' has 6 partitions",
    "anna, ben, cleo",
    r"billing +Stable +3 +1 +6 +6 +0",
    "ben tries to claim orders/0 and is refused: orders/0 is claimed by 'anna' of session 0x",
    "commits an offset",
    "anna releases orders/1. ben claims it, and will continue at offset 101",
    "cleo's session expires",
    r"billing +CompletingRebalance +2 +1 +6 +4 +6",
    r"orders +4 +104 .*unowned",
    "anna claims orders/4 and commits 250",
    "cleo tries to commit 150 for orders/4, and is refused: .*session .* has expired; nothing was changed",
    "The offset is still 250",
    r"orders +4 +250 +anna",
    "The snapshot has 6 offsets, 6 owners and 2 members",
    "All instances leave",
    r"demo +billing +orders +0 +100 +anna",
    r"demo +billing +orders +4 +250 +anna",
    r"A real Kafka 4\.\d\.\d is running at 127\.0\.0\.1:\d+",
    r"A gateway is running at 127\.0\.0\.1:\d+",
    "dora, a zkgroups member, and a librdkafka consumer join the group",
    r"dora +Stable +3 +orders +zkgroups",
    r"orders +4 +250 .*librdkafka-",
    "reads on where the instances stopped: orders/3 at 103, orders/4 at 250, orders/5 at 105",
    r"billing +billing +orders +4 +250 +0 +300 +- +250 +commit +unchanged",
    "6 offsets are written. Verified: 6 of 6 are equal",
    "anna tries to register again, and is refused: group 'billing' was moved to Kafka's own offsets",
    "The servers and their data are deleted",
]


def test_on_a_terminal_the_demo_prints_its_steps_in_order_with_colours_and_nothing_else(
    tmp_path: Path,
) -> None:
    """The output format from the environment is ignored. Kafka is in the cache, so no progress is shown."""
    with kafka_releases.download(kafka_releases.RELEASE, tmp_path) as download:
        assert download.wait(600) == 0
    with Terminal("demo", env={"ZKGROUPS_OUTPUT": "json"}, columns=140) as terminal:
        ended = terminal.end()
    assert ended.code == 0
    assert "\x1b[32mStable" in ended.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.out)
    assert "\x1b" not in plain
    assert not re.search("WARN|Traceback|Stage", plain)
    found = [re.search(step, plain) for step in STORY]
    assert all(found), STORY[found.index(None)]
    assert all(a.start() < b.start() for a, b in pairwise(step for step in found if step))


def test_without_kafka_the_last_steps_are_skipped(tmp_path: Path) -> None:
    """Only the last steps need Kafka."""
    code = (
        "from contextlib import ExitStack; from zkgroups_cli.demo import demo;"
        "from zkgroups_cli.shared.options import Options;"
        "stack = ExitStack(); stage = demo.DemoState(Options(), demo.Output(Options()), stack);"
        "demo.fetch_kafka(stage); [step(stage) for step in demo.STEPS[-3:]]; stack.close()"
    )
    env = environment({"XDG_CACHE_HOME": str(tmp_path), "ZKGROUPS_MAVEN_REPOSITORY": "http://127.0.0.1:1/"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"The last steps, with Kafka's own clients and offsets, are skipped: Kafka could not be downloaded\.\n",
        done.stdout,
    )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[demo.DemoState]:
    """The state of a demo with an empty cache, a short time limit, and a download that has not begun."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(demo, "_STALLED_AFTER", 7.0)
    cache_folder().mkdir(parents=True)
    with ExitStack() as stack:
        yield demo.DemoState(Options(), demo.Output(Options()), stack)


def download(stage: demo.DemoState, *, chunks: int, then: str) -> ChildProcess:
    """Start a process that writes a chunk every 0.3 seconds into a scratch folder, and then does something else."""
    folder = cache_folder() / ".kafka.part-1"
    folder.mkdir()
    code = f"""
import time
with open({str(folder / "kafka.jar.part")!r}, "ab", buffering=0) as file:
    for _ in range({chunks}):
        file.write(b"x" * 1000)
        time.sleep(0.3)
{then}
"""
    return stage.stack.enter_context(ChildProcess([sys.executable, "-c", code], log=folder.parent / "log"))


def test_the_demo_waits_for_a_slow_download_as_long_as_bytes_arrive(stage: demo.DemoState) -> None:
    stage.download = download(stage, chunks=25, then="")
    assert isinstance(demo._broker(stage), KafkaBroker)
    assert downloaded_bytes() == 25_000


def test_the_demo_gives_up_on_a_download_that_stalls(stage: demo.DemoState) -> None:
    stage.download = download(stage, chunks=2, then="time.sleep(60)")
    with pytest.raises(MissingDependencyError, match=r"stalled for 7 s"):
        demo._broker(stage)


def test_the_progress_of_the_download_is_shown_on_a_terminal(
    stage: demo.DemoState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[str] = []
    seen = tmp_path / "seen"

    def show(text: str) -> None:
        shown.append(text)
        seen.touch()

    monkeypatch.setattr(demo, "status_line", lambda _options: nullcontext(show))
    # It ends after it was shown, also if this process stands still meanwhile.
    then = f"import os\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.01)"
    stage.download = download(stage, chunks=6, then=then)
    demo._broker(stage)
    assert shown == sorted(shown)
    assert re.fullmatch(r"downloading Kafka 4\.\d\.\d: 0\.0 MB", shown[0])


@pytest.mark.soak
def test_in_a_pipe_the_demo_prints_plain_text() -> None:
    ended = run("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out


def test_make_demo_is_this_command() -> None:
    rule = (Path(__file__).parents[2] / "Makefile").read_text().partition("\ndemo: ")[2]
    assert rule.splitlines()[1] == "\t@$(BIN)/zkgroups demo"
