"""Every kind of transaction and node, and the files of a server killed under load, equal its state after a restart."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import write_buffer, write_string
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.datadir.small_directories import tree_in_files, tree_on_server, under_load
from tests.lasting import lasting_client, through_restarts
from tests.waiting import eventually
from zkgroups.core.znodes.paths import Part
from zkgroups.datadir import nodes
from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import ZooKeeperServer, missing
from zkgroups.zookeeper.requests.bulk_read import Block

pytestmark = pytest.mark.zookeeper
CONTAINER, CREATE_CONTAINER, TTL, CREATE_TTL = 4, 19, 5, 21


class Special(namedtuple("Special", "path data kind lives_ms")):
    """Create a container node, or a node with a time to live."""

    @property
    def type(self) -> int:
        return CREATE_TTL if self.lives_ms else CREATE_CONTAINER

    def serialize(self) -> bytearray:
        written = bytearray(write_string(self.path) + write_buffer(self.data) + pack(">i", 1))
        written += pack(">i", 31) + write_string("world") + write_string("anyone") + pack(">i", self.kind)
        return written + (pack(">q", self.lives_ms) if self.lives_ms else b"")

    def deserialize(self, answer: bytes, _offset: int) -> bytes:
        return answer


def special(client: Any, path: str, *, lives_ms: int = 0) -> None:
    answer = client.handler.async_result()
    client._call(Special(path, b"5", TTL if lives_ms else CONTAINER, lives_ms), answer)
    answer.get(timeout=30)


def write(client: Any, other: Any, root: str) -> None:
    """Write every kind of change that all releases support."""
    for path in (
        "a/ids",
        "a/owners/t",
        "a/offsets/t",
        "a/offsets/u",
        "offsets only/offsets/t",
        "empty",
        "gone/offsets/t",
    ):
        client.ensure_path(f"{root}/{path}")
    offsets = {f"{root}/a/offsets/t/{name}": b"7" for name in ("0", "10", "2", "x", "007", "größe")}
    for path, data in offsets.items():
        client.create(path, data)
    client.create(f"{root}/a/offsets/t/2/deeper", b"not ours")
    client.create(f"{root}/a/offsets/u/0", b"x" * 300_000)
    client.create(f"{root}/offsets only/offsets/t/0", None)
    client.create(f"{root}/gone/offsets/t/0", b"1")
    client.delete(f"{root}/gone", recursive=True)
    client.set(f"{root}/a/offsets/t/10", b"8")
    client.set_acls(f"{root}/a/offsets/t/10", [make_digest_acl("ops", "secret", all=True), *OPEN_ACL_UNSAFE])
    client.delete(f"{root}/a/offsets/t/0")
    client.create(f"{root}/a/offsets/t/0", b"again")
    for name in ("b'u'/1-0", "u/0", "t/3"):
        other.create(f"{root}/a/owners/{name}", b"other", ephemeral=True, makepath=True)
    other.create(f"{root}/a/ids/other", b"{}", ephemeral=True)
    client.set(f"{root}/a/ids/other", b"changed")
    client.create(f"{root}/a/ids/me", b"{}", ephemeral=True)
    failed = client.transaction()
    failed.set_data(f"{root}/a/offsets/t/10", b"never")
    failed.create(f"{root}/a/ids/me", b"never")
    assert any(isinstance(result, KazooException) for result in failed.commit())
    with pytest.raises(NoNodeError):
        client.set(f"{root}/a/offsets/t/99", b"never")
    both = client.transaction()
    both.check(f"{root}/a/ids/me", 0)
    both.set_data(f"{root}/a/offsets/t/10", b"9")
    both.delete(f"{root}/a/offsets/t/x")
    both.create(f"{root}/a/offsets/t/11", b"11")
    both.create(f"{root}/a/owners/t/11", b"me", ephemeral=True)
    both.commit()
    other.stop()


@pytest.mark.parametrize("release", ["3.4.14", "3.5.10", None], ids=["3.4", "3.5", "3.9"])
def test_all_kinds_of_nodes_and_changes_equal_those_of_the_server(tmp_path: Path, release: str | None) -> None:
    try:
        extended = ("-Dzookeeper.extendedTypesEnabled=true",)
        server = ZooKeeperServer(data_dir=tmp_path, release=release, jvm_options=extended).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))
    with server:
        with lasting_client(server.address) as client, lasting_client(server.address) as other:
            write(client, other, "/consumers")
            if release is None:  # before 3.5.3 they must be enabled
                special(client, "/consumers/a/offsets/t/100")
                special(client, "/consumers/a/offsets/t/101", lives_ms=10**6)
            server.kill()
        from_nothing = tree_in_files(tmp_path)
        server.start()
        assert from_nothing == tree_on_server(server.address)
        with lasting_client(server.address) as client, lasting_client(server.address) as other:
            client.delete("/consumers", recursive=True)
            write(client, other, "/kafka/consumers")
            server.kill()
        found = tree_in_files(tmp_path, chroot="/kafka")
        server.start()
        assert found == tree_on_server(f"{server.address}/kafka")
        assert tree_in_files(tmp_path) == tree_on_server(server.address) == {}
    assert {name for place, name in found if place.group == "a" and place.topic == "t"} >= {"0", "007", "größe", "11"}
    assert sum(place.part is Part.OWNERS for place, _ in found) == 1


@pytest.mark.parametrize("release", ["3.5.10", None], ids=["3.5", "3.9"])
def test_ephemeral_nodes_of_a_snapshot_are_deleted_when_their_session_closes(
    tmp_path: Path, release: str | None
) -> None:
    """Before 3.6 the log does not list those nodes."""
    with ZooKeeperServer(data_dir=tmp_path, release=release) as server:
        hosts = through_restarts(server.address)
        stays, goes = KazooClient(hosts, timeout=20.0), KazooClient(hosts, timeout=20.0)
        for client in (stays, goes):
            client.start()
        stays.create("/consumers/g/ids/stays", b"{}", ephemeral=True, makepath=True)
        goes.create("/consumers/g/ids/goes", b"{}", ephemeral=True)
        server.restart()  # writes a snapshot
        for client in (goes, stays):
            assert client.get_children("/consumers/g/ids")
        goes.stop()
        stays.set("/consumers/g/ids/stays", b"[]")
        server.kill()
        for client in (goes, stays):
            client.stop()
            client.close()
        found = tree_in_files(tmp_path)
        server.start()
        assert found == tree_on_server(server.address)
    assert [name for _, name in found] == ["stays"]


def test_owners_of_a_group_come_before_its_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_IN_MEMORY", 1000)
    with ZooKeeperServer(data_dir=tmp_path) as server:
        with lasting_client(server.address) as client:
            # With so many other nodes, the offsets come first in the snapshot.
            for name in (*"abcdefgh", "owners/t", "offsets/t", "offsets/u"):
                client.ensure_path(f"/consumers/g/{name}")
            for number in range(300):
                client.create(f"/consumers/g/offsets/{'tu'[number % 2]}/{number}", b"5")
            client.create("/consumers/g/owners/t/0", b"me", ephemeral=True)
            server.restart()
            client.create("/consumers/g/owners/t/2", b"me", ephemeral=True)
            client.create("/consumers/g/offsets/t/1000", b"5")
            server.kill()
        data = DataDir(str(tmp_path))
        blocks: list[Block[Any]] = list(data.groups(data.state(), [Part.OWNERS, Part.OFFSETS]).blocks())
        parts = [block.parts[0].key.part for block in blocks for _ in range(block.count)]
        assert parts == [Part.OWNERS] * 2 + [Part.OFFSETS] * 301
        server.start()
        assert tree_in_files(tmp_path) == tree_on_server(server.address)


# Under load


OFTEN = ("-Dzookeeper.snapCount=400", "-Dzookeeper.preAllocSize=512")
GZIP, SNAPPY = (f"-Dzookeeper.snapshot.compression.method={method}" for method in ("gz", "snappy"))


def started(folder: Path, release: str | None = None, *options: str) -> ZooKeeperServer:
    """A server that writes snapshots all the time."""
    try:
        return ZooKeeperServer(data_dir=folder, release=release, jvm_options=(*OFTEN, *options)).start()
    except MissingDependencyError as error:
        missing("zookeeper", str(error))


@pytest.mark.parametrize(
    ("release", "options"),
    [("3.4.14", ()), (None, ()), (None, (SNAPPY,))],
    ids=["3.4", "3.9", "3.9 snappy"],
)
def test_files_of_a_killed_server_equal_its_state_after_the_restart(
    tmp_path: Path, release: str | None, options: tuple[str, ...]
) -> None:
    with started(tmp_path / "data", release, *options) as server:
        with under_load(server) as writers:
            assert eventually(lambda: sum(writer.written for writer in writers) > 2000)
            # A server that is too busy to begin another snapshot leaves it out.
            assert eventually(lambda: len(snapshots(tmp_path / "data")) > 2)
            server.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        found = tree_in_files(tmp_path / "copy")
        server.start(timeout=60)
        assert found == tree_on_server(server.address)
    assert {place.part for place, _ in found} == {"ids", "owners", "offsets"}
    assert len(snapshots(tmp_path / "copy")) > 2


def snapshots(folder: Path) -> list[Path]:
    return list((folder / "version-2").glob("snapshot.*"))
