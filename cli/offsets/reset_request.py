"""The target of `zkgroups offsets reset`: its options, their checks, and the resulting `ResetRequest`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import click

from zkgroups.core.offsets.reset import Target, ToCurrent, ToEarliest, ToLatest
from zkgroups.exceptions import NoPermissionError
from zkgroups.zookeeper.admin.transaction_guards import server_time_ms
from zkgroups.zookeeper.session.session import context_of

from ..shared.arguments import ChosenPartitions, chosen_groups
from ..shared.connect import connected
from ..shared.input_files import FilePath, FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.parameter_types import Duration, Time
from .from_parquet import AuditSource, OffsetSelection, SnapshotSource, snapshot_choice_of, snapshot_choice_options

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FLAG_TARGETS: Final[Mapping[str, Target]] = {
    "to_earliest": ToEarliest(),
    "to_latest": ToLatest(),
    "to_current": ToCurrent(),
}
"""The targets that are options without a value."""

_TIME_OPTIONS: Final = {"to_datetime", "by_duration"}
"""With these options, the user cannot know whether an offset goes forward or back."""

forward_option = click.option(
    "--forward",
    is_flag=True,
    help="With --to-datetime or --by-duration: also move offsets forward, past messages that may be unread.",
)
"""Passed to the command as `forward`; see `ResetRequest.may_go_forward`."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The target of a reset: the one option that was given, its value, and the chosen partitions.

    The value of `--by-duration` is a duration in seconds, until `at_time_before` replaces it by a time.
    """

    option: str
    value: Any
    selection: OffsetSelection
    source: SnapshotSource | AuditSource | None = None

    @property
    def is_from_file(self) -> bool:
        """True if a file has an offset for each partition."""
        return self.option == "from_file"

    @property
    def needs_brokers(self) -> bool:
        """True if only brokers know the target offsets."""
        return self.source is None and (self.option in {"to_earliest", "to_latest"} or self.option in _TIME_OPTIONS)

    @property
    def may_go_forward(self) -> bool:
        """True if offsets may go forward without `--forward`."""
        return self.option not in _TIME_OPTIONS

    @property
    def has_duration(self) -> bool:
        """True if the value is a duration."""
        return self.option == "by_duration"

    def at_time_before(self, now_ms: int) -> Self:
        """Replace the duration by the time that is this long before `now_ms`."""
        start_ms = max(0, now_ms - round(self.value * 1000))
        source = replace(self.source, time_ms=start_ms) if isinstance(self.source, AuditSource) else self.source
        return replace(self, value=start_ms, source=source)

    def check(self, *, all_topics: bool, forward: bool) -> None:
        """Raise a usage error if the topics or groups are not named (a file names them), or `forward` has no effect."""
        if forward and self.may_go_forward:
            raise usage_error(
                "--forward is only for --to-datetime and --by-duration: "
                f"{option_text(self.option)} always moves both ways"
            )
        if not self.is_from_file:
            check_topics_given(self.selection.topics, all_topics)
            if not self.selection.names_groups:
                raise usage_error("no group is chosen: give GROUP..., or --groups REGEX")


all_topics_option = click.option("--all-topics", is_flag=True, help="All topics that have offsets in the group.")
"""Passed to the command as `all_topics`; see `check_topics_given`."""


def check_topics_given(topics: ChosenPartitions | None, all_topics: bool) -> None:
    """Require either `--topic` or `--all-topics`, so that a forgotten `--topic` does not change all topics."""
    if (topics is None) is not all_topics:
        raise usage_error("choose the topics: give either --topic (may be repeated) or --all-topics")


def usage_error(message: str) -> click.UsageError:
    """Return a usage error of the current command."""
    return click.UsageError(message, click.get_current_context())


def option_text(name: str) -> str:
    """Return an option as it is typed."""
    return {"snapshot": "--to-snapshot"}.get(name, f"--{name.replace('_', '-')}")


# Options


_OPTIONS: Final = (
    click.option("--to-earliest", is_flag=True, help="To the log start. Needs brokers."),
    click.option("--to-latest", is_flag=True, help="To the log end. Needs brokers."),
    click.option("--to-current", is_flag=True, help="To the committed offset; if none is committed, to the log end."),
    click.option(
        "--to-offset",
        type=int,
        metavar="N",
        help="To this offset; if it is outside the log, to the nearest offset in the log.",
    ),
    click.option(
        "--to-datetime",
        type=Time(),
        help="To the first offset at or after a time such as 2026-01-31T12:00 or yesterday. It is UTC, unless it has a "
        "zone such as +01:00. Needs brokers, or --from-audit.",
    ),
    click.option(
        "--by-duration",
        type=Duration(needs_unit=True),
        help="To the first offset at or after the time this long ago: 90m, P7D, PT2H30M. Needs brokers, or "
        "--from-audit.",
    ),
    click.option("--shift-by", type=int, metavar="N", help="Forward by N messages; back if N is negative."),
    click.option(
        "--from-file", metavar="FILE", type=FilePath(path_type=Path), help="To the offsets in a file; see above."
    ),
    click.option(
        "--to-snapshot", "snapshot", metavar="DEST", type=FolderUri(), help="To the offsets in a snapshot; see above."
    ),
    click.option(
        "--from-audit",
        "audit",
        metavar="DEST",
        type=FolderUri(),
        help="With --to-datetime or --by-duration: to the last offset that an audit has recorded by then; see above.",
    ),
    snapshot_choice_options,
)


def target_options(command: Decorated) -> Decorated:
    """Add all options of the target to a command; see `reset_request`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def reset_request(given: dict[str, Any], selection: OffsetSelection) -> ResetRequest:
    """Build the request from the values of `target_options`."""
    audit, choice = given.pop("audit"), snapshot_choice_of(given)
    option, value = _only_target(given)
    if option == "snapshot":
        if audit is None:
            return ResetRequest(option, value, selection, SnapshotSource(value, choice))
    elif audit is None:
        choice.check_unused("--to-snapshot DEST")
    elif option in _TIME_OPTIONS:
        choice.check_unused("--to-snapshot DEST", only_at=True)
        return ResetRequest(option, value, selection, AuditSource(audit, value, choice.cluster, choice.engine))
    if audit is not None:
        raise usage_error("--from-audit needs --to-datetime TIME or --by-duration P7D")
    return ResetRequest(option, value, selection)


