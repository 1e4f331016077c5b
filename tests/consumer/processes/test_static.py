"""Static membership: a member that returns within its session timeout, and a group that notices nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup, InstanceState, Member, MemberStats, Registry
from zkgroups.exceptions import InvalidOptionError
from zkgroups.zookeeper.session.session import context_of

pytestmark = pytest.mark.zookeeper

TOPIC: Final = "orders"
PARTITIONS: Final = 4
LONG: Final = 20.0
"""In seconds. A session timeout within which a process returns."""
CALM: Final = 100
"""So many looks in a row see the same."""
RESIDENT = """
import json, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Member, Registry
hosts, file, timeout, strategy = sys.argv[1], sys.argv[2] or None, float(sys.argv[3]), sys.argv[4]
registry = Registry.connect(hosts, session_file=file, session_timeout=timeout)
member = Member(
    registry.group("billing"), ["orders"], id="b", assignors=[strategy], partitions=lambda topic: range(4)
)
keeps = False
def go(number, frame):
    global keeps
    keeps = number == signal.SIGUSR1
    member.stop(leave=not keeps)
signal.signal(signal.SIGTERM, go)
signal.signal(signal.SIGUSR1, go)
with member:
    for generation in member.generations():
        following = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        generation.commit({at: start + 1 for at, start in following.items()})
        for at, start in following.items():
            generation.mark(at, start + 10)  # committed when it is closed, and not when it is killed
        said = {str(at): start for at, start in following.items()}
        print(json.dumps([registry.session_id, registry.resumed, generation.number, said]), flush=True)
        generation.wait()
registry.close(leave=not keeps)
"""


@dataclass(frozen=True)
class Begun:
    """A generation of the process."""

    session: int
    resumed: bool
    number: int
    starts: dict[str, int]


class Resident:
    """A member in its own process, with the id b."""

    def __init__(self, hosts: str, file: Path | str, timeout: float, strategy: str) -> None:
        command = [sys.executable, "-c", RESIDENT, hosts, str(file), str(timeout), strategy]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def begun(self) -> Begun:
        """The next generation that it begins."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return Begun(*json.loads(line))

    def having(self, number: int) -> Begun:
        """The next generation with that many partitions."""
        while len((found := self.begun()).starts) != number:
            pass
        return found

    def end(self, how: signal.Signals) -> int:
        """Send it a signal, and wait until it has ended."""
        self.process.send_signal(how)
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Resident]


@pytest.fixture
def start(zookeeper_hosts: str) -> Iterator[Start]:
    """Start b. The options are its session file, timeout and strategy."""
    with ExitStack() as stack:

        def start(file: Path | str, timeout: float = LONG, strategy: str = "range") -> Resident:
            resident = Resident(zookeeper_hosts, file, timeout, strategy)
            stack.callback(resident.close)
            return resident

        yield start


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.fixture
def other(group: Consumergroup) -> Iterator[Callable[..., Member]]:
    """Start another member in this process, which reads its group only after events."""
    with ExitStack() as stack:

        def start(id: str = "a", strategy: str = "range") -> Member:
            member = Member(
                group,
                [TOPIC],
                id=id,
                assignors=[strategy],
                partitions=lambda _topic: range(PARTITIONS),
                reconcile_every=3600.0,
            )
            return stack.enter_context(member)

        yield start


def settled(member: Member, number: int, *others: Member) -> MemberStats:
    """Wait until all have that many partitions and have been idle for a while. Return the statistics of the first."""
    members = (member, *others)

    def stats() -> list[MemberStats]:
        return [each.stats for each in members]

    def all_have() -> bool:
        return all(each.state is InstanceState.STABLE and len(each.assignment) == number for each in members)

    before, since, looks = stats(), time.monotonic(), 0

    def is_still() -> bool:
        """Events from before an answer have been delivered, too, however long anybody stood still."""
        nonlocal before, since, looks
        for each in members:
            each.group.exists()
        looks += 1
        if stats() != before or not all_have():
            before, since, looks = stats(), time.monotonic(), 0
        return looks > CALM and time.monotonic() - since > 1.0

    assert eventually(is_still)
    return before[0]


def plus(begun: Begun, number: int) -> dict[str, int]:
    return {at: start + number for at, start in begun.starts.items()}


