"""`zkgroups completion`: shell code that completes commands, options and names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from .main import COMPLETE_VARIABLE as VARIABLE
from .shared.global_options import Command
from .shared.options import Options
from .shared.output import Output
from .shared.parameter_types import usage_error

_SPECIAL: Final = re.compile(r"(?![\w@%+,./-])[ -~]", re.ASCII)
"""The ASCII characters that may mean something to bash. Other characters never do.

At `:` and `=` bash begins another word to complete, unless they have a backslash. Ids of instances have colons.
"""


def escaped(name: str) -> str:
    r"""The name as a word of a shell that means itself.

    >>> print(escaped("a b"), escaped("$(id)"), escaped("caf\u00e9"))
    a\ b \$\(id\) café
    """
    return _SPECIAL.sub(r"\\\g<0>", name)


class SafeBash(BashComplete):
    """click's completion for bash, with escapes. `read -r` keeps them, and quotes keep bash from expanding `*`."""

    source_template = BashComplete.source_template.replace("read type value", "read -r type value").replace(
        "COMPREPLY+=($value)", 'COMPREPLY+=("$value")'
    )

    def format_completion(self, item: CompletionItem) -> str:
        """One line of the answer."""
        return f"{item.type},{escaped(item.value)}"


def use_safe_bash() -> None:
    """Replace click's class."""
    add_completion_class(SafeBash, "bash")


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
        raise usage_error(f"the shell is unknown; name one of {', '.join(SHELLS)}")
    root = click.get_current_context().find_root().command
    Output(options).text(kind(root, {}, "zkgroups", VARIABLE).source())
