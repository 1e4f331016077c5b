"""`zkgroups completion`: what makes a shell complete commands, options and real names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from .main import COMPLETE_VARIABLE as VARIABLE
from .shared.command_classes import Command
from .shared.options import Options
from .shared.output import Output
from .shared.shell_quoting import use_safe_bash

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_obj
def completion(options: Options, shell: str | None) -> None:
    """Print what makes a shell complete commands, options, and the real names of groups, topics and partitions.

    The shell is that of $SHELL, unless one is named. Names come from the ZooKeeper of the context in use, of the
    environment, or of the line that is being typed; where it does not answer in a second, there are none. For good,
    put the line into ~/.bashrc: source <(zkgroups completion bash). zsh takes the same in ~/.zshrc, and fish
    `zkgroups completion fish | source`.

    \b
    Example:
      zkgroups completion bash
      zkgroups completion fish
    """
    use_safe_bash()
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise click.UsageError(f"name the shell: {', '.join(SHELLS)}", click.get_current_context())
    root = click.get_current_context().find_root().command
    Output(options).text(kind(root, {}, "zkgroups", VARIABLE).source())
