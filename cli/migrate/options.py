"""The options of a plan: which offsets to write, and the new names of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from zkgroups.core.migration.offset_decision import OutOfRange, Rule
from zkgroups.core.migration.target_names import Renaming
from zkgroups.core.znodes.names import check_group

from ..shared.durations import duration_option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


out_of_range_option = click.option(
    "--on-out-of-range",
    type=click.Choice([each.value for each in OutOfRange]),
    default=OutOfRange.REFUSE.value,
    show_default=True,
    help="How to treat an offset outside the log.",
)
"""Passes `on_out_of_range`."""


def rule_options(command: Decorated) -> Decorated:
    """Add the options that `rule_of` reads."""
    backward = click.option("--backward", is_flag=True, help="Write offsets even if the target has a higher one.")
    return out_of_range_option(backward(command))


def rule_is_given() -> bool:
    """Return whether any option of `rule_options` was given."""
    context = click.get_current_context()
    sources = {context.get_parameter_source(name) for name in ("on_out_of_range", "backward")}
    return sources != {ParameterSource.DEFAULT}


def rule_of(given: dict[str, Any], *, skip_stale: bool = False) -> Rule:
    """Remove the values of `rule_options` from the options of a command."""
    return Rule(OutOfRange(given.pop("on_out_of_range")), given.pop("backward"), skip_stale)


def stale_options(command: Decorated) -> Decorated:
    """Add the options `stale_after` and `skip_stale`, for offsets that were not written for long."""
    after = duration_option("--stale-after", "stale_after", help="Offsets not written for this long are stale")
    skip = click.option("--skip-stale", is_flag=True, help="Skip stale offsets; needs --stale-after.")
    return after(skip(command))


def check_stale(stale_after: float | None, *, skip_stale: bool) -> None:
    if skip_stale and stale_after is None:
        raise click.UsageError("--skip-stale needs --stale-after DURATION", click.get_current_context())


def rename_options(command: Decorated) -> Decorated:
    """Add the options that `renaming_of` reads."""
    names = click.option(
        "--rename",
        "names",
        metavar="OLD=NEW",
        multiple=True,
        callback=_names,
        help="Give a group another name on the brokers; may be repeated.",
    )
    expression = click.option(
        "--rename-regex",
        "expression",
        nargs=2,
        metavar="REGEX NEW",
        help=r"Rename groups whose whole name matches; \1 in NEW is the text in the first parentheses.",
    )
    return names(expression(command))


def renaming_of(given: dict[str, Any]) -> Renaming:
    """Remove the values of `rename_options` from the options of a command."""
    return Renaming(given.pop("names"), *(given.pop("expression") or ()))


def _names(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        if text.count("=") != 1:
            raise click.BadParameter(f"{text!r} is not of the form OLD=NEW; for a name with a =, use --rename-regex")
        old, _, new = text.partition("=")
        if found.setdefault(check_group(old), check_group(new)) != new:
            raise click.BadParameter(f"group {old!r} has two new names: give it only one")
    return found
