"""Nodes, rights, trees, session files, watches and threads that several files of tests use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.security import make_acl, make_digest_acl

from tests.waiting import LONGEST
from zkgroups import (
    Acl,
    Change,
    CommittedOffset,
    Finding,
    ForbiddenNode,
    Instance,
    Registry,
    SessionCredentials,
    TopicPartition,
    Watch,
)
from zkgroups.zookeeper.requests.node import Node

from .events import attempt

GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
ME, OWNER, OFFSET = f"{IDS}/me", f"{OWNERS}/orders/0", f"{OFFSETS}/orders/0"

# Instances


def member(registry: Registry, id: str = "me") -> Instance:
    instance = registry.group("billing").instance(id)
    instance.register(["orders"])
    return instance


def register(me: Instance) -> object:
    return me.register(["orders"])


def claim_one(me: Instance) -> object:
    return me.claim(P0)


def claim_three(me: Instance) -> object:
    return me.claim_many([P0, P1, P2])


def prepare(registry: Registry) -> None:
    """Create the directories, so that the next transaction is the operation itself."""
    with registry.group("billing").instance("me") as me:
        register(me)
        claim_three(me)


def left_behind(raw: Any) -> list[str]:
    """The registrations and owners of the group."""
    found = []
    for directory in (IDS, f"{OWNERS}/orders"):
        if raw.exists(directory):
            found += [f"{directory}/{name}" for name in raw.get_children(directory)]
    return found


# Rights

SECRET = "pass:word of alice"
ALICE = Acl.digest("alice", SECRET)


def only_alice(all: bool = True, **rights: bool) -> list[Any]:
    return [make_digest_acl("alice", SECRET, all=all, **rights)]


def may_world(**rights: bool) -> list[Any]:
    """All rights for alice, and some rights for all clients."""
    return [*only_alice(), make_acl("world", "anyone", **rights)]


# Trees

ODD = ["a b", " ", "a:b", "über", "日本語", "100%", "%2F", "'\"\\", "...", "-1", "+", "\u0301", "x" * 3_000]
"""Names that a server accepts, although other software might not."""


def plant(client: Any, paths: Iterable[str], data: bytes = b"7") -> list[str]:
    """Create nodes and their parents."""
    paths = list(paths)
    for above in sorted({path.rpartition("/")[0] for path in paths} - {""}):
        client.ensure_path(above)
    each(client.create_async(path, data) for path in paths)
    return paths


def each(answers: Iterable[Any]) -> list[Any]:
    """Return the answers to requests that are in flight together."""
    return [answer.get(timeout=LONGEST) for answer in list(answers)]


def seed(client: Any, paths: Sequence[str], data: bytes = b"7") -> None:
    """Create nodes quickly: many in each transaction, and many transactions in flight."""
    answers = []
    for start in range(0, len(paths), 2_000):
        transaction = client.transaction()
        for path in paths[start : start + 2_000]:
            transaction.create(path, data)
        answers.append(transaction.commit_async())
    assert all(isinstance(made, str) for answer in each(answers) for made in answer)


def plant_offsets(client: Any, groups: int, topics: int, partitions: int) -> list[str]:
    """Return offsets as `group/topic/partition`, in the order of reading."""
    names = [f"g{g:04}/t{t:02}/{p}" for g in range(groups) for t in range(topics) for p in range(partitions)]
    directories = [f"/consumers/g{g:04}" for g in range(groups)]
    client.ensure_path("/consumers")
    seed(client, directories)
    seed(client, [f"{directory}/offsets" for directory in directories])
    seed(client, [f"{directory}/offsets/t{t:02}" for directory in directories for t in range(topics)])
    seed(client, ["/consumers/{}/offsets/{}".format(*name.split("/", 1)) for name in names])
    return names


def shown(found: Iterable[object]) -> list[str]:
    """Offsets in the format of `plant_offsets`."""
    return [f"{o.group}/{o.at}" if isinstance(o, CommittedOffset) else repr(o) for o in found]


def data(found: Iterable[Node | ForbiddenNode | None]) -> list[bytes | None]:
    return [node.data if isinstance(node, Node) else None for node in found]


def findings(registry: Registry, *groups: str, **options: Any) -> list[Finding]:
    return [finding for checkup in registry.check(groups or None, **options) for finding in checkup.findings]


def the(found: list[Finding], code: str) -> Finding:
    [finding] = [finding for finding in found if finding.code == code]
    return finding


# Session files


def kept(file: Path) -> Any:
    """The session in the file."""
    return json.loads(file.read_bytes())


def kept_session(file: Path) -> int | None:
    text = kept(file)["session"]
    return None if text is None else SessionCredentials.load(text).session_id


def claimed(registry: Registry) -> int | None:
    """Register and claim. Return the session of the claim."""
    member(registry).claim(P0)
    return registry.session_id


def holder(raw: Any) -> int:
    return int(raw.get(OWNER)[1].ephemeralOwner)


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed after the test."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


# Watches and threads


def told(watch: Watch) -> Change:
    change = watch.next(timeout=LONGEST)
    assert change is not None, "nothing was told"
    return change


def told_many(watch: Watch, count: int) -> list[Change]:
    return [told(watch) for _ in range(count)]


def seen(change: Change) -> tuple[str, str]:
    return str(change.kind), change.path


def run_together(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Call all at once, each in its own thread. Return the results or errors."""
    found: list[object] = [None] * len(calls)

    def run(number: int, call: Callable[[], object]) -> None:
        found[number] = attempt(call)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()
    return found


@contextmanager
def no_thread_stays() -> Iterator[None]:
    """Assert that every thread started in the block ends soon after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(LONGEST)
        assert not thread.is_alive(), thread


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[list[object]]:
    """Call it in a thread during the block. The list then contains its result or error."""
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(attempt(call)))
    thread.start()
    yield outcome
    thread.join(LONGEST)
    assert not thread.is_alive()
