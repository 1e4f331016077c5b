"""The command line of another program after `--`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final

import click

from zkgroups.zookeeper.connection_options import SECRET_VARIABLES

from ..shared.command_classes import Command

_COMMAND: Final = "zkgroups.command"


class WithCommand(Command):
    """A command that accepts the command line of another program after `--`: see `command_of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the command after `--`. A leading `--` only introduces names that begin with a dash."""
        if "--" in args[1:]:
            end = args.index("--", 1)
            args, command = args[:end], args[end + 1 :]
            if not command:
                raise click.UsageError("the command after -- is missing", ctx)
            ctx.meta[_COMMAND] = _known(command)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the command."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def command_of(ctx: click.Context) -> list[str] | None:
    """Return the command after `--`; None without one."""
    return ctx.meta.get(_COMMAND)


def _known(command: list[str]) -> list[str]:
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"command {command[0]!r} was not found in PATH", click.get_current_context(silent=True))
    return command


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program, without zkgroups' own passwords: it may be untrusted."""
    return {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES} | dict(more)
