"""`--layout`, `--stored` and `--value`: where the offsets are, and how they are stored. Commands get one `layout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.layouts.stored_number import Stored

from .complete_names import complete_layouts

if TYPE_CHECKING:
    from zkgroups.core.layouts.layout import Layout

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_STORED: Final = "zkgroups.layout.stored"
_VALUE: Final = "zkgroups.layout.value"


def layout_options(command: Decorated) -> Decorated:
    """Add the three options, which pass a `Layout` as `layout`; `LEGACY` by default."""
    layout = click.option(
        "--layout",
        metavar="LAYOUT",
        callback=_layout,
        shell_complete=complete_layouts,
        help="Read offsets that another system keeps: kafka-1.1.0, storm:/PATH, trident:/PATH, spark:/PATH, or a path "
        "such as '/x/{group}/{topic}/{partition}'. `zkgroups layouts detect` finds them.",
    )
    stored = _part_option(
        "--stored",
        _STORED,
        type=click.Choice([each.value for each in Stored]),
        help="With a path: the number is the next message to read (next, the default) or the last processed one "
        "(last). With spark: from or until.",
    )
    value = _part_option(
        "--value",
        _VALUE,
        metavar="FORMAT",
        help="With a path: where the number is in the node: decimal (the default), json:FIELD or regex:EXPRESSION.",
    )
    return layout(stored(value(command)))


def _part_option(name: str, key: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Return an option whose value the callback of `--layout` uses, which runs later."""

    def keep(ctx: click.Context, _param: click.Parameter, text: str | None) -> None:
        ctx.meta[key] = text

    return click.option(name, is_eager=True, expose_value=False, callback=keep, **attributes)


def _layout(ctx: click.Context, _param: click.Parameter, text: str | None) -> Layout:
    stored, value = ctx.meta.get(_STORED), ctx.meta.get(_VALUE)
    if text is None:
        if stored is not None or value is not None:
            raise click.UsageError("--stored and --value need --layout", ctx)
        return LEGACY
    from zkgroups.core.layouts.parse_layout import parse_layout

    words = [text] if stored is None else [text, f"--stored {stored}"]
    return parse_layout(" ".join(words if value is None else [*words, f"--value {value}"]))
