"""Every commit that a server acknowledged is in the history once, with the right session and instance.

Members of several kinds commit about a thousand offsets per second, and go on while the server is killed and restarted.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.consumer.kazoo_go_member import KazooGoMember
from tests.consumer.nemesis import plant_topics
from tests.lasting import lasting_client, through_restarts
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.history.events import Commit
from zkgroups.core.znodes.values import Dialect
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import HistoryReader, LogGap
from zkgroups.exceptions import UnavailableError

from ..small_directories import server_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(1000)]

OFTEN = ("-Dzookeeper.snapCount=1000", "-Dzookeeper.preAllocSize=512")
SESSION = 40.0
PARTITIONS = 20
UNDER_WAY = 50
ENOUGH = 200
"""More commits than these are made by each member before the first restart, between the two, and after the last one."""

Offset = tuple[int, int]
"""A partition, and its offset."""


class Committer(threading.Thread):
    """A member of the group `id`, which owns all partitions of the topic `id` and commits until it is over."""

    dialect: Dialect

    def __init__(self, hosts: str, id: str) -> None:
        super().__init__(name=id)
        self.id, self.hosts = id, through_restarts(hosts)
        self.session: int | None = None
        self.acknowledged: list[Offset] = []
        self.over = threading.Event()


class ZkgroupsCommitter(Committer):
    """A member of zkgroups. Each of its transactions has an offset for every partition."""

    dialect = Dialect.ZKGROUPS

    def run(self) -> None:
        orders = [TopicPartition(self.id, number) for number in range(PARTITIONS)]
        with (
            Registry.connect(self.hosts, session_timeout=SESSION) as registry,
            registry.group(self.id).instance(self.id) as instance,
        ):
            instance.register([self.id])
            self.session = instance.session_id
            with instance.claim_many(orders) as claims:
                offset = 0
                while not self.over.is_set():
                    offset += 1
                    with suppress(UnavailableError):
                        claims.commit(dict.fromkeys(claims, offset))
                        self.acknowledged += [(at.partition, offset) for at in claims]


class PlainCommitter(Committer):
    """A plain client that registers like a Scala member. It does not wait for an answer before its next commit."""

    dialect = Dialect.SCALA

    def run(self) -> None:
        with lasting_client(self.hosts) as client:
            self._join(client)
            under_way: deque[tuple[Offset, object]] = deque()
            number = 0
            while not self.over.is_set():
                number += 1
                partition, offset = number % PARTITIONS, number
                path = f"/consumers/{self.id}/offsets/{self.id}/{partition}"
                under_way.append(((partition, offset), client.set_async(path, b"%d" % offset)))
                while len(under_way) > UNDER_WAY:
                    self._finish(*under_way.popleft())
            for each in under_way:
                self._finish(*each)

    def _join(self, client: KazooClient) -> None:
        registered = {"version": 1, "subscription": {self.id: 1}, "pattern": "static", "timestamp": "1795255170109"}
        root, owner = f"/consumers/{self.id}", f"{self.id}-0".encode()
        client.create(f"{root}/ids/{self.id}", json.dumps(registered).encode(), ephemeral=True, makepath=True)
        for number in range(PARTITIONS):
            client.create(f"{root}/owners/{self.id}/{number}", owner, ephemeral=True, makepath=True)
            client.create(f"{root}/offsets/{self.id}/{number}", b"0", makepath=True)
        self.session = client.client_id[0]

    def _finish(self, offset: Offset, answer: object) -> None:
        """Wait for an answer. After a lost connection, it is unknown whether the offset was written."""
        try:
            answer.get()  # type: ignore[attr-defined]
        except KazooException:
            self.over.wait(0.01)
        else:
            self.acknowledged.append(offset)


class KazooGoCommitter:
    """A member of kazoo-go, which owns one partition."""

    dialect = Dialect.KAZOO_GO

    def __init__(self, member: KazooGoMember, registry: Registry) -> None:
        self.member = member
        self.id = member.id
        [instance] = registry.group("go").instances()
        self.session = instance.session

    @property
    def acknowledged(self) -> list[Offset]:
        return [(0, int(line.rpartition("@")[2])) for line in self.member.committed]


@contextmanager
def running(thread: Committer) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.over.set()
        thread.join()


def wait_for_commits(committers: Sequence[Committer | KazooGoCommitter]) -> None:
    """Wait until each has made some more commits."""
    before = [len(each.acknowledged) for each in committers]

    def have_continued() -> bool:
        return all(len(each.acknowledged) > old + ENOUGH for each, old in zip(committers, before, strict=True))

    assert eventually(have_continued), before


def commits_by_session(folder: Path) -> dict[int, list[Commit]]:
    found = defaultdict(list)
    for item in HistoryReader(DataDir(str(folder))).items():
        assert not isinstance(item, LogGap)
        if isinstance(item, Commit) and item.offset:
            found[item.session].append(item)
    return found


def assert_each_is_there_once(acknowledged: Iterable[Offset], commits: Iterable[Commit]) -> None:
    written = Counter((commit.partition, commit.offset) for commit in commits)
    wrong = {offset: written[offset] for offset in acknowledged if written[offset] != 1}
    assert not wrong


@pytest.mark.parametrize("release", ["3.4.14", None], ids=["3.4", "3.9"])
def test_every_acknowledged_commit_is_there_once_with_its_session_and_instance(
    tmp_path: Path, release: str | None
) -> None:
    with server_of(tmp_path, release, *OFTEN) as server, ExitStack() as stack:
        threads = [ZkgroupsCommitter(server.address, "ours"), PlainCommitter(server.address, "plain")]
        plant_topics(server.address, {"ours": PARTITIONS, "go": 1})
        go = stack.enter_context(KazooGoMember(server.address, "go", "go", busy=True))
        with Registry.connect(server.address) as registry:
            committers = [*threads, KazooGoCommitter(go, registry)]
        for thread in threads:
            stack.enter_context(running(thread))
        wait_for_commits(committers)
        for _ in range(2):
            server.kill()
            server.start()
            wait_for_commits(committers)
        for thread in threads:
            thread.over.set()
        go.leave()
        for thread in threads:
            thread.join()
        acknowledged = [each.acknowledged for each in committers]
        server.kill()
    found = commits_by_session(tmp_path)
    for each, offsets in zip(committers, acknowledged, strict=True):
        assert each.session is not None
        commits = found.pop(each.session)
        assert_each_is_there_once(offsets, commits)
        instances = {commit.instance for commit in commits}
        assert {(instance.id, instance.dialect) for instance in instances if instance} == {(each.id, each.dialect)}
        assert all(commit.is_of_owner and commit.instance and not commit.gap for commit in commits)
    assert not found
