"""The error tree, its messages, and pickling."""

from __future__ import annotations

import copy
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from zkgroups import exceptions
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.names import check_group
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import CommittedOffset, MalformedNode, Owner
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    ClaimTimeout,
    CommittedOutOfRangeError,
    DamagedDataError,
    FetchFailedError,
    GenerationEndedError,
    GroupExistsError,
    GroupInUseError,
    GroupMigratedError,
    GroupMovedError,
    GroupNotFoundError,
    HandlerFailedError,
    InterruptedDeleteError,
    InvalidNameError,
    InvalidOptionError,
    MalformedNodeError,
    MemberClosedError,
    NoGroupError,
    NoPermissionError,
    NotClaimedError,
    NotRegisteredError,
    NotSharedError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
    PastLogEndError,
    ReentrantCallError,
    SessionInUseError,
    TooLargeError,
    UnknownPartitionError,
    ZkgroupsException,
)

AT = TopicPartition("orders", 3)
OWNER = Owner(AT, "other-0", 0x1A, from_ms(1795255170109))
BROKEN = MalformedNode("/consumers/billing/owners/orders/3", b"\xff", "not UTF-8", session=0x1A)

BUILT = [
    (InvalidNameError("group", "a/b", "contains a slash"), "group 'a/b' contains a slash"),
    (InvalidOptionError("offset", -1, "it must be more"), "offset is -1, but it must be more"),
    (GroupNotFoundError("billing"), "group 'billing' does not exist: check the name and the address"),
    (
        NotRegisteredError("billing", "me"),
        "instance 'me' is not registered in group 'billing': register it first, or give the id of a registered "
        "instance",
    ),
    (NotClaimedError(AT), "orders/3 is not claimed by this instance: stop working on it"),
    (NotClaimedError(AT, also=[AT]), "orders/3 (and 1 more) is not claimed by this instance: stop working on it"),
    (NotClaimedError(AT, "was taken away"), "orders/3 was taken away"),
    (UnknownPartitionError(AT), "the brokers have no partition orders/3: check the topic and its number of partitions"),
    (
        GroupInUseError("billing", []),
        "group 'billing' is in use by an instance that has just registered: stop its instances first",
    ),
    (GroupInUseError("billing", ["a", "b", "c"]), "group 'billing' is in use by a, b, c: stop its instances first"),
    (
        GroupInUseError("billing", ["a", "b", "c", "d", "e"]),
        "group 'billing' is in use by a, b, c and 2 more: stop its instances first",
    ),
    (GroupExistsError("billing"), "group 'billing' already exists: choose another name"),
    (
        GroupMigratedError("my group", "was moved to Kafka's own offsets as 'x', by plan p1", plan="p1", target="x"),
        "group 'my group' was moved to Kafka's own offsets as 'x', by plan p1: run `zkgroups migrate rollback` or "
        "`zkgroups migrate unmark 'my group'` to let members join again",
    ),
    (
        GroupMigratedError("billing", "has a mark that cannot be read"),
        "group 'billing' has a mark that cannot be read: run `zkgroups migrate unmark --force billing` to let "
        "members join again",
    ),
    (
        GroupMovedError("billing", moving=True),
        "group 'billing' is being moved between ZooKeeper and the brokers: wait until `zkgroups migrate switch "
        "billing` has finished",
    ),
    (
        GroupMovedError("my group", moving=False),
        "group 'my group' was moved to the brokers: join it there with a Kafka client, or run `zkgroups migrate switch "
        "'my group' --to zookeeper`",
    ),
    (
        OffsetWouldGoBackError("billing", AT, 9, 5),
        "offset of orders/3 in group 'billing' is 9 and would go back to 5: continue at 9; only a call with "
        "backward=True may go back",
    ),
    (
        OffsetWouldGoBackError("billing", AT, 9, 5, cure="start at 9", also=[AT]),
        "offset of orders/3 (and 1 more) in group 'billing' is 9 and would go back to 5: start at 9",
    ),
    (OffsetOutOfRangeError(AT, 9, 1, 5), "offset 9 of orders/3 is outside 1 to 5: choose an offset in this range"),
    (
        CommittedOutOfRangeError("billing", AT, 9, 1, 5),
        "committed offset 9 of orders/3 of group 'billing' is outside of the log (1 to 5): "
        'pass out_of_range="earliest" or "latest" to the member, '
        "or move the offset with `zkgroups offsets reset billing`",
    ),
    (
        PastLogEndError("billing", AT, 9, 5),
        "offset 9 of orders/3 of group 'billing' is past the log end 5, which may be stale: "
        "wait a second, read the log end from a broker again, and pass it to start_offset",
    ),
    (TooLargeError("lost twice over 40000 bytes", size=40_000), "lost twice over 40000 bytes"),
    (
        InterruptedDeleteError("billing", ["orders"], "somebody registered"),
        "group 'billing' is partly deleted, with 1 topic remaining (somebody registered); delete the group again "
        "to finish",
    ),
    (
        AlreadyRegisteredError("billing", "me", 0x1A),
        "instance 'me' is already registered in group 'billing' by session 0x1a: stop that instance, or choose "
        "another id",
    ),
    (AlreadyClaimedError(AT), "orders/3 is already claimed by this instance: use the claim in instance.claims"),
    (
        ClaimedByOtherError(AT, OWNER),
        "orders/3 is claimed by 'other-0' of session 0x1a since 2026-11-21T09:59:30Z: wait for its release, or claim "
        "another partition",
    ),
    (
        ClaimedByOtherError(AT, BROKEN),
        "orders/3 is claimed by a malformed node, /consumers/billing/owners/orders/3 of session 0x1a (not UTF-8): "
        "wait for its release, or claim another partition",
    ),
    (
        ClaimedByOtherError(AT, MalformedNode("/o", b"", "empty")),
        "orders/3 is claimed by a malformed node, /o of session 0x0 (empty): run `zkgroups doctor`",
    ),
    (OffsetConflictError(AT, None), "offset of orders/3 was deleted by another client: check it before you try again"),
    (
        OffsetConflictError(AT, CommittedOffset("billing", AT, 7)),
        "offset of orders/3 was changed by another client and is now 7: check it before you try again",
    ),
    (
        OffsetConflictError(AT, MalformedNode("/o", b"x", "no number")),
        "offset of orders/3 was changed by another client and is now b'x': check it before you try again",
    ),
    (
        SessionInUseError("/run/session", 1234),
        "the session in /run/session is in use by process 1234: give each process a file of its own",
    ),
    (
        SessionInUseError("/run/session", None),
        "the session in /run/session is in use by another process: give each process a file of its own",
    ),
    (
        ReentrantCallError("generation 7"),
        "generation 7 is in use by a call that this signal handler interrupted: set a flag or raise an exception in "
        "the handler instead",
    ),
    (
        NoPermissionError("/consumers/billing"),
        "no permission on /consumers/billing: log in as a user whom its ACL allows, with --digest-user or --sasl-user "
        "(in Python `auth`)",
    ),
    (
        ClaimTimeout(AT, OWNER, 2.5),
        "orders/3 was not free within 2.5 s: claimed by 'other-0' of session 0x1a since 2026-11-21T09:59:30Z; wait "
        "longer, or stop its owner",
    ),
    (
        ClaimTimeout(AT, None, 30.0),
        "orders/3 was not free within 30 s: other instances claimed it repeatedly; wait longer, or stop its owner",
    ),
    (GenerationEndedError("billing", 17), "generation 17 of group 'billing' has ended: use the next generation"),
    (GenerationEndedError("", 17), "generation 17 has ended: use the next generation"),
    (FetchFailedError(AT, "not authorized"), "fetching orders/3 failed, trying again: not authorized"),
    (
        HandlerFailedError(AT, 7, 3),
        "the handler failed at offset 7 of orders/3 in all 3 attempts: correct the handler, or pass "
        "then=DeadLetter(topic) to run",
    ),
    (MemberClosedError("billing", "me"), "member 'me' of group 'billing' is closed: create a new one"),
    (MemberClosedError("", "me"), "member 'me' is closed: create a new one"),
    (NoGroupError(), "this member has no group to commit offsets to: store them elsewhere, or use a Member"),
    (
        MalformedNodeError(BROKEN),
        "/consumers/billing/owners/orders/3 is malformed: not UTF-8 (b'\\xff'); run `zkgroups doctor` to see "
        "what to do",
    ),
    (
        NotSharedError("file:/data", "the workers may have a file system of their own"),
        "file:/data was not written: the workers may have a file system of their own; use hdfs://, s3a:// or a mount "
        "that all machines share",
    ),
    (
        DamagedDataError("/data", "it has no snapshot"),
        "/data: it has no snapshot; use the files of another server, or a backup",
    ),
    (
        DamagedDataError("log.1", "a record in it is not what was written", last_zxid=0x1F),
        "log.1: a record in it is not what was written; the data is intact up to zxid 0x1f: read up to it, or use "
        "the files of another server, or a backup",
    ),
]

