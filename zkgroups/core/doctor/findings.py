"""What a check of a group finds, and what may be done about it without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete one node as it was seen. It must be without children, and where `persistent` no session's."""

    path: str
    version: int
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write one node over what was seen in it."""

    path: str
    before: bytes
    data: bytes
    version: int


Step = Remove | Rewrite


@dataclass(frozen=True, slots=True)
class Repair:
    """What would put it right, all of it or nothing, and only while nobody is registered who would be hurt.

    `unless` has the ids that must not be registered; if it is empty, no instance may be registered. With
    `hurts_nobody`, the registered instances do not matter: the steps themselves prove that they are safe.
    """

    does: str
    steps: tuple[Step, ...]
    unless: tuple[str, ...] = ()
    hurts_nobody: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: how bad, where, what it means, what to do; the code is one of `health.CHECKS`."""

    severity: Severity
    group: str
    code: str
    path: str
    what: str
    fix: str
    repair: Repair | None = None
    not_repaired: str | None = None
    """Why it is left to a person, where there is no `repair`."""

    @property
    def repairable(self) -> bool:
        """Whether it can be repaired without harm to anybody."""
        return self.repair is not None


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings in one group, the worst first; a group that is not there has none."""

    group: str
    exists: bool
    findings: tuple[Finding, ...] = ()
