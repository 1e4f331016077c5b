"""Options for durations and times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zkgroups.core.time_formats import parse_duration
from zkgroups.exceptions import InvalidInputError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Parsed = TypeVar("Parsed")


def seconds_option(*names: str, help: str, default: float | None = None) -> Callable[[Decorated], Decorated]:
    """Return an option for a number of seconds, 0 or more, or a duration like 30m."""
    return click.option(
        *names,
        type=str,
        callback=in_seconds(),
        metavar="SECONDS",
        default=default,
        show_default=default is not None,
        help=help,
    )


def duration_option(*names: str, help: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """Return an option for a duration like 90d or P90D. The command gets seconds."""
    examples = f"{help}: 90d, 12h, 30m, P7D, PT2H."
    return click.option(
        *names, metavar="DURATION", type=str, callback=in_seconds(only_durations=True), help=examples, **more
    )


def parsed_by(parse: Callable[[str], Parsed]) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """Return the callback of an option for a time or a duration. Its errors name the option."""

    def callback(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Parsed | None:
        try:
            return None if text is None else parse(text)
        except InvalidInputError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def in_seconds(
    *, only_durations: bool = False, least: float = 0.0
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Return the callback of an option for seconds. Without `only_durations`, a number without a unit is accepted."""

    def parse(text: str) -> float:
        try:
            seconds = math.nan if only_durations else float(text)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds) and text.lower() != "nan":
            seconds = parse_duration(text) / 1000
        if not least <= seconds < math.inf:
            raise click.BadParameter(f"{text} is not a number of seconds, {least:g} or more")
        return seconds

    return parsed_by(parse)
