"""`zkgroups migrate export`: write a plan as files for kafka-consumer-groups.sh."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from ..shared.command_classes import Command
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Table
from ..shared.spark_options import spark_options
from .both_sides import plan_argument
from .engines import engine_option, stored_plan

_EXPORTS: Final = Table(
    "exports",
    key="script",
    columns=(
        Column("GROUPS", "groups", right=True),
        Column("BLOCKED", "blocked", right=True),
        Column("OFFSETS", "offsets", right=True),
        Column("SCRIPT", "script"),
    ),
)


@click.command(cls=Command)
@plan_argument
@click.argument("folder", metavar="DIR", type=FilePath(file_okay=False, path_type=Path))
@engine_option
@spark_options
@click.pass_obj
def export(options: Options, /, destination: str, folder: Path, **given: Any) -> None:
    """Write a plan as files for kafka-consumer-groups.sh, to write the offsets with that tool.

    DIR is a new folder on this machine. It gets a file for each group with offsets to write (lines
    topic,partition,offset), and the script reset-offsets.sh, which calls the tool for each file. Without --execute,
    the script only shows what it would do. The script does not check whether members are registered in ZooKeeper.
    Blocked groups have no file; the exit code is then 4.

    \b
    Example:
      zkgroups migrate export /data/plan files
    """
    with stored_plan(options, destination, given) as engine:
        from zkgroups.migration.export import export
        from zkgroups.migration.summaries import plan_rows

        written = export(plan_rows(engine, destination), folder)
    row = {
        "groups": written.groups,
        "blocked": len(written.blocked),
        "offsets": written.offsets,
        "script": str(written.script),
    }
    Output(options).write(_EXPORTS, [row])
    if written.blocked:
        say(
            options,
            f"Blocked groups without a file: {len(written.blocked)}. Reasons: zkgroups migrate show {destination}",
        )
        raise click.exceptions.Exit(ExitCode.REFUSED)
