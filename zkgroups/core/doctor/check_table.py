"""The table of everything that is checked in a group: what it is called, how bad it is, and what it means.

`examine` runs all checks on a group; they are in `checks.py`, a function each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from . import checks
from .checks import Hit
from .findings import Finding, Severity
from .group_nodes import GroupNodes


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what its findings are called, how bad they are, what they mean, and why they are not repaired.

    What `passes` may be no more than a moment's sight, between the reading of one node and of another.
    """

    code: str
    severity: Severity
    meaning: str
    not_repaired: str
    find: Callable[[GroupNodes], Iterable[Hit]]
    passes: bool = False


def examine(nodes: GroupNodes) -> list[Finding]:
    """Everything that is wrong in a group: the worst first, in the order of the table, by path."""
    found = [(check, hit) for check in CHECKS for hit in sorted(check.find(nodes), key=lambda hit: hit.path)]
    findings = [_finding(nodes.group, check, hit) for check, hit in found]
    worst_first = list(Severity)
    return sorted(findings, key=lambda finding: worst_first.index(finding.severity))


def _finding(group: str, check: Check, hit: Hit) -> Finding:
    return Finding(
        severity=hit.severity or check.severity,
        group=group,
        code=check.code,
        path=hit.path,
        what=hit.what,
        fix=hit.fix,
        repair=hit.repair,
        not_repaired=None if hit.repair else check.not_repaired,
    )


_LIVING: Final = "it belongs to a session that lives"
_PEOPLE: Final = "only people can tell what should be there"
_KAFKA: Final = "the topic may be one that comes back"

HIDDEN: Final = "no-permission"
"""The code of what may not be read."""

CHECKS: Final = (
    Check(
        "orphan-owner",
        Severity.ERROR,
        "a partition is held by somebody who is not registered, so that no member gets it",
        f"{_LIVING}, which may still be reading",
        checks.orphan_owners,
        passes=True,
    ),
    Check(
        "persistent-registration",
        Severity.ERROR,
        "an instance is registered by a node that never goes away by itself",
        "an owner node may be of the same client, there are nodes below it, or we may not read it",
        checks.persistent_registrations,
    ),
    Check(
        "persistent-owner",
        Severity.ERROR,
        "a partition is held by a node that never goes away by itself",
        "it names somebody who is registered, or nobody, or may not be a partition",
        checks.persistent_owners,
    ),
    Check(
        "unreadable-owner",
        Severity.WARNING,
        "the owner of a partition cannot be read",
        _LIVING,
        checks.unreadable_owners,
    ),
    Check(
        "two-owners",
        Severity.ERROR,
        "a partition is held twice, in two forms that do not exclude each other",
        "both belong to sessions that live",
        checks.two_owners,
        passes=True,
    ),
    Check(
        "blocked-partition",
        Severity.WARNING,
        "a partition is held by somebody who does not subscribe to its topic, so that nobody who does gets it",
        f"{_LIVING}, which may well be meant to hold it",
        checks.blocked_partitions,
        passes=True,
    ),
    Check(
        "unowned-partition",
        Severity.WARNING,
        "a topic is subscribed to, and nobody reads some of its partitions",
        "it is for the members to claim them",
        checks.unowned_partitions,
        passes=True,
    ),
    Check(
        "poison-registration",
        Severity.ERROR,
        "a registration stops every Scala member of the group; a warning where no other is known to be one",
        "it belongs to somebody alive, or is repaired as a persistent-registration",
        checks.poisonous_registrations,
    ),
    Check(
        "unreadable-registration",
        Severity.WARNING,
        "what an instance subscribes to cannot be read by us",
        "it belongs to somebody alive, or is repaired as a persistent-registration",
        checks.unreadable_registrations,
    ),
    Check(
        "unevaluable-subscription",
        Severity.WARNING,
        "the topics that an instance subscribes to are not known: only Java can evaluate its expression",
        "it belongs to somebody alive",
        checks.unevaluable_subscriptions,
    ),
    Check(
        "kazoo-go-cannot-read",
        Severity.ERROR,
        "a registration that kazoo-go members of the same group fail to read",
        "it belongs to somebody alive",
        checks.dialects_kazoo_go_cannot_read,
    ),
    Check(
        "mixed-dialects",
        Severity.WARNING,
        "clients of several kinds in one group; an error where pykafka is one, as it sees no other's claims",
        "only people can say which are to stay",
        checks.mixed_dialects,
    ),
    Check(
        "gone-topic",
        Severity.WARNING,
        "subscriptions, owners or offsets of a topic that Kafka does not have; an empty directory is mere litter",
        _KAFKA,
        checks.gone_topics,
    ),
    Check(
        "unknown-partition",
        Severity.WARNING,
        "an owner or an offset of a partition that the topic does not have",
        _KAFKA,
        checks.partitions_past_the_end,
    ),
    Check(
        "unreadable-topic",
        Severity.WARNING,
        "Kafka's own node of a topic cannot be read",
        "it is Kafka's",
        checks.unreadable_topics,
    ),
    Check(
        "padded-offset",
        Severity.ERROR,
        "an offset with blanks around the number, which stops Scala members as they start",
        "somebody is registered or owns something, and has an idea of the offset",
        checks.padded_offsets,
    ),
    Check(
        "unreadable-offset",
        Severity.ERROR,
        "an offset that is no number, which stops Scala members as they start",
        _PEOPLE,
        checks.unreadable_offsets,
    ),
    Check(
        "negative-offset",
        Severity.WARNING,
        "an offset below 0, for which Scala members go to the start or the end of the log",
        _PEOPLE,
        checks.negative_offsets,
    ),
    Check(
        "offset-of-no-partition",
        Severity.WARNING,
        "a node among the offsets whose name is no partition",
        _PEOPLE,
        checks.offsets_of_no_partition,
    ),
    Check(
        "stale-offset",
        Severity.INFO,
        "no offset of a topic was committed for long",
        "somebody may come back to where it stopped",
        checks.stale_offsets,
    ),
    Check(
        HIDDEN,
        Severity.WARNING,
        "a node that may not be read",
        "we may not",
        checks.hidden_nodes,
    ),
    Check(
        "empty-group",
        Severity.INFO,
        "a group of directories only",
        "there is something else in it",
        checks.empty_groups,
    ),
    Check(
        "nested-node",
        Severity.WARNING,
        "nodes below an instance or a partition, where nobody looks",
        _PEOPLE,
        checks.nested_nodes,
    ),
    Check(
        "open-acl",
        Severity.INFO,
        "everybody who can connect may change the group, as old clients make it",
        "members that do not log in would be locked out",
        checks.open_directories,
    ),
)
"""All checks, in the order in which their findings are shown and repaired: a registration before its owner nodes."""
