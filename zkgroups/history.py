"""Every change to groups, from the transaction logs of a ZooKeeper server: who moved an offset, and when.

    from zkgroups.history import Commit, read_history

    for item in read_history("/var/lib/zookeeper", chroot="/kafka", group="billing"):
        if isinstance(item, Commit) and item.went_back:
            print(hex(item.zxid), item.topic, item.partition, item.before, item.offset, item.instance)

`zkgroups.history.violations` finds the rules that an event breaks, as `zkgroups history check` does.
"""

from .core.history.events import (
    Commit,
    CommitAction,
    GroupAction,
    GroupChange,
    HistoryEvent,
    MemberAction,
    MemberChange,
    OwnerAction,
    OwnerChange,
    PastInstance,
    PastOwner,
    Rule,
    Violation,
    violations,
)
from .datadir.history import GapReason, LogGap, read_history

__all__ = [
    "Commit",
    "CommitAction",
    "GapReason",
    "GroupAction",
    "GroupChange",
    "HistoryEvent",
    "LogGap",
    "MemberAction",
    "MemberChange",
    "OwnerAction",
    "OwnerChange",
    "PastInstance",
    "PastOwner",
    "Rule",
    "Violation",
    "read_history",
    "violations",
]
