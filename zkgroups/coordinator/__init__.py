"""Kafka's group coordinator as a pure state machine: requests in, answers out, with any storage behind it.

It follows Kafka's own coordinator for classic groups, from 1.1 to 3.x, state by state and error by error.

1. A request arrives as an event with an id (`actions.py`). Each id is answered exactly once. A join or
   sync request that must wait is parked: its id is kept with its member. Whatever ends the wait answers it, also if
   the member leaves or expires, the group moves, or the coordinator closes.
2. A group is loaded from the storage before its first request is processed. Requests for it wait meanwhile.
3. The request is checked against the group (`rules/admission.py`): unknown or fenced members and wrong generations are
   refused, in Kafka's order of checks. All other requests become events of the group (`group/events.py`).
4. The rule for this event in the state of the group handles it. All rules are in the table `rules/transitions.py`.
5. Deadlines are data (`deadlines.py`): sessions, ids that wait to be used, the initial delay, the time to join and to
   sync, stuck rebalances, clean-up, storage work. The caller asks for `next_deadline`, and passes the time with each
   event.
6. Reads and writes are work for the storage (`storage/work.py`): an action with a later result. Generations get their
   assignments, and commits their answers, only after the storage has stored them. Work that takes too long is answered
   with an error that clients retry; a late result is ignored.

Rules that always hold: the generation of a group only grows; the members of a generation get the assignments that one
leader, or the coordinator, made for exactly this generation; only its members may commit, or anyone while the group has
no members; and a cooperative member's partition goes to nobody else before that member has given it up.

Differences from Kafka 3, all on purpose: a parked request is answered also if its member leaves, or sends it again; a
static member that restarts with other topics begins a rebalance; a rebalance that does not end loses all members;
offsets of an empty group are kept for the whole retention time after their commit; offsets cannot be deleted while the
first members join; deleting the last offset does not delete the group; between equal votes for a protocol, the member
that joined first decides.
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
from .commit_log import commit_lines
from .config import AssignmentBy, CoordinatorConfig
from .coordinator import GroupCoordinator
from .group.group import GroupState
from .group.members import MemberState
from .group.metadata import GroupMetadata, MemberMetadata
from .state_machine import CoordinatorMachine
from .storage.memory_storage import MemoryStorage
from .storage.storage import Storage
from .values.answers import (
    Answer,
    CommitAnswer,
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    DescribedGroup,
    DescribedMember,
    FetchAnswer,
    FetchedOffsets,
    HeartbeatAnswer,
    JoinAnswer,
    JoinedMember,
    LeaveAnswer,
    ListAnswer,
    ListedGroup,
    SyncAnswer,
    refusal,
)
from .values.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .values.kafka_errors import KafkaError
from .values.offset_values import CommittedValue
from .values.requests import (
    CommitRequest,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    ListRequest,
    MemberIdentity,
    Request,
    SyncRequest,
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