OF_A_SENTENCE_ONLY = [
    kind
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, ZkgroupsException) and "__init__" not in vars(kind)
]

ERRORS = [error for error, _ in BUILT] + [kind("orders/3 did not work") for kind in OF_A_SENTENCE_ONLY]


def named(error: object) -> str:
    return type(error).__name__


def same(error: ZkgroupsException, other: ZkgroupsException) -> bool:
    return type(other) is type(error) and str(other) == str(error) and vars(other) == vars(error)


@pytest.mark.parametrize(("error", "message"), BUILT, ids=[named(error) for error, _ in BUILT])
def test_each_error_has_the_expected_message(error: ZkgroupsException, message: str) -> None:
    assert str(error) == message


def test_every_error_class_has_an_example() -> None:
    kinds = {kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert {type(error) for error in ERRORS} == kinds


@pytest.mark.parametrize("error", ERRORS, ids=named)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_is_the_same_after_pickling(error: ZkgroupsException, protocol: int) -> None:
    error.__cause__ = ValueError("not carried, as with every exception of Python")
    assert same(error, pickle.loads(pickle.dumps(error, protocol)))


@pytest.mark.parametrize("error", ERRORS, ids=named)
def test_an_error_can_be_copied(error: ZkgroupsException) -> None:
    assert same(error, copy.copy(error))
    assert same(error, copy.deepcopy(error))


def test_a_note_on_an_error_survives_pickling() -> None:
    error = GroupNotFoundError("billing")
    error.add_note("and deregistering failed")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["and deregistering failed"]


def test_an_error_of_a_user_s_subclass_survives_pickling() -> None:
    error = SubclassedError("billing", extra=5)
    assert same(error, pickle.loads(pickle.dumps(error)))


class SubclassedError(GroupNotFoundError):
    def __init__(self, group: str, *, extra: int) -> None:
        super().__init__(group)
        self.extra = extra


def test_an_error_is_raised_through_a_process_pool() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(InvalidNameError, match="contains a slash") as caught,
    ):
        pool.submit(check_group, "a/b").result(timeout=60)
    assert (caught.value.kind, caught.value.name) == ("group", "a/b")


