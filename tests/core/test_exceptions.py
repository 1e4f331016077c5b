"""The errors: what they say and carry, and that they are the same after pickling and copying."""

from __future__ import annotations

import copy
import pickle

from zkgroups import CommittedOffset, MalformedNode, Owner, TopicPartition
from zkgroups import exceptions as errors
from zkgroups.core.times import from_ms
from zkgroups.exceptions import (
    ClaimedByOtherError,
    ClaimTimeout,
    GroupInUseError,
    GroupMigratedError,
    GroupMovedError,
    GroupNotFoundError,
    InterruptedDeleteError,
    InvalidNameError,
    InvalidOptionError,
    MalformedNodeError,
    NotClaimedError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    SessionInUseError,
    ZkgroupsException,
)

AT = TopicPartition("orders", 3)
OWNER = Owner(AT, "other-0", 0x1A, from_ms(1795255170109))
BROKEN = MalformedNode("/consumers/billing/owners/orders/3", b"\xff", "not UTF-8", session=0x1A)
EMPTY = MalformedNode("/o", b"", "empty")

# Each with the part of its message that depends on its arguments.
BUILT: list[tuple[ZkgroupsException, str]] = [
    (InvalidNameError("group", "a/b", "contains a slash"), "'a/b' cannot be a group name: it contains a slash"),
    (InvalidOptionError("offset", -1, "it must be more"), "offset is -1, but it must be more"),
    (GroupNotFoundError("billing"), "group 'billing' does not exist: "),
    (errors.NotRegisteredError("billing", "me"), "instance 'me' is not registered in group 'billing': "),
    (NotClaimedError(AT), "orders/3 is not claimed by this instance: "),
    (NotClaimedError(AT, also=[AT]), "orders/3 (and 1 more) is not claimed by this instance: "),
    (NotClaimedError(AT, "was taken away"), "orders/3 was taken away"),
    (errors.UnknownPartitionError(AT), "the brokers have no partition orders/3: "),
    (GroupInUseError("billing", []), "group 'billing' is in use by an instance that has just registered: "),
    (GroupInUseError("billing", ["a", "b", "c"]), "group 'billing' is in use by a, b, c: "),
    (GroupInUseError("billing", list("abcde")), "group 'billing' is in use by a, b, c and 2 more: "),
    (errors.GroupExistsError("billing"), "group 'billing' already exists: "),
    (GroupMigratedError("my group", "was moved", plan="p1", target="x"), "`zkgroups migrate unmark 'my group'`"),
    (GroupMigratedError("billing", "has a bad mark"), "has a bad mark: run `zkgroups migrate unmark --force billing`"),
    (GroupMovedError("billing", moving=True), "is being moved between ZooKeeper and the brokers: wait until "),
    (GroupMovedError("my group", moving=False), "`zkgroups migrate switch 'my group' --to zookeeper`"),
    (
        OffsetWouldGoBackError("billing", AT, 9, 5),
        "offset of orders/3 in group 'billing' is 9 and would go back to 5: ",
    ),
    (
        OffsetWouldGoBackError("g", AT, 9, 5, cure="start at 9", also=[AT]),
        "orders/3 (and 1 more) in group 'g' is 9 and",
    ),
    (errors.OffsetOutOfRangeError(AT, 9, 1, 5), "offset 9 of orders/3 is outside 1 to 5: "),
    (errors.CommittedOutOfRangeError("billing", AT, 9, 1, 5), "group 'billing' is outside of the log (1 to 5): "),
    (errors.PastLogEndError("billing", AT, 9, 5), "offset 9 of orders/3 of group 'billing' is past the log end 5, "),
    (errors.TooLargeError("lost twice over 40000 bytes", size=40_000), "lost twice over 40000 bytes"),
    (InterruptedDeleteError("g", ["a", "b"], "why"), "group 'g' is partly deleted, with 2 topics remaining (why); "),
    (InterruptedDeleteError("g", ["orders"], "why"), "with 1 topic remaining (why); "),
    (errors.AlreadyRegisteredError("billing", "me", 0x1A), "registered in group 'billing' by session 0x1a: "),
    (errors.AlreadyClaimedError(AT), "orders/3 is already claimed by this instance: "),
    (ClaimedByOtherError(AT, OWNER), "claimed by 'other-0' of session 0x1a since 2026-11-21T09:59:30Z: wait "),
    (ClaimedByOtherError(AT, BROKEN), "/consumers/billing/owners/orders/3 of session 0x1a (not UTF-8): wait "),
    (ClaimedByOtherError(AT, EMPTY), "claimed by a malformed node, /o of session 0x0 (empty): run `zkgroups doctor`"),
    (OffsetConflictError(AT, None), "offset of orders/3 was deleted by another client: "),
    (OffsetConflictError(AT, CommittedOffset("billing", AT, 7)), "was changed by another client and is now 7: "),
    (OffsetConflictError(AT, MalformedNode("/o", b"x", "no number")), "is now 'x': "),
    (SessionInUseError("/run/session", 1234), "the session in /run/session is in use by process 1234: "),
    (SessionInUseError("/run/session", None), "the session in /run/session is in use by another process: "),
    (errors.ReentrantCallError("generation 7"), "generation 7 is in use by a call that this signal handler "),
    (errors.NoPermissionError("/consumers/billing"), "no permission on /consumers/billing: "),
    (ClaimTimeout(AT, OWNER, 2.5), "orders/3 was not free within 2.5 s: claimed by 'other-0' of session 0x1a since "),
    (ClaimTimeout(AT, None, 30.0), "orders/3 was not free within 30 s: other instances claimed it repeatedly; "),
    (errors.GenerationEndedError("billing", 17), "generation 17 of group 'billing' has ended: "),
    (errors.GenerationEndedError("", 17), "generation 17 has ended: "),
    (errors.FetchFailedError(AT, "not authorized"), "fetching orders/3 failed, trying again: not authorized"),
    (errors.HandlerFailedError(AT, 7, 3), "the handler failed at offset 7 of orders/3 in all 3 attempts: "),
    (errors.MemberClosedError("billing", "me"), "member 'me' of group 'billing' is closed: "),
    (errors.MemberClosedError("", "me"), "member 'me' is closed: "),
    (errors.NoGroupError(), "this member has no group to commit offsets to: "),
    (MalformedNodeError(BROKEN), "/consumers/billing/owners/orders/3 is malformed: not UTF-8 (b'\\xff'); "),
    (errors.NotSharedError("file:/data", "the workers are far"), "file:/data was not written: the workers are far; "),
    (errors.DamagedDataError("/data", "it has no snapshot"), "/data: it has no snapshot; use "),
    (
        errors.DamagedDataError("log.1", "it is torn", last_zxid=31),
        "log.1: it is torn; the data is intact up to zxid 0x1f",
    ),
]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
ERRORS = [error for error, _ in BUILT] + [
    kind("orders/3 did not work")
    for kind in KINDS
    if "__init__" not in vars(kind)  # those of a sentence only
]


