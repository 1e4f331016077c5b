"""The tables of all checks: code, severity, meaning, and the reason why a finding may not be repaired.

`run_checks` runs the checks of the znodes of one group, and `run_log_checks` those that need the brokers. The check
functions are in the modules `*_checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ..offsets.lag import GroupLag
from . import member_checks, offset_checks
from .findings import CheckCode, Finding, Problem, Severity
from .group_nodes import GroupNodes
from .offset_checks import GroupVerdicts

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class DoctorCheck(Generic[Subject]):
    """One check. With `is_transient`, a finding may only show that the group changed while its nodes were read."""

    code: CheckCode
    severity: Severity
    meaning: str
    not_repaired: str
    find: Callable[[Subject], Iterable[Problem]]
    is_transient: bool = False


def run_checks(nodes: GroupNodes) -> list[Finding]:
    """Return all findings in a group: the worst first, then in the order of the table, then by path."""
    return _run(CHECKS, nodes.group, nodes)


def run_log_checks(lag: GroupLag) -> list[Finding]:
    """Return all findings about the offsets of a group and the logs of the brokers, in the same order."""
    return _run(LOG_CHECKS, lag.group, lag)


def run_status_checks(found: GroupVerdicts) -> list[Finding]:
    """Return the findings that follow from the statuses of partitions, in the same order."""
    return _run(STATUS_CHECKS, found.group, found)


def _run(checks: Iterable[DoctorCheck[Subject]], group: str, subject: Subject) -> list[Finding]:
    found = [(check, each) for check in checks for each in sorted(check.find(subject), key=lambda each: each.path)]
    return worst_first(_finding(group, check, problem) for check, problem in found)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity. Findings of one severity keep their order."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _finding(group: str, check: DoctorCheck[Subject], problem: Problem) -> Finding:
    return Finding(
        severity=problem.severity or check.severity,
        group=group,
        code=check.code,
        path=problem.path,
        what=problem.what,
        fix=problem.fix,
        repair=problem.repair,
        not_repaired=None if problem.repair else check.not_repaired,
    )


_LIVE_SESSION: Final = "it belongs to a live session"
_NEEDS_DECISION: Final = "only a person can decide what the node should contain"
_TOPIC_MAY_RETURN: Final = "the topic may be created again"
_LIVE_OR_PERSISTENT: Final = "it belongs to a live session, or is repaired as a persistent-registration"

CHECKS: Final[tuple[DoctorCheck[GroupNodes], ...]] = (
    DoctorCheck(
        CheckCode.ORPHAN_OWNER,
        Severity.ERROR,
        "a partition is held by a client that is not registered, so no member can claim it",
        f"{_LIVE_SESSION}, which may still be reading",
        member_checks.orphan_owners,
        is_transient=True,
    ),
    DoctorCheck(
        CheckCode.PERSISTENT_REGISTRATION,
        Severity.ERROR,
        "a registration belongs to no session, so it never expires",
        "the same client may have an owner node, or the node has children or is forbidden",
        member_checks.persistent_registrations,
    ),
    DoctorCheck(
        CheckCode.PERSISTENT_OWNER,
        Severity.ERROR,
        "an owner node belongs to no session, so it never expires",
        "it names a registered instance or none, or is not the node of a partition",
        member_checks.persistent_owners,
    ),
    DoctorCheck(
        CheckCode.UNREADABLE_OWNER,
        Severity.WARNING,
        "an owner node cannot be read",
        _LIVE_SESSION,
        member_checks.unreadable_owners,
    ),
    DoctorCheck(
        CheckCode.TWO_OWNERS,
        Severity.ERROR,
        "a partition has two owners, whose kinds of clients do not see each other's claims",
        "both belong to live sessions",
        member_checks.two_owners,
        is_transient=True,
    ),
    DoctorCheck(
        CheckCode.BLOCKED_PARTITION,
        Severity.WARNING,
        "a partition is held by an instance that does not subscribe to its topic, so no subscriber can claim it",
        f"{_LIVE_SESSION}, which may hold the partition on purpose",
        member_checks.blocked_partitions,
        is_transient=True,
    ),
    DoctorCheck(
        CheckCode.UNOWNED_PARTITION,
        Severity.WARNING,
        "no instance owns some partitions of a subscribed topic",
        "only members can claim partitions",
        member_checks.unowned_partitions,
        is_transient=True,
    ),
    DoctorCheck(
        CheckCode.SCALA_CANNOT_READ,
        Severity.ERROR,
        "a registration stops every Scala member of the group; a warning if no Scala member is known",
        _LIVE_OR_PERSISTENT,
        member_checks.registrations_scala_cannot_read,
    ),
    DoctorCheck(
        CheckCode.UNREADABLE_REGISTRATION,
        Severity.WARNING,
        "a registration is malformed, so the subscription is unknown",
        _LIVE_OR_PERSISTENT,
        member_checks.unreadable_registrations,
    ),
    DoctorCheck(
        CheckCode.UNEVALUABLE_SUBSCRIPTION,
        Severity.WARNING,
        "only Java can evaluate the expression of an instance, so its topics are unknown",
        _LIVE_SESSION,
        member_checks.unevaluable_subscriptions,
    ),
    DoctorCheck(
        CheckCode.KAZOO_GO_CANNOT_READ,
        Severity.ERROR,
        "the kazoo-go members of the group cannot read a registration",
        _LIVE_SESSION,
        member_checks.registrations_kazoo_go_cannot_read,
    ),
    DoctorCheck(
        CheckCode.MIXED_DIALECTS,
        Severity.WARNING,
        "the group has clients of several kinds; an error if one is pykafka, which ignores the claims of others",
        "only a person can decide which of them to keep",
        member_checks.mixed_dialects,
    ),
    DoctorCheck(
        CheckCode.MISSING_TOPIC,
        Severity.WARNING,
        "subscriptions, owners or offsets of a topic that Kafka does not have; only info for an empty directory",
        _TOPIC_MAY_RETURN,
        offset_checks.missing_topics,
    ),
    DoctorCheck(
        CheckCode.UNKNOWN_PARTITION,
        Severity.WARNING,
        "an owner or an offset of a partition that the topic does not have",
        _TOPIC_MAY_RETURN,
        offset_checks.unknown_partitions,
    ),
    DoctorCheck(
        CheckCode.UNREADABLE_TOPIC,
        Severity.WARNING,
        "Kafka's node of a topic cannot be read",
        "the node belongs to Kafka",
        offset_checks.unreadable_topics,
    ),
    DoctorCheck(
        CheckCode.PADDED_OFFSET,
        Severity.ERROR,
        "an offset has whitespace around the number, which stops Scala members at their start",
        "the group has instances or owners, which may have read the offset",
        offset_checks.padded_offsets,
    ),
    DoctorCheck(
        CheckCode.UNREADABLE_OFFSET,
        Severity.ERROR,
        "an offset is not a valid number, which stops Scala members at their start",
        _NEEDS_DECISION,
        offset_checks.unreadable_offsets,
    ),
    DoctorCheck(
        CheckCode.NEGATIVE_OFFSET,
        Severity.WARNING,
        "an offset is negative, so Scala members start at the log start or the log end",
        _NEEDS_DECISION,
        offset_checks.negative_offsets,
    ),
    DoctorCheck(
        CheckCode.MISNAMED_OFFSET,
        Severity.WARNING,
        "the name of a node among the offsets is not a partition number",
        _NEEDS_DECISION,
        offset_checks.misnamed_offsets,
    ),
    DoctorCheck(
        CheckCode.STALE_OFFSET,
        Severity.INFO,
        "no offset of a topic was committed for a long time",
        "a consumer may still resume from the offsets",
        offset_checks.stale_offsets,
    ),
    DoctorCheck(
        CheckCode.SINGULAR_OFFSET,
        Severity.WARNING,
        "a broker of Kafka 1.1.0 has committed offsets to the directory offset, which no other release reads; info if "
        "they are not newer",
        "only a person knows whether such a broker still runs",
        offset_checks.singular_offsets,
    ),
    DoctorCheck(
        CheckCode.NO_PERMISSION,
        Severity.WARNING,
        "a node is forbidden, so it was not checked",
        "the client has no permission",
        member_checks.forbidden_nodes,
    ),
    DoctorCheck(
        CheckCode.EMPTY_GROUP,
        Severity.INFO,
        "a group consists of empty directories",
        "the group has other nodes, or data in a directory",
        member_checks.empty_groups,
    ),
    DoctorCheck(
        CheckCode.NESTED_NODE,
        Severity.WARNING,
        "a registration, owner or offset has child nodes, which no client reads",
        _NEEDS_DECISION,
        member_checks.nested_nodes,
    ),
    DoctorCheck(
        CheckCode.OPEN_ACL,
        Severity.INFO,
        "every client that can connect may change the group",
        "members without credentials would be locked out",
        member_checks.open_directories,
    ),
)
"""All checks, in the order in which findings are shown and repaired: a registration comes before its owner nodes."""

LOG_CHECKS: Final[tuple[DoctorCheck[GroupLag], ...]] = (
    DoctorCheck(
        CheckCode.PAST_END,
        Severity.ERROR,
        "an offset is past the log end, e.g. because the topic was recreated",
        _NEEDS_DECISION,
        offset_checks.past_end_offsets,
    ),
    DoctorCheck(
        CheckCode.BEFORE_START,
        Severity.WARNING,
        "an offset is before the log start, so messages were deleted that the group has not read",
        _NEEDS_DECISION,
        offset_checks.before_start_offsets,
    ),
)
"""The checks that need the brokers."""

STATUS_CHECKS: Final[tuple[DoctorCheck[GroupVerdicts], ...]] = (
    DoctorCheck(
        CheckCode.STOPPED_PARTITION,
        Severity.ERROR,
        "messages wait, and nothing was committed for a long time",
        "only its consumers can read the messages",
        offset_checks.stopped_partitions,
    ),
    DoctorCheck(
        CheckCode.ABANDONED_PARTITION,
        Severity.WARNING,
        "messages wait, but the group has no member, and has not committed for a day",
        "a consumer may still resume from the offsets",
        offset_checks.abandoned_partitions,
    ),
)
"""The checks of the statuses that `zkgroups status` shows, and that no other check finds. They need the brokers."""
