"""What the operator says of a whole migration: which offsets are written how, and what groups are called afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from zkgroups.core.migration.rules import OutOfRange, Renaming, Rule
from zkgroups.core.znodes.names import check_group

from ..shared.durations import duration_option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


out_of_range_option = click.option(
    "--on-out-of-range",
    type=click.Choice([each.value for each in OutOfRange]),
    default=OutOfRange.REFUSE.value,
    show_default=True,
    help="What to do with an offset that the log does not have; brokers take any.",
)
"""As `on_out_of_range`."""


def rule_options(command: Decorated) -> Decorated:
    """How offsets are decided on; see `rule_of`."""
    backward = click.option(
        "--backward", is_flag=True, help="Write an offset also where the target is further already."
    )
    return out_of_range_option(backward(command))


def rule_is_said() -> bool:
    """Whether the command line, or what stands for it, has any option of `rule_options`."""
    context = click.get_current_context()
    sources = {context.get_parameter_source(name) for name in ("on_out_of_range", "backward")}
    return sources != {ParameterSource.DEFAULT}


def rule_of(given: dict[str, Any], *, skip_stale: bool = False) -> Rule:
    """Takes what `rule_options` has brought out of the options of a command."""
    return Rule(OutOfRange(given.pop("on_out_of_range")), given.pop("backward"), skip_stale)


def stale_options(command: Decorated) -> Decorated:
    """Offsets that nobody has written for long, as `stale_after` and `skip_stale`."""
    after = duration_option("--stale-after", "stale_after", help="Mark offsets that were not written for")
    skip = click.option("--skip-stale", is_flag=True, help="Leave those out that --stale-after marks.")
    return after(skip(command))


def check_stale(stale_after: float | None, *, skip_stale: bool) -> None:
    """What is to be skipped must be known."""
    if skip_stale and stale_after is None:
        raise click.UsageError("--skip-stale needs --stale-after DURATION", click.get_current_context())


def rename_options(command: Decorated) -> Decorated:
    """New names for groups; see `renaming_of`."""
    names = click.option(
        "--rename",
        "names",
        metavar="OLD=NEW",
        multiple=True,
        callback=_names,
        help="What a group is to be called on the brokers; may be given several times.",
    )
    expression = click.option(
        "--rename-regex",
        "expression",
        nargs=2,
        metavar="REGEX NEW",
        help=r"The same for groups whose whole name matches; \1 in NEW is what the first parentheses match.",
    )
    return names(expression(command))


def renaming_of(given: dict[str, Any]) -> Renaming:
    """Takes what `rename_options` has brought out of the options of a command."""
    return Renaming(given.pop("names"), *(given.pop("expression") or ()))


def _names(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        if text.count("=") != 1:
            raise click.BadParameter(f"{text!r} is not like OLD=NEW; where a name has a =, take --rename-regex")
        old, _, new = text.partition("=")
        if found.setdefault(check_group(old), check_group(new)) != new:
            raise click.BadParameter(f"{old!r} is to have two names")
    return found