def _only_target(given: Mapping[str, Any]) -> tuple[str, Any]:
    chosen = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise usage_error(f"give exactly one target: {', '.join(map(option_text, given))}")
    return chosen[0]


# The time from which `offsets reset --by-duration` counts back.
#
# With --execute, it is the time of the server, because the clock of this machine may be wrong. A dry run uses the
# clock of this machine: a server reports its time only in the answer to a write, and a dry run writes nothing.


_NOTABLE_MS: Final = 60_000
"""A larger difference between the clocks is reported."""


def with_time(options: Options, request: ResetRequest, *, execute: bool) -> ResetRequest:
    """Return a request whose duration is replaced by a time. A request without a duration is not changed."""
    if not request.has_duration:
        return request
    here_ms = int(time.time() * 1000)
    there_ms = _server_time_ms(options, request.selection) if execute else None
    if there_ms is None:
        return request.at_time_before(here_ms)
    if abs(here_ms - there_ms) > _NOTABLE_MS:
        seconds = abs(here_ms - there_ms) // 1000
        say(options, f"The clock of this machine differs from ZooKeeper's by {seconds} s. ZooKeeper's time is used.")
    return request.at_time_before(there_ms)


def _server_time_ms(options: Options, selection: OffsetSelection) -> int | None:
    """Return the time of the server; None if no chosen group exists, or nodes may not be created in it."""
    with connected(options, writes=True) as registry:
        for name in chosen_groups(registry, selection.names, selection.matching):
            group = registry.group(name)
            if not group.exists():
                continue
            try:
                return server_time_ms(context_of(group), group.paths.root)
            except NoPermissionError as error:
                say(options, f"The clock of this machine is used, because ZooKeeper's time cannot be read: {error}.")
                return None
    return None