def same(error: ZkgroupsException, other: ZkgroupsException) -> bool:
    return type(other) is type(error) and str(other) == str(error) and vars(other) == vars(error)


def test_each_error_says_what_has_happened_to_which_object() -> None:
    assert [(str(error), said) for error, said in BUILT if said not in str(error)] == []
    assert {type(error) for error in ERRORS} == set(KINDS), "every class has an example"


def test_an_error_is_the_same_after_pickling_and_copying() -> None:
    for error in [*ERRORS, SubclassedError("billing", extra=5)]:
        error.__cause__ = ValueError("not carried, as with every exception of Python")
        error.add_note("and deregistering failed")
        pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for again in (*pickled, copy.copy(error), copy.deepcopy(error)):
            assert same(error, again)
            assert again.__notes__ == ["and deregistering failed"]


class SubclassedError(GroupNotFoundError):
    """An error of a user."""

    def __init__(self, group: str, *, extra: int) -> None:
        super().__init__(group)
        self.extra = extra


def test_an_invalid_argument_is_a_value_error_and_is_shortened_in_messages() -> None:
    hostile = ["a" * 10**6, "a\n\x1b[2J/", "\ud800", "אב/\u202e", b"\x00" * 10**6, 10**5000, [[]] * 999]
    for value in hostile:
        for error in (InvalidNameError("group", value, "is bad"), InvalidOptionError("offset", value, "it is bad")):
            assert isinstance(error, ValueError)
            assert len(str(error)) < 300
            assert str(error).isprintable()
            str(error).encode()
        assert InvalidNameError("group", value, "is bad").name == value


def test_only_errors_that_may_pass_are_retriable() -> None:
    assert {type(error).__name__ for error in ERRORS if error.retriable} == {
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
