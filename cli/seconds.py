"""Options that are a time in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def seconds_option(*names: str, help: str, default: float | None = None) -> Callable[[Decorated], Decorated]:
    """An option that is a number of seconds, 0 or more."""
    return click.option(
        *names,
        type=float,
        metavar="SECONDS",
        default=default,
        show_default=default is not None,
        callback=_checked,
        help=help,
    )


def _checked(_ctx: click.Context, _param: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not 0 <= seconds < math.inf:
        raise click.BadParameter(f"{seconds:g} is not a number of seconds, 0 or more")
    return seconds
