"""Options for durations and times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zkgroups.core.time_formats import parse_short_duration
from zkgroups.exceptions import InvalidInputError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Parsed = TypeVar("Parsed")


def seconds_option(*names: str, help: str, default: float | None = None) -> Callable[[Decorated], Decorated]:
    """Return an option for a number of seconds, 0 or more."""
    return click.option(
        *names,
        type=float,
        metavar="SECONDS",
        default=default,
        show_default=default is not None,
        callback=checked_seconds,
        help=help,
    )


def duration_option(*names: str, help: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """Return an option for a duration like 90d. The command gets seconds."""
    examples = f"{help}: 90d, 12h, 30m, 3600s."
    return click.option(*names, metavar="DURATION", callback=parsed_by(parse_short_duration), help=examples, **more)


def parsed_by(parse: Callable[[str], Parsed]) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """Return the callback of an option for a time or a duration. Its errors name the option."""

    def callback(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Parsed | None:
        try:
            return None if text is None else parse(text)
        except InvalidInputError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def checked_seconds(_ctx: click.Context, _param: click.Parameter, seconds: float | None) -> float | None:
    """The callback of a number of seconds. It refuses NaN and infinity."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise click.BadParameter(f"{seconds:g} is not a number of seconds, 0 or more")
    return seconds
