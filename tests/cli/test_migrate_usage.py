"""`zkgroups migrate`: examples, progress, engines, and the tables and summaries that it shows."""

from __future__ import annotations

import doctest
import io
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import click
import pytest
from zkgroups_cli.migrate import tables
from zkgroups_cli.migrate.commands import migrate as migrate_commands
from zkgroups_cli.migrate.tables import RESET_ADVICE, done_row, plan_summary, planned_row
from zkgroups_cli.shared import messages
from zkgroups_cli.shared.engine_options import EngineKind, EngineOptions, SparkOptions
from zkgroups_cli.shared.options import Options

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Policy, Reason, Rule
from zkgroups.core.migration.plan_rows import GroupPlan, GroupResult, Outcome
from zkgroups.storage.files import CONFIGURATION


@pytest.mark.parametrize("module", [messages, tables], ids=lambda module: module.__name__)
def test_docstring_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_a_terminal_shows_progress_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    with messages.progress(Options(), 2, lambda: 0.5, 100_000) as on_progress:
        on_progress("applying")
        while "left" not in screen.getvalue():
            pass
    assert re.search(r"applying .*50,000 of 100,000 offsets, [0-9,]+/s, 0:00:0\d left", screen.getvalue())


@pytest.mark.parametrize("name", migrate_commands.commands)
def test_every_option_in_an_example_exists(name: str) -> None:
    """The examples are not run: the tests above show what the commands do."""
    command = migrate_commands.commands[name]
    _, _, text = (command.help or "").partition("Example:\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line)
        arguments = words[words.index(name) + 1 :]
        assert words[words.index(name) - 1] == "migrate"
        with click.Context(click.Command("zkgroups"), obj=Options()) as above:
            assert command.make_context(name, arguments, parent=above).params


HEAD = row("g", "g", TopicPartition("t", 0), Decision(Action.COMMIT, Reason.UNCHANGED, 1), offset=1, zxid=1)


def group(counts: Mapping[str, int], *obstacles: Obstacle) -> GroupPlan:
    return GroupPlan(group="g", target="g", obstacles=obstacles, counts=counts, lag_before=None, lag_after=None)


READY = group({Action.COMMIT: 2, Reason.UNCHANGED: 2})
IDLE = group({Action.SKIP: 1, Reason.NEGATIVE: 1})
BLOCKED = group(
    {Action.REFUSE: 3, Reason.PAST_END: 3}, Obstacle(ObstacleKind.REFUSED_OFFSETS, count=3, reason=Reason.PAST_END)
)


def test_a_group_with_only_skipped_offsets_has_nothing_to_do_and_is_not_ready() -> None:
    assert [planned_row(each, None)["state"] for each in (READY, IDLE, BLOCKED)] == [
        "ready",
        "nothing to do",
        "blocked",
    ]
    text = plan_summary(HEAD, [READY, IDLE, BLOCKED])
    assert "Groups: 1 ready, 1 nothing to do, 1 blocked." in text
    assert "Offsets: 2 commit (unchanged), 1 skip, 3 refuse (1 negative, 3 past the end)." in text


def test_the_summary_explains_how_to_move_offsets_outside_the_log() -> None:
    assert "--on-out-of-range" in plan_summary(HEAD, [READY, BLOCKED])
    assert "make a new plan" in plan_summary(HEAD, [READY, BLOCKED])
    assert plan_summary(HEAD, [READY]).splitlines()[2:] == [
        "The brokers keep the offsets of an unused group for 7d.",
        RESET_ADVICE,
    ]


def test_the_summary_counts_the_partitions_where_new_consumers_start_by_their_own_setting() -> None:
    idle = group({Action.SKIP: 3, Reason.NEVER_COMMITTED: 2, Reason.PAST_END: 1, Reason.TARGET_AHEAD: 1})
    for rule, counted in ((Rule(), "2 never committed"), (Rule(Policy.SKIP), "2 never committed, 1 past the end")):
        advice, ahead = plan_summary(HEAD._replace(rule=str(rule)), [idle]).splitlines()[-2:]
        assert advice == f"Partitions without an offset on the brokers: {counted}. {RESET_ADVICE}"
        assert ahead.startswith("Offsets that are higher on the brokers than in ZooKeeper, and stay: 1.")


@pytest.mark.parametrize(
    ("counts", "result"),
    [
        ({Outcome.SKIPPED: 3}, "nothing to do"),
        ({Outcome.SKIPPED: 1, Outcome.THERE: 1}, "done"),
        ({Outcome.SKIPPED: 1, Outcome.WRITTEN: 1}, "done"),
        ({Outcome.THERE: 1, Outcome.WOULD_WRITE: 1}, "ready"),
        ({Outcome.WRITTEN: 1, Outcome.FAILED: 1}, "failed"),
        ({Outcome.WRITTEN: 1, Outcome.OVERTAKEN: 1}, "overtaken"),
        ({Outcome.LEFT: 2}, "left"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_result_of_a_group_is_one_word(counts: dict[str, int], result: str) -> None:
    assert done_row(GroupResult(group="g", target="g", details=(), counts=counts))["result"] == result


def test_auto_starts_spark_for_large_plans_other_file_systems_and_chosen_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CONFIGURATION:
        monkeypatch.delenv(name, raising=False)

    def is_local(destination: str, *, small: bool, master: str | None = None, **settings: str) -> bool:
        return EngineOptions(EngineKind.AUTO, SparkOptions(master, settings)).is_local(
            destination, is_small=lambda: small
        )

    assert is_local("plan", small=True)
    assert not is_local("plan", small=False)
    assert not is_local("s3a://plans/one", small=True)
    assert not is_local("plan", small=True, master="local[8]")
    assert not is_local("plan", small=True, setting="1")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert is_local("plan", small=True)
    (tmp_path / "core-site.xml").write_text("<name>fs.defaultFS</name>")
    assert not is_local("plan", small=True)
    assert is_local("file:/plan", small=True)
