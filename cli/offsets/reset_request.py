"""What a reset is asked for: which offsets are to go where, in Kafka's words, or back to what is kept of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from zkgroups.core.offsets.reset import Target, ToCurrent, ToEarliest, ToLatest, parse_duration, parse_time

from ..shared.arguments import ChosenPartitions
from ..shared.input_files import FilePath, FolderUri
from .from_parquet import FromAudit, FromSnapshot, Selection, which_of, which_options

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FLAGS: Final[Mapping[str, Target]] = {
    "to_earliest": ToEarliest(),
    "to_latest": ToLatest(),
    "to_current": ToCurrent(),
}
"""What is the same for all partitions."""

_OF_A_TIME: Final = {"to_datetime", "by_duration"}
"""With these options the user cannot know whether an offset goes forward or back; with all others that is explicit."""

forward_option = click.option(
    "--forward",
    is_flag=True,
    help="With --to-datetime or --by-duration: also move offsets forward, past messages that may be unread.",
)
"""As `forward`; see `Request.may_go_forward`."""


@dataclass(frozen=True, slots=True)
class Request:
    """Which offsets are to go where: one of the options below with its value."""

    option: str
    value: Any
    selection: Selection
    kept: FromSnapshot | FromAudit | None = None

    @property
    def is_from_file(self) -> bool:
        """Whether a file has an offset for each partition."""
        return self.option == "from_file"

    @property
    def needs_brokers(self) -> bool:
        """Whether only they know where that is."""
        return self.kept is None and (self.option in {"to_earliest", "to_latest"} or self.option in _OF_A_TIME)

    @property
    def may_go_forward(self) -> bool:
        """True if offsets may go forward without `--forward`."""
        return self.option not in _OF_A_TIME

    def check(self, *, all_topics: bool, forward: bool) -> None:
        """Raise a usage error if the topics or groups are not named (a file names them), or `forward` has no effect."""
        if forward and self.may_go_forward:
            raise usage(f"--forward is for --to-datetime and --by-duration; {spelled(self.option)} moves both ways")
        if not self.is_from_file:
            check_choice(self.selection.topics, all_topics)
            if not self.selection.says_groups:
                raise usage("say which groups: GROUP..., or --groups REGEX")


all_topics_option = click.option("--all-topics", is_flag=True, help="All topics that have offsets in the group.")
"""As `all_topics`; see `check_choice`."""


def check_choice(topics: ChosenPartitions | None, all_topics: bool) -> None:
    """Nobody forgets an option and so changes everything."""
    if (topics is None) is not all_topics:
        raise usage("say which topics: either --topic, as often as needed, or --all-topics")


def usage(message: str) -> click.UsageError:
    """The error of a command line that does not say what is meant."""
    return click.UsageError(message, click.get_current_context())


def spelled(name: str) -> str:
    """An option as it is typed."""
    return {"snapshot": "--to-snapshot"}.get(name, f"--{name.replace('_', '-')}")


# Options


def _time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _ago(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    return None if text is None else max(0, int(time.time() * 1000) - parse_duration(text))


_OPTIONS: Final = (
    click.option("--to-earliest", is_flag=True, help="To the start of the log. Needs brokers."),
    click.option("--to-latest", is_flag=True, help="To the end of the log. Needs brokers."),
    click.option("--to-current", is_flag=True, help="Where it is; the end of the log where nothing is committed."),
    click.option("--to-offset", type=int, metavar="N", help="To this offset, as far as the log has it."),
    click.option(
        "--to-datetime",
        metavar="TIME",
        callback=_time,
        help="To the first offset at or after 2026-01-31T12:00:00.000, which is UTC unless +01:00 or so follows. "
        "Needs brokers, or --from-audit.",
    ),
    click.option(
        "--by-duration",
        metavar="P7D",
        callback=_ago,
        help="To the first offset of that long ago. Needs brokers, or --from-audit.",
    ),
    click.option("--shift-by", type=int, metavar="N", help="So many messages further, or back if negative."),
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
        help="With a time: to what was committed then, as an audit has it; of another ZooKeeper only with --cluster.",
    ),
    which_options,
)


def target_options(command: Decorated) -> Decorated:
    """Where offsets are to go: see `request_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request_of(given: dict[str, Any], selection: Selection) -> Request:
    """Takes what the options have brought."""
    audit, which = given.pop("audit"), which_of(given)
    option, value = _only(given)
    if option == "snapshot":
        if audit is None:
            return Request(option, value, selection, FromSnapshot(value, which))
    elif audit is None:
        which.refuse("--to-snapshot DEST")
    elif option in _OF_A_TIME:
        which.refuse("--to-snapshot DEST", only_at=True)
        return Request(option, value, selection, FromAudit(audit, value, which.cluster, which.spark))
    if audit is not None:
        raise usage("--from-audit needs --to-datetime TIME or --by-duration P7D")
    return Request(option, value, selection)


def _only(given: Mapping[str, Any]) -> tuple[str, Any]:
    chosen = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise usage(f"say where to, in exactly one way: {', '.join(map(spelled, given))}")
    return chosen[0]
