"""The tables that hold the groups of a ZooKeeper: in Spark, and in snapshots."""

from __future__ import annotations

from enum import StrEnum


class Table(StrEnum):
    """The tables that the data source can read, and that a snapshot has.

    offsets  cluster, group, topic, partition, offset, commit_count, committed_at, created_at, zxid, owner, layout,
             log_start, log_end
    owners   cluster, group, topic, partition, owner, session, claimed_at, zxid
    members  cluster, group, instance, session, registered_at, subscription, pattern, dialect, client_id, client_host

    All end with the columns `raw` and `problem`, which are null unless the node is unreadable, and `read_at`. The
    columns have comments: `df.schema["owner"].metadata["comment"]`.
    """

    OFFSETS = "offsets"
    OWNERS = "owners"
    MEMBERS = "members"
