"""The classes of commands and command groups, which accept the global options and import their commands on demand."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from .exit_codes import ExitCode
from .global_options import apply_context, command_parameters
from .messages import set_up_logging
from .options import Options
from .signals import raise_on_ctrl_c


class _WithHelp(click.Command):
    def get_help_option_names(self, _ctx: click.Context) -> list[str]:
        """Return both names, also in a context without settings: click keeps the option that it has made first."""
        return ["-h", "--help"]


class _WithGlobalOptions(_WithHelp):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += command_parameters()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. When a shell completes the value of an option, parse only the words before it."""
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            args = args[:-1]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and refer to the global ones."""
        super().format_options(ctx, formatter)
        with formatter.section("Global options, here or before the command"):
            formatter.write_text("-z HOSTS/CHROOT, -o FORMAT, --timeout DURATION, and all others of zkgroups --help")


class Command(_WithGlobalOptions):
    """A command that takes the global options."""

    uses_context = True

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the options of the saved context."""
        raise_on_ctrl_c()
        options = ctx.ensure_object(Options)
        if self.uses_context:
            apply_context(options)
        set_up_logging(options)
        return super().invoke(ctx)


class CommandGroup(_WithHelp, click.Group):
    """A group of commands. `lazy` maps the names of commands to `module:attribute`, imported on demand.

    Without a command on the command line it prints its help. (The way click does this differs between versions.)
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the table."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, importing it if necessary."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. The error for an unknown name suggests a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if similar := get_close_matches(args[0], self.list_commands(ctx), n=1):
                message = f"No such command {args[0]!r}. Did you mean {similar[0]!r}?"
                raise click.UsageError(message, ctx) from error
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, or print the help."""
        if args or ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        click.echo(ctx.get_help(), err=True)
        raise click.exceptions.Exit(ExitCode.USAGE)


class Group(_WithGlobalOptions, CommandGroup):
    """A group of commands that accepts the global options, as its commands do."""

    command_class = Command
