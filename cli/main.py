"""The root of the `zkgroups` command, and its entry point.

Commands are imported when they are called, so that `zkgroups --help` is fast.
"""

from __future__ import annotations

import gc
import io
import os
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from .shared.global_options import CommandGroup, root_parameters
from .shared.options import ExitCode, Options
from .shared.signals import end_at_next_signal, end_quietly_at_ctrl_c, raise_on_sigterm

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# The umask of the command: no file that it writes can be changed by all users of the machine.
#
# Plans, reports, snapshots and audits follow the umask of the user otherwise, because colleagues and Spark's workers
# may have to read them.


_users = -1


def protect_new_files() -> None:
    """Let no new file be writable by all users. Spark inherits this."""
    global _users
    _users = os.umask(stat.S_IWOTH)
    os.umask(_users | stat.S_IWOTH)


def users_umask() -> int:
    """Return the umask with which the user has started the command, or -1 if it was not changed."""
    return _users


_NAME: Final = "zkgroups"

COMPLETE_VARIABLE: Final = "_ZKGROUPS_COMPLETE"
"""The environment variable that a shell sets to ask for completions."""


COMMANDS: Final = {
    "groups": (".groups.commands:groups", "List, describe, explain, create, delete, copy and prune consumer groups."),
    "members": (
        ".members:members",
        "List registered instances and their subscriptions; evict stuck ones.",
    ),
    "claim": (".claim.claim:claim", "Hold partitions, in the foreground or while a command runs."),
    "consume": (".consume.consume:consume", "Write the messages of a group to stdout, or to a command."),
    "release": (".claim.owners:release", "Take partitions away from their owner."),
    "owners": (".claim.owners:owners", "List the owners of partitions."),
    "offsets": (".offsets.commands:offsets", "Read, set, reset, delete, compare, export and import offsets."),
    "layouts": (".layouts:layouts", "Find offsets that other systems keep in ZooKeeper."),
    "lag": (".lag:lag", "Show how far groups are behind the log ends."),
    "status": (".serve.status:status", "Show which groups are in trouble, why, and what to do."),
    "watch": (".watch:watch", "Print the changes in groups as they happen."),
    "doctor": (".doctor:doctor", "Check groups for problems, and repair them where that is safe."),
    "snapshot": (".snapshots.snapshot:snapshot", "Save all offsets, owners and members as Parquet."),
    "snapshots": (".snapshots.snapshots:snapshots", "List, compare, verify and plot snapshots."),
    "audit": (".snapshots.audit:audit", "Record every commit as Parquet."),
    "history": (".history:history", "Show every change to groups, from the logs of a ZooKeeper server."),
    "migrate": (".migrate.commands:migrate", "Move groups to Kafka's own offsets: plan, apply, verify, roll back."),
    "gateway": (".gateway:gateway", "Answer Kafka's clients in front of the brokers, and keep their groups."),
    "serve": (".serve.serve:serve", "Serve metrics for Prometheus, an API, and a live page of all groups."),
    "spark-package": (".spark_package:spark_package", "Write a file with zkgroups for Spark workers that lack it."),
    "context": (".context:context", "Save options under a name, and switch between them."),
    "completion": (".completion:completion", "Print the shell code that completes commands and names."),
    "zookeeper": (".zookeeper:zookeeper", "Run a ZooKeeper server in the foreground, for experiments."),
    "demo": (".demo:demo", "Run a guided tour on a temporary ZooKeeper server."),
}
"""The module and the one-line help of each command. The help of the root command imports none of them."""


class Root(CommandGroup):
    """The command `zkgroups`: it lists its commands, and imports each only when it is used."""

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, without importing them, and options."""
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(n, help=help) for n, (_, help) in COMMANDS.items() if n.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), code.meaning) for code in ExitCode])


root = Root(
    _NAME,
    lazy={name: f"{__package__}{attribute}" for name, (attribute, _) in COMMANDS.items()},
    params=root_parameters(),
    help="""Inspect and change Kafka's legacy consumer groups, which are stored in ZooKeeper.

    The options below may stand before or after the name of a command. Each can also be set in the environment:
    --zookeeper as ZKGROUPS_ZOOKEEPER, and so on. Data goes to stdout, messages go to stderr.

    A DURATION is like 90s, 30m, 2h, 7d, PT1H, or a number of seconds. A TIME is like 2026-01-31T12:00 (UTC),
    2026-01-31T12:00+01:00, today, yesterday, or a DURATION ago. A TOPIC may name partitions: orders:0,1, orders:0-3,
    orders/3. PARTITION... is like 0 1, 0,1 or 0-3.

    \b
    Example:
      zkgroups -z zk1:2181,zk2:2181/kafka groups list
    """,
)
click.version_option(package_name=_NAME, prog_name=_NAME, message="%(prog)s %(version)s")(root)


def main() -> int:
    """Run the command line of this process. Return the exit code."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        return _complete(instruction)
    raise_on_sigterm()
    protect_new_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack letters of a name
    try:
        return run(sys.argv[1:])
    finally:
        end_quietly_at_ctrl_c()
        _flush_stdout()
        gc.freeze()  # Python would search all objects for garbage several times before it ends, which takes 10 ms


def _complete(instruction: str) -> int:
    """Answer a shell. Errors are not reported, because a shell cannot show them."""
    from click.shell_completion import shell_complete

    from .completion import use_safe_bash

    use_safe_bash()
    try:
        return shell_complete(root, {"obj": Options()}, _NAME, COMPLETE_VARIABLE, instruction)
    except Exception:
        return ExitCode.UNEXPECTED


def run(arguments: Sequence[str]) -> int:
    """Run a command line. Report errors on stderr, and return the exit code."""
    options = Options()
    try:
        with root.make_context(_NAME, list(arguments), obj=options) as ctx:
            root.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        return ExitCode.DONE  # the reader of our output needs no more
    except BaseException as error:
        end_quietly_at_ctrl_c()
        from .shared.errors import report
        from .shared.messages import stderr_is_writable

        if not stderr_is_writable():
            end_at_next_signal()
        return report(error, verbose=options.verbose)
    return ExitCode.DONE


def _flush_stdout() -> None:
    """Flush stdout. On an error redirect it to /dev/null, or Python would fail again at exit and print that."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
