"""The results of the doctor's checks: problems, their severity, and the repairs that need no decision by a person.

A check yields a `Problem` for one node. `all_checks.py` turns it into a `Finding`, which `Registry.repair` can repair.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

from ..session_lifetime import session_hex
from ..znodes.values import MalformedNode, Owner
from .group_nodes import GroupNodes

# Sentences and shell commands that tell an operator how to fix a problem. Names in commands are quoted.


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


def reset_offsets(group: str, topic: str) -> str:
    """Tell how to move offsets that are outside of the logs."""
    reset = command("offsets", "reset", group, topic=topic_value(topic), to_earliest=True, execute=True)
    return f"clients start where auto.offset.reset says; to set it now: stop them, and run {reset}"


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


class Severity(StrEnum):
    """The severity of a finding, the worst first.

    error    clients fail, or partitions are read twice or not at all
    warning  something is unread, ignored or unknown
    info     no client is disturbed
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def is_at_least(self, other: Severity) -> bool:
        """Return whether this is as severe as another, or worse."""
        order = list(Severity)
        return order.index(self) <= order.index(other)


class CheckCode(StrEnum):
    """The codes of all checks. `all_checks` has their meanings: `CHECKS`, `LOG_CHECKS` and `STATUS_CHECKS`."""

    ORPHAN_OWNER = "orphan-owner"
    PERSISTENT_REGISTRATION = "persistent-registration"
    PERSISTENT_OWNER = "persistent-owner"
    UNREADABLE_OWNER = "unreadable-owner"
    TWO_OWNERS = "two-owners"
    BLOCKED_PARTITION = "blocked-partition"
    UNOWNED_PARTITION = "unowned-partition"
    SCALA_CANNOT_READ = "scala-cannot-read"
    UNREADABLE_REGISTRATION = "unreadable-registration"
    UNEVALUABLE_SUBSCRIPTION = "unevaluable-subscription"
    KAZOO_GO_CANNOT_READ = "kazoo-go-cannot-read"
    MIXED_DIALECTS = "mixed-dialects"
    MISSING_TOPIC = "missing-topic"
    UNKNOWN_PARTITION = "unknown-partition"
    UNREADABLE_TOPIC = "unreadable-topic"
    PADDED_OFFSET = "padded-offset"
    UNREADABLE_OFFSET = "unreadable-offset"
    NEGATIVE_OFFSET = "negative-offset"
    MISNAMED_OFFSET = "misnamed-offset"
    STALE_OFFSET = "stale-offset"
    SINGULAR_OFFSET = "singular-offset"
    PAST_END = "past-end"
    BEFORE_START = "before-start"
    STOPPED_PARTITION = "stopped-partition"
    ABANDONED_PARTITION = "abandoned-partition"
    NO_PERMISSION = "no-permission"
    EMPTY_GROUP = "empty-group"
    NESTED_NODE = "nested-node"
    OPEN_ACL = "open-acl"


@dataclass(frozen=True, slots=True)
class Remove:
    """A step of a repair: delete the node at `path` if it still has the `version` and has no children.

    With `persistent`, it must also belong to no session.
    """

    path: str
    version: int
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A step of a repair: write `data` to the node at `path` if it still has the `version`. It had `before`."""

    path: str
    before: bytes
    data: bytes
    version: int


RepairStep = Remove | Rewrite


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair: all of its steps are applied, or none, and only if it cannot harm a registered instance.

    - `does`: a description for people.
    - `steps`: the steps, each a `Remove` or a `Rewrite`.
    - `unless`: it is refused while any of these instances is registered; if empty, while any instance at all is.
    - `is_always_safe`: if true, registered instances do not matter, because the checks of the steps are enough.
    """

    does: str
    steps: tuple[RepairStep, ...]
    unless: tuple[str, ...] = ()
    is_always_safe: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one node, as a check found it. `severity` overrides that of the check."""

    path: str
    what: str
    fix: str
    repair: Repair | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem in a group, with advice on how to fix it.

    - `severity`: error, warning or info.
    - `group`: the name of the group.
    - `code`: the check that found it, such as "orphan-owner". `zkgroups.core.doctor.all_checks.CHECKS` explains it.
    - `path`: the path of the node, without the chroot.
    - `what`: a description of the problem.
    - `fix`: how to fix it.
    - `repair`: the repair that `Registry.repair` applies; None if a person must decide.
    - `not_repaired`: why `Registry.repair` cannot repair it, if `repair` is None.
    """

    severity: Severity
    group: str
    code: CheckCode
    path: str
    what: str
    fix: str
    repair: Repair | None = None
    not_repaired: str | None = None

    @property
    def repairable(self) -> bool:
        """True if `Registry.repair` can repair it without harm to any client."""
        return self.repair is not None


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of checking one group.

    - `group`: the name of the group.
    - `exists`: False for a missing group, which has no findings.
    - `findings`: its problems, the worst first.
    """

    group: str
    exists: bool
    findings: tuple[Finding, ...] = ()