@pytest.mark.filterwarnings("ignore::zkgroups.ShortSessionWarning")
def test_an_id_that_the_next_process_does_not_use_is_deregistered_after_the_session_timeout(
    zookeeper_hosts: str, other: Callable[..., Member], file: Path
) -> None:
    def member(registry: Registry, id: str) -> Member:
        return Member(
            registry.group("billing"),
            [TOPIC],
            id=id,
            partitions=lambda _topic: range(PARTITIONS),
            reconcile_every=0.2,
        )

    def connect() -> Registry:
        return Registry.connect(zookeeper_hosts, session_file=file, session_timeout=10.0)

    before = connect()
    left = [member(before, id) for id in ("container-1", "kept")]
    for each in left:
        each.start()
    assert eventually(lambda: all(len(each.assignment) == PARTITIONS // 2 for each in left))
    for each in left:
        each.close(leave=False)
    before.close(leave=False)
    watching, begun = other("z"), time.monotonic()
    with connect() as registry, member(registry, "container-2") as here:
        instances = registry.group("billing").instances
        assert {"container-1", "kept"} <= {each.id for each in instances()}
        with member(registry, "kept") as started_later:
            assert eventually(lambda: [each.id for each in instances()] == ["container-2", "kept", "z"])
            granted = context_of(registry).session.granted_timeout
            assert granted is not None
            assert time.monotonic() - begun >= granted
            found = [here, started_later, watching]
            assert eventually(lambda: sum(len(each.assignment) for each in found) == PARTITIONS)


@pytest.mark.parametrize("strategy", ["range", "sticky"])
def test_a_member_that_is_killed_or_closed_without_leaving_returns_repeatedly_without_a_rebalance(
    group: Consumergroup, other: Callable[..., Member], start: Start, file: Path, strategy: str
) -> None:
    a = other(strategy=strategy)
    b = start(file, strategy=strategy)
    last = b.having(2)
    before, owned = settled(a, 2), list(group.owners())
    assert not last.resumed
    for how in (signal.SIGKILL, signal.SIGUSR1, signal.SIGKILL):
        assert b.end(how) == (0 if how is signal.SIGUSR1 else -signal.SIGKILL)
        b = start(file, strategy=strategy)
        found = b.begun()
        assert (found.session, found.resumed, found.number) == (last.session, True, last.number)
        assert found.starts == plus(last, 10 if how is signal.SIGUSR1 else 1)  # marked offsets are committed by a close
        last = found
    assert settled(a, 2) == before
    assert list(group.owners()) == owned


def test_a_returning_member_releases_partitions_that_others_should_have_by_now(
    other: Callable[..., Member], start: Start, file: Path
) -> None:
    """The old process claimed more partitions than the new one should have, and the new one knows of none of these
    claims."""
    b = start(file)
    assert len(b.having(PARTITIONS).starts) == PARTITIONS
    b.end(signal.SIGKILL)
    a = other()
    assert eventually(lambda: a.stats.waits > 0)
    assert a.assignment == frozenset()
    assert start(file).having(2).resumed
    settled(a, 2)


def test_a_returning_member_with_other_topics_updates_its_registration(
    registry: Registry, zookeeper_hosts: str, file: Path
) -> None:
    with Registry.connect(zookeeper_hosts, session_file=file) as first:
        member = Member(first.group("billing"), [TOPIC], id="b", partitions=lambda _topic: range(2))
        with member:
            assert len(next(member.generations()).partitions) == 2
            member.close(leave=False)
        first.close(leave=False)
    with Registry.connect(zookeeper_hosts, session_file=file) as second:
        assert second.resumed
        with Member(second.group("billing"), ["refunds"], id="b", partitions=lambda _topic: range(2)) as member:
            assert {at.topic for at in next(member.generations()).partitions} == {"refunds"}
            assert {owner.at.topic for owner in registry.group("billing").owners()} == {"refunds"}


def test_a_member_that_keeps_its_session_needs_an_id(zookeeper_hosts: str, file: Path) -> None:
    with (
        Registry.connect(zookeeper_hosts, session_file=file) as registry,
        pytest.raises(InvalidOptionError, match="the same each time"),
    ):
        Member(registry.group("billing"), [TOPIC])
