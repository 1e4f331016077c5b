"""`zkgroups completion`: shell code that completes commands, options and names."""

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
    """Print shell code that completes commands, options, and the names of groups, topics, partitions and instances.

    The default shell is $SHELL. Names come from ZooKeeper. Its address is taken from the line being typed, the
    environment or the context in use. If ZooKeeper does not answer within a second, no names are offered.

    To install it, add this line to ~/.bashrc: source <(zkgroups completion bash). For zsh, add the same line with zsh
    to ~/.zshrc. For fish, add to config.fish: zkgroups completion fish | source

    \b
    Example:
      zkgroups completion bash
      zkgroups completion fish
    """
    use_safe_bash()
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise click.UsageError(f"the shell is unknown; name one of {', '.join(SHELLS)}", click.get_current_context())
    root = click.get_current_context().find_root().command
    Output(options).text(kind(root, {}, "zkgroups", VARIABLE).source())
