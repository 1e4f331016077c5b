"""The results of the doctor's checks: problems, their severity, and the repairs that need no decision by a person.

A check yields a `Problem` for one node. `all_checks.py` turns it into a `Finding`, which `Registry.repair` can repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a finding, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class CheckCode(StrEnum):
    """The codes of all checks. `all_checks.CHECKS` has their meanings."""

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
    NO_PERMISSION = "no-permission"
    EMPTY_GROUP = "empty-group"
    NESTED_NODE = "nested-node"
    OPEN_ACL = "open-acl"


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a node if it is unchanged and has no children. With `persistent`, it must also belong to no session."""

    path: str
    version: int
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replace the data of a node if it is unchanged."""

    path: str
    before: bytes
    data: bytes
    version: int


RepairStep = Remove | Rewrite


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair: all of its steps are applied, or none, and only if it cannot harm a registered instance.

    It is refused while any of the instances in `unless` is registered; if `unless` is empty, while any instance at all
    is. With `is_always_safe`, registered instances do not matter: what the steps check is enough.
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
    """One problem in a group, with advice on how to fix it. `code` identifies the check that found it."""

    severity: Severity
    group: str
    code: CheckCode
    path: str
    what: str
    fix: str
    repair: Repair | None = None
    not_repaired: str | None = None
    """Why `Registry.repair` cannot repair it, if `repair` is None."""

    @property
    def repairable(self) -> bool:
        """True if `Registry.repair` can repair it without harm to any client."""
        return self.repair is not None


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings in one group, the worst first. A missing group has none."""

    group: str
    exists: bool
    findings: tuple[Finding, ...] = ()
