"""Kafka's group coordinator as a pure state machine: requests in, answers out, with any storage behind it.

It follows Kafka's own coordinator for classic groups, from 1.1 to 3.x, state by state and error by error.

1. A request arrives as an event with an id (`actions.py`). It is answered exactly once. A join or sync request that
   must wait is parked: its id is stored with its member. A parked request is answered even if the member leaves or
   expires, the group moves, or the coordinator closes.
2. The first request for a group loads it from the storage. Until the group is loaded, requests for it wait.
3. The request is checked against the group (`join_rules.py`). Requests of unknown or fenced members, and of
   another generation, are refused. The order of the checks is Kafka's. All other requests become events of the group
   (`group_events.py`).
4. The table in `transitions.py` has the rules: a function for each event in each state of the group.
5. Deadlines are data (`outbox.py`): sessions, unused member ids, the initial delay, the time to join and to sync,
   stuck rebalances, clean-up, storage work. The caller reads `next_deadline`, and passes the current time with each
   event.
6. Reads and writes are work for the storage (`storage.py`): an action starts it, and a later event has its result.
   Members get assignments, and commits get answers, only after the storage has stored them. If the work takes too long,
   the client gets an error after which it retries, and a late result is ignored.

These rules always hold:

- The generation number of a group only grows.
- The members of a generation get assignments that were made for exactly this generation, by one leader or by the
  coordinator.
- Only members of the current generation may commit. While the group has no members, any client may commit.
- A partition of a cooperative member goes to another member only after the cooperative member has given it up.

Differences from Kafka 3, all on purpose:

- A parked request is answered even if its member leaves, or sends the request again.
- A static member that restarts with other topics, or before it has given up partitions, causes a rebalance.
- If a rebalance does not end, all members are removed.
- Offsets of an empty group are kept for the whole retention time after their commit.
- Offsets cannot be deleted while the first members join.
- Deleting the last offset does not delete the group.
- If the coordinator assigns the partitions, consumers that offer only unknown strategies are refused.
- If two protocols get the same number of votes, the member that joined first decides.
"""

from __future__ import annotations

from .actions import (
    CloseRequested,
    Event,
    GroupMoved,
    Incident,
    MembershipLost,
    RebalanceNeeded,
    ReportCommit,
    ReportIncident,
    RequestReceived,
    SendAnswer,
    StartWork,
    TimePassed,
    WorkFinished,
)
from .config import AssignmentBy, CoordinatorConfig
from .consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .coordinator import GroupCoordinator
from .group import GroupMetadata, GroupState, MemberMetadata, MemberState
from .memory_storage import MemoryStorage, commit_lines
from .state_machine import CoordinatorMachine
from .storage import Storage
from .values import (
    Answer,
    CommitAnswer,
    CommitRequest,
    CommittedValue,
    DeleteGroupsAnswer,
    DeleteGroupsRequest,
    DeleteOffsetsAnswer,
    DeleteOffsetsRequest,
    DescribeAnswer,
    DescribedGroup,
    DescribedMember,
    DescribeRequest,
    FetchAnswer,
    FetchedOffsets,
    FetchRequest,
    GroupProtocol,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    ListAnswer,
    ListedGroup,
    ListRequest,
    LocateAnswer,
    LocateRequest,
    MemberIdentity,
    Request,
    SyncAnswer,
    SyncRequest,
    refusal,
)

__all__ = [
    "Answer",
    "AssignmentBy",
    "CloseRequested",
    "CommitAnswer",
    "CommitRequest",
    "CommittedValue",
    "CoordinatorConfig",
    "CoordinatorMachine",
    "DeleteGroupsAnswer",
    "DeleteGroupsRequest",
    "DeleteOffsetsAnswer",
    "DeleteOffsetsRequest",
    "DescribeAnswer",
    "DescribeRequest",
    "DescribedGroup",
    "DescribedMember",
    "Event",
    "FetchAnswer",
    "FetchRequest",
    "FetchedOffsets",
    "GroupCoordinator",
    "GroupMetadata",
    "GroupMoved",
    "GroupProtocol",
    "GroupState",
    "HeartbeatAnswer",
    "HeartbeatRequest",
    "Incident",
    "JoinAnswer",
    "JoinRequest",
    "JoinedMember",
    "KafkaError",
    "LeaveAnswer",
    "LeaveRequest",
    "ListAnswer",
    "ListRequest",
    "ListedGroup",
    "LocateAnswer",
    "LocateRequest",
    "MemberIdentity",
    "MemberMetadata",
    "MemberState",
    "MembershipLost",
    "MemoryStorage",
    "RebalanceNeeded",
    "ReportCommit",
    "ReportIncident",
    "Request",
    "RequestReceived",
    "SendAnswer",
    "StartWork",
    "Storage",
    "Subscription",
    "SyncAnswer",
    "SyncRequest",
    "TimePassed",
    "WorkFinished",
    "commit_lines",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
    "refusal",
]
