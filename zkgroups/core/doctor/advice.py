"""Sentences and shell commands that tell an operator how to fix a problem. Names in commands are quoted."""

from __future__ import annotations

import shlex

from ..znodes.session_ids import session_hex
from ..znodes.values import MalformedNode, Owner
from .group_nodes import GroupNodes


def cannot_be_read(kind: str, node: MalformedNode) -> str:
    """Describe a malformed node."""
    return f"{kind} cannot be read: {node.reason} ({node.shown})"


def end_session(session: int) -> str:
    """Say how to remove an ephemeral node: stop the client whose session it belongs to."""
    if not session:
        return "find the client that created it, and delete it with ZooKeeper's own shell"
    return f"stop the client with session {session_hex(session)}; its nodes are then deleted"


def delete_node(path: str) -> str:
    """Tell how to delete a node for which zkgroups has no command."""
    return f"if it is not needed: zkCli.sh delete {shlex.quote(path)}"


def repair_group(nodes: GroupNodes) -> str:
    """Return the command that repairs the group."""
    return command("doctor", nodes.group, repair=True, execute=True)


def release(nodes: GroupNodes, owner: Owner) -> str:
    """Return the command that releases the claim of an owner, and of no other."""
    at, session = owner.at, session_hex(owner.session)
    return command("release", nodes.group, at.topic, str(at.partition), expect_owner=owner.id, expect_session=session)


def topic_value(topic: str) -> str:
    """Return the value of `--topic` for a whole topic. A colon keeps a name such as `a:1` from naming partitions."""
    return f"{topic}:" if ":" in topic else topic


def some_partitions(numbers: list[int]) -> str:
    """List at most ten partition numbers."""
    shown = ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
    return f"partition {shown}" if len(numbers) == 1 else f"partitions {shown}"


def command(*words: str, **options: str | bool) -> str:
    """Return a zkgroups command line. Arguments that look like options are put after `--`."""
    given = ["--" + name.replace("_", "-") + ("" if value is True else f"={value}") for name, value in options.items()]
    verbs = 1 if words[0] in {"release", "doctor"} else 2
    names = ["--", *words[verbs:]] if any(word.startswith("-") for word in words) else words[verbs:]
    return shlex.join(["zkgroups", *words[:verbs], *given, *names])