def test_an_error_carries_what_a_caller_needs() -> None:
    assert ClaimedByOtherError(AT, OWNER).owner is OWNER
    assert ClaimTimeout(AT, OWNER, 2.5).timeout == 2.5
    assert OffsetConflictError(AT, None).found is None
    assert MalformedNodeError(BROKEN).path == BROKEN.path
    assert MalformedNodeError(BROKEN).data == BROKEN.data
    assert GroupInUseError("billing", ["a"]).instances == ("a",)
    assert InterruptedDeleteError("billing", ["orders"], "x").left == ("orders",)


@pytest.mark.parametrize(
    "value",
    ["a" * 10**6, "a\n\x1b[2J/", "\ud800", "אב/\u202e", b"\x00" * 10**6, pytest.param(10**5000, id="huge"), [[]] * 999],
)
def test_long_arguments_are_shortened_in_messages(value: object) -> None:
    for error in (InvalidNameError("group", value, "is bad"), InvalidOptionError("offset", value, "it is bad")):
        assert len(str(error)) < 300
        assert str(error).isprintable()
        str(error).encode()
    assert InvalidNameError("group", value, "is bad").name == value


def test_an_invalid_argument_is_a_value_error() -> None:
    assert isinstance(InvalidNameError("group", "", "has no characters"), ValueError)
    assert isinstance(InvalidOptionError("timeout", -1, "no"), ValueError)


def test_only_errors_that_may_pass_are_retriable() -> None:
    retriable = {named(error) for error in ERRORS if error.retriable}
    assert retriable == {
        "ConflictError",
        "AlreadyRegisteredError",
        "ClaimedByOtherError",
        "OffsetConflictError",
        "SessionInUseError",
        "UnavailableError",
        "NotConnectedError",
        "UnreachableError",
        "DamagedAnswerError",
        "FetchFailedError",
        "PastLogEndError",
        "ReadOnlyError",
        "SessionLostError",
        "ClaimTimeout",
    }


def test_the_error_tree_in_the_docstring_is_correct() -> None:
    """The parent of a line is the nearest line above it with less indentation."""
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    assert exceptions.__doc__ is not None
    for branch, name in re.findall(
        r"^([│├└─ ]*)([A-Z]\w+(?:Exception|Error|Timeout))", exceptions.__doc__, re.MULTILINE
    ):
        depth = len(branch) // 4
        above = above[:depth]
        drawn[name] = above[-1] if above else None
        above.append(name)
    actual = {
        name: next((base.__name__ for base in kind.__bases__ if issubclass(base, ZkgroupsException)), None)
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, ZkgroupsException)
    }
    assert drawn == actual
