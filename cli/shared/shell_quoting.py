"""Completion in bash, for names that mean something to the shell.

A group may be called `a b` or `$(reboot)`. zsh and fish quote the names that they insert. bash does not, so a name must
come with its escapes. Otherwise it becomes two words, or a command that runs at the next Enter.
"""

from __future__ import annotations

import re
from typing import Final

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

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
