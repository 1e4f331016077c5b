"""Damaged answers from a server: a typed error, bounded time and memory, and a client that can be closed."""

from __future__ import annotations

import logging
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zkgroups import Digest, Registry, Sasl, TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    DamagedAnswerError,
    NotConnectedError,
    OutcomeUnknownError,
    ZkgroupsException,
    ZooKeeperTooOldError,
)
from zkgroups.testing.proxy import Op, Xid
from zkgroups.zookeeper.kazoo_compat import closing
from zkgroups.zookeeper.kazoo_compat.safe_decoding import MAX_ANSWER_BYTES
from zkgroups.zookeeper.requests import bulk_read
from zkgroups.zookeeper.requests.transaction import Create

from ..seeds import seeds
from . import liar
from .helpers import no_thread_stays
from .liar import ABSENCES, CONNECT, DAMAGES, END, NAMES, STAT, Liar, Lie, text

TIMEOUT = 0.3


PATHS = [f"/t/{name}" for name in NAMES]


@pytest.fixture(autouse=True)
def undisturbed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In every test here, no thread dies, no thread stays, and no traceback is logged."""
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(closing, "CLOSE_TIMEOUT", TIMEOUT)
    with caplog.at_level(logging.DEBUG), no_thread_stays():
        yield
    assert died == []
    assert [record for record in caplog.records if record.exc_info] == []


Act = Callable[[Registry], Any]


ACTS: dict[int, Act] = {
    Op.EXISTS: lambda registry: registry._context.session.exists("/x", deadline=registry._context.deadline()),
    Op.GET_DATA: lambda registry: registry._context.session.get("/x", deadline=registry._context.deadline()),
    Op.GET_CHILDREN: lambda registry: registry._context.session.children("/x", deadline=registry._context.deadline()),
    Op.GET_ACL: lambda registry: registry._context.session.acl("/x", deadline=registry._context.deadline()),
    Op.SYNC: lambda registry: registry._context.session.sync(deadline=registry._context.deadline()),
    Op.MULTI_READ: lambda registry: list(bulk_read.nodes(registry._context, PATHS)),
    Op.MULTI: lambda registry: registry._context.session.transact(
        [Create("/made")], deadline=registry._context.deadline()
    ),
}


"""A call that sends one request, for each type."""


CHILDREN = Op.MULTI_READ + 1000
ACTS[CHILDREN] = lambda registry: list(bulk_read.children(registry._context, PATHS))


def ask(act: Act, lies: dict[int, Lie], *, timeout: float = 30.0, **options: Any) -> ZkgroupsException:
    """Return the error of a call to a server that lies."""
    with (
        Liar(lies) as server,
        pytest.raises(ZkgroupsException) as caught,
        Registry.connect(server.address, timeout=timeout, **options) as registry,
    ):
        act(registry)
    return caught.value


def after_the_first(lie: Lie) -> Lie:
    """The first answer is correct, because `connect` reads the root."""
    honest = [True]
    return lambda frame: [frame] if honest and honest.pop() else lie(frame)


def lies_about(op: int, lie: Lie) -> dict[int, Lie]:
    if op == Op.EXISTS:
        return {op: after_the_first(lie)}
    return {Op.MULTI_READ if op == CHILDREN else op: lie}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("op", [Op.EXISTS, Op.GET_DATA, Op.MULTI_READ])
def test_a_damaged_answer_to_a_read_is_a_damaged_answer_error(op: int, damage: str) -> None:
    error = ask(ACTS[op], lies_about(op, DAMAGES[damage]))
    assert type(error) is DamagedAnswerError
    assert "damaged answer" in str(error)


SOME_LIES = ["2 GB", "no length", "another xid", "an unknown error", "hangs up in the middle"]


@pytest.mark.parametrize(
    "body",
    [
        END,
        struct.pack(">i?i", 5, False, 0) + STAT + END,
        struct.pack(">i?i", 1, False, 0) + struct.pack(">i", -1) + END,
        struct.pack(">i?ii", -1, False, 0, 0) + END,
        struct.pack(">i?ii", -1, False, -99, -99) + END,
        struct.pack(">i?i", 1, False, 0) + text("/made"),
        (struct.pack(">i?i", 1, False, 0) + text("/made")) * 2 + END,
        b"",
    ],
    ids=[
        "none",
        "of another type",
        "null",
        "rolled back without a reason",
        "no such error",
        "without an end",
        "two",
        "nothing",
    ],
)
def test_results_that_cannot_belong_to_a_transaction_are_rejected(body: bytes) -> None:
    error = ask(ACTS[Op.MULTI], {Op.MULTI: liar.with_body(lambda _: body)}, timeout=TIMEOUT)
    assert isinstance(error, NotConnectedError | OutcomeUnknownError)


NEGATIVE = struct.pack(">i", -4)


BODIES: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "a stat that is cut off": (Op.EXISTS, lambda body: body[:-1]),
    "data longer than its answer": (Op.GET_DATA, lambda body: struct.pack(">i", 2**31 - 1) + body[4:]),
    "names without end": (Op.GET_CHILDREN, lambda body: struct.pack(">i", 2**31 - 1) + body[4:]),
    "fewer than no names": (Op.GET_CHILDREN, lambda body: struct.pack(">i", -7) + body[4:]),
    "a name of negative length": (Op.GET_CHILDREN, lambda body: body[:4] + NEGATIVE + body[8:]),
    "a name longer than its answer": (Op.GET_CHILDREN, lambda body: body[:-6] + struct.pack(">i", 9) + body[-2:]),
    "a name that is not UTF-8": (Op.GET_CHILDREN, lambda _: struct.pack(">ii", 1, 1) + b"\xff"),
    "a name with a slash": (Op.GET_CHILDREN, lambda _: struct.pack(">ii", 1, 3) + b"a/b"),
    "an ACL without end": (Op.GET_ACL, lambda body: struct.pack(">i", 2**31 - 1) + body[4:]),
    "many reads: nothing": (Op.MULTI_READ, lambda _: b""),
    "many reads: no record": (Op.MULTI_READ, lambda _: END),
    "many reads: one record": (Op.MULTI_READ, lambda body: body[: len(body) // 20] + END),
    "many reads: of another kind": (Op.MULTI_READ, lambda body: struct.pack(">i", 8) + body[4:]),
    "many reads: no such error": (Op.MULTI_READ, lambda _: struct.pack(">i?ii", -1, False, -99, -99) * 20 + END),
    "many reads: data of negative length": (Op.MULTI_READ, lambda body: body[:9] + NEGATIVE + body[13:]),
    "many reads: data longer than its answer": (Op.MULTI_READ, lambda body: body[:9] + b"\x7f\xff" + body[11:]),
    "many reads: cut off in a record": (Op.MULTI_READ, lambda body: body[:-30] + END),
    "many lists: names without end": (CHILDREN, lambda body: body[:9] + struct.pack(">i", 2**31 - 1) + body[13:]),
    "many lists: names of negative length": (
        CHILDREN,
        lambda body: body[:9] + struct.pack(">i", 2**31 - 1) + NEGATIVE * (len(body) // 4),
    ),
    "many lists: of another kind": (CHILDREN, lambda body: struct.pack(">i", 4) + body[4:]),
    "many lists: cut off in a name": (CHILDREN, lambda body: body[: -len(END) - 1] + END),
}


@pytest.mark.parametrize("lie", BODIES)
def test_a_body_that_cannot_be_decoded_is_a_damaged_answer(lie: str) -> None:
    op, change = BODIES[lie]
    assert type(ask(ACTS[op], lies_about(op, liar.with_body(change)))) is DamagedAnswerError


EVENT = liar.header(Xid.WATCH_EVENT)


@pytest.mark.parametrize(
    "event",
    [b"", struct.pack(">iii", 2, 3, -1), struct.pack(">iii", 2, 3, 2**31 - 1), struct.pack(">iii", 2, 3, 1) + b"\xff"],
    ids=["empty", "without a path", "a path that is cut off", "a path that is not UTF-8"],
)
def test_a_damaged_watch_event_costs_the_connection_and_not_the_client(event: bytes) -> None:
    lie = after_the_first(liar.with_body(lambda body: body))
    honest = [True]

    def once(frame: bytes) -> list[bytes]:
        return [liar.framed(EVENT + event)] if honest and honest.pop() else [frame]

    with Liar({Xid.WATCH_EVENT: once, Op.EXISTS: lie}) as server:
        with Registry.connect(f"{server.address}/chroot", timeout=30.0) as registry:
            session = registry._context.session
            assert session.wait_deleted("/x", deadline=Deadline(30.0), timeout=30.0)
        assert server.connections == 2


# While connecting


CONNECTS: dict[str, Lie] = {
    name: lie for name, lie in DAMAGES.items() if name not in ("another xid", "an unknown error")
} | {
    "no session": lambda _: [liar.framed(struct.pack(">iiq", 0, 30_000, 0) + text(bytes(16)) + b"\0")],
    "no password": lambda _: [liar.framed(struct.pack(">iiqi", 0, 30_000, 17, -1) + b"\0")],
    "a short password": lambda _: [liar.framed(struct.pack(">iiq", 0, 30_000, 17) + text(b"x") + b"\0")],
}


@pytest.mark.parametrize("lie", CONNECTS)
def test_a_server_of_another_protocol_is_named(lie: str) -> None:
    with Liar({CONNECT: CONNECTS[lie]}) as server, pytest.raises(DamagedAnswerError) as caught:
        Registry.connect(server.address, timeout=30.0, unreachable_timeout=0.0)
    assert str(caught.value).startswith(f"could not connect to {server.address}: not a ZooKeeper server, or ")


LOGINS: dict[int, Digest | Sasl] = {Xid.AUTH: Digest("alice", "secret"), Op.SASL: Sasl("alice", "secret")}


@pytest.mark.parametrize("lie", SOME_LIES)
@pytest.mark.parametrize("op", LOGINS, ids=["digest", "sasl"])
def test_a_damaged_answer_to_a_login_is_not_a_refusal(op: int, lie: str) -> None:
    error = ask(ACTS[Op.GET_DATA], {op: (DAMAGES | ABSENCES)[lie]}, timeout=TIMEOUT, auth=[LOGINS[op]])
    assert isinstance(error, NotConnectedError)


# Random changes


@pytest.mark.parametrize("seed", seeds(4))
def test_any_change_of_an_answer_raises_only_expected_errors(seed: int) -> None:
    change_answers(seed)


def change_answers(seed: int) -> None:
    """Let a server of either kind damage about half of its answers at random: an old one has no MultiRead."""
    chance = random.Random(seed)

    def damage(frame: bytes) -> list[bytes]:
        damaged = bytearray(frame)
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(0 if chance.random() < 0.1 else 4, len(frame))
            damaged[place] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        return [bytes(damaged[: chance.randrange(len(damaged))] if chance.random() < 0.1 else damaged)]

    def sometimes(frame: bytes) -> list[bytes]:
        return damage(frame) if chance.random() < 0.5 else [frame]

    lies = dict.fromkeys([CONNECT, Xid.WATCH_EVENT, *(op for op in ACTS if op != CHILDREN)], sometimes)
    with Liar(lies, version=chance.choice(("3.4.14", "3.9.5"))) as server:
        for act in [*ACTS.values()] * 2:
            try:
                with Registry.connect(server.address, timeout=0.2) as registry:
                    act(registry)
            except ZkgroupsException:
                pass


# Memory


MEASURED = """
import re, resource, sys
from pathlib import Path
from zkgroups import Registry
from zkgroups.exceptions import UnavailableError
from zkgroups.zookeeper.requests import bulk_read

resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak_kib()
try:
    with Registry.connect(sys.argv[1], timeout=30.0, unreachable_timeout=0.0) as registry:
        list(bulk_read.children(registry._context, [f"/t/n{n}" for n in range(20)]))
except UnavailableError as error:
    print(type(error).__name__, peak_kib() - before)
"""


@pytest.mark.parametrize(
    ("lies", "most"),
    [
        ({CONNECT: liar.with_length(2**31 - 1)}, 32 << 20),
        ({Op.EXISTS: liar.with_length(2**31 - 1)}, 32 << 20),
        ({Op.EXISTS: liar.flood(2**31 - 1)}, 32 << 20),
        ({Op.EXISTS: liar.flood(MAX_ANSWER_BYTES)}, 3 * MAX_ANSWER_BYTES),
        ({Op.MULTI_READ: liar.with_body(BODIES["many lists: names of negative length"][1])}, 32 << 20),
    ],
    ids=["a session of 2 GB", "2 GB", "2 GB and more", "as much as is read", "negative names"],
)
def test_a_damaged_answer_takes_bounded_memory(lies: dict[int, Lie], most: int) -> None:
    with Liar(lies) as server:
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, server.address], capture_output=True, text=True, timeout=120
        )
    error, kib = ended.stdout.split()
    assert error == "DamagedAnswerError"
    assert int(kib) * 1024 < most
    assert "Traceback" not in ended.stderr


UNKNOWN_REQUEST = -6


def test_a_server_without_transactions_is_read_and_refuses_every_write() -> None:
    """ZooKeeper 3.3, which came with Kafka 0.8.0, answers so, and closes the connection."""
    with (
        Liar({Op.MULTI: liar.with_header(error=UNKNOWN_REQUEST)}, version="3.3.6") as server,
        Registry.connect(server.address, timeout=30.0) as registry,
    ):
        group = registry.group("billing")
        assert group.instances()
        with pytest.raises(ZooKeeperTooOldError, match=r"writing needs ZooKeeper 3\.4 or newer"):
            group.offsets.set(TopicPartition("orders", 0), 8)
