"""The `zkgroups` command: its root, and how a run begins and ends.

Commands are named in a table and imported when they are called, so that `zkgroups --help` is there at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from .shared.exit_codes import ExitCode
from .shared.options import CommandGroup, Options, root_parameters
from .shared.signals import raise_on_sigterm

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_NAME: Final = "zkgroups"

COMPLETE_VARIABLE: Final = "_ZKGROUPS_COMPLETE"
"""By it a shell asks what the word at the cursor may become."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is, and what the list of commands says about it."""

    module: str
    attribute: str
    help: str

    def load(self) -> click.Command:
        """Import it."""
        command: click.Command = getattr(import_module(self.module, __package__), self.attribute)
        return command


COMMANDS: Final = {
    "groups": Lazy(".groups.commands", "groups", "List, describe, create, delete, copy and prune consumer groups."),
    "members": Lazy(".members", "members", "Show who is registered, and for what."),
    "claim": Lazy(".claim.claim", "claim", "Hold partitions, in the foreground or while a command runs."),
    "release": Lazy(".claim.release", "release", "Take a partition from whoever holds it."),
    "owners": Lazy(".claim.owners", "owners", "Show who holds which partition."),
    "offsets": Lazy(".offsets.commands", "offsets", "Read, set, reset, delete, compare, export and import offsets."),
    "lag": Lazy(".lag", "lag", "Show how far groups are behind the ends of the logs."),
    "watch": Lazy(".watch", "watch", "Follow what happens in a group, as it happens."),
    "doctor": Lazy(".doctor", "doctor", "Look for what is wrong, and repair what can safely be repaired."),
    "snapshot": Lazy(".snapshots.snapshot", "snapshot", "Write down every offset, owner and member, as Parquet."),
    "snapshots": Lazy(".snapshots.commands", "snapshots", "See what snapshots tell together."),
    "audit": Lazy(".snapshots.audit", "audit", "Write down every commit, as it is found, as Parquet."),
    "migrate": Lazy(
        ".migrate.commands", "migrate", "Move groups to Kafka's own offsets: plan, apply, verify, roll back."
    ),
    "context": Lazy(".context", "context", "Save options under a name, and choose among them."),
    "completion": Lazy(".completion", "completion", "Print what makes a shell complete commands and names."),
    "zookeeper": Lazy(".zookeeper", "zookeeper", "Run a ZooKeeper server in the foreground, for trying things out."),
    "demo": Lazy(".demo.demo", "demo", "Show what this is about, on a real ZooKeeper of its own."),
}


class Root(CommandGroup):
    """All commands, each imported when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Their names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        return COMMANDS[name].load() if name in COMMANDS else None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, without importing them, and options."""
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(n, help=lazy.help) for n, lazy in COMMANDS.items() if n.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.meaning) for code in ExitCode])


root = Root(
    _NAME,
    params=root_parameters(),
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Kafka's legacy consumer groups, which live in ZooKeeper: see them, and work on them without breaking them.

    The options below are accepted before and after the name of a command, and from the environment: --zookeeper
    is ZKGROUPS_ZOOKEEPER, and so on. Data goes to stdout, everything else to stderr.

    \b
    Example:
      zkgroups -z zk1:2181,zk2:2181/kafka groups list
    """,
)
click.version_option(package_name=_NAME, prog_name=_NAME, message="%(prog)s %(version)s")(root)


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        return _complete(instruction)
    raise_on_sigterm()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may have letters the terminal's encoding lacks
    try:
        return run(sys.argv[1:])
    finally:
        _let_go_of_stdout()


def _complete(instruction: str) -> int:
    """Answer a shell, which has nowhere to show an error."""
    from click.shell_completion import shell_complete

    from .shared.shell_quoting import use_safe_bash

    use_safe_bash()
    try:
        return shell_complete(root, {"obj": Options()}, _NAME, COMPLETE_VARIABLE, instruction)
    except Exception:
        return ExitCode.UNEXPECTED


def run(arguments: Sequence[str]) -> int:
    """Run a command line, with every error turned into a sentence on stderr and an exit code."""
    options = Options()
    try:
        with root.make_context(_NAME, list(arguments), obj=options) as ctx:
            root.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        return ExitCode.DONE  # who reads our data has read enough
    except BaseException as error:
        from .shared.errors import report

        return report(error, verbose=options.verbose)
    return ExitCode.DONE


def _let_go_of_stdout() -> None:
    """Python would try once more at its end to write what could not be written, and say so."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
