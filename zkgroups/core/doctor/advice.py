"""What to do about something that is wrong: sentences, and lines for the shell whose names survive it."""

from __future__ import annotations

import shlex

from ..znodes.session_ids import session_hex
from ..znodes.values import MalformedNode
from .group_nodes import GroupNodes


def cannot_be_read(kind: str, node: MalformedNode) -> str:
    """What is wrong with a node that says nothing that can be understood."""
    return f"{kind} cannot be read: {node.reason} ({node.shown})"


def end_session(session: int) -> str:
    """Whoever wrote an ephemeral node lives, and the node goes with him."""
    if not session:
        return "find out who has written it, and delete it with ZooKeeper's own shell"
    return f"stop the program that has session {session_hex(session)}; the node goes with it"


def delete_node(path: str) -> str:
    """For what no command of ours deletes."""
    return f"if nobody needs it: zkCli.sh delete {shlex.quote(path)}"


def repair_group(nodes: GroupNodes) -> str:
    """For what is repaired without a person's judgement."""
    return command("doctor", nodes.group, repair=True, execute=True)


def exactly(topic: str) -> str:
    """As `--topic` takes it: a name that ends like a list of partitions is closed by a colon."""
    return f"{topic}:" if ":" in topic else topic


def some_partitions(numbers: list[int]) -> str:
    """The partitions, not too many of them."""
    shown = ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
    return f"partition {shown}" if len(numbers) == 1 else f"partitions {shown}"


def command(*words: str, **options: str | bool) -> str:
    """A line for the shell. Names that look like options are kept from being taken for some."""
    given = ["--" + name.replace("_", "-") + ("" if value is True else f"={value}") for name, value in options.items()]
    verbs = 1 if words[0] in {"release", "doctor"} else 2
    names = ["--", *words[verbs:]] if any(word.startswith("-") for word in words) else words[verbs:]
    return shlex.join(["zkgroups", *words[:verbs], *given, *names])
