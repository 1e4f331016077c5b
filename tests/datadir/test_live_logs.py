"""Logs of running, killed, purged and restarted servers, as an operator finds them."""

from __future__ import annotations

import socket
from functools import partial
from itertools import groupby
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from kazoo.exceptions import KazooException

from tests.datadir.small_directories import named, server_of, under_load
from tests.datadir.test_replay import GZIP, SNAPPY, special
from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups.core.history.events import Commit, MemberChange, OwnerChange
from zkgroups.core.history.tracker import NEVER
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import GapReason, HistoryItem, HistoryReader, LogGap
from zkgroups.testing import ZooKeeperEnsemble, expire_session

pytestmark = pytest.mark.zookeeper
OFTEN = ("-Dzookeeper.snapCount=400", "-Dzookeeper.preAllocSize=512")
RELEASES = pytest.mark.parametrize("release", ["3.4.14", None], ids=["3.4", "3.9"])
P0 = "/consumers/g/offsets/t/0"


def read(folder: Path) -> list[HistoryItem]:
    return list(HistoryReader(DataDir(str(folder))).items())


def test_logs_that_are_being_written_are_read_up_to_a_complete_transaction(tmp_path: Path) -> None:
    """Each reading is a beginning of the next one, whatever the server is writing."""
    found: list[list[HistoryItem]] = []
    with server_of(tmp_path, None, *OFTEN) as server, under_load(server) as writers:
        while sum(writer.written for writer in writers) < 3000 or len({len(each) for each in found}) < 4:
            found.append(read(tmp_path))
        server.kill()
    whole = read(tmp_path)
    assert not any(isinstance(item, LogGap) for item in whole)
    assert all(each == whole[: len(each)] for each in found)


@RELEASES
def test_a_session_is_closed_by_its_client_or_expired_by_the_server(tmp_path: Path, release: str | None) -> None:
    with server_of(tmp_path, release) as server, lasting_client(server.address) as watching:
        watching.ensure_path("/consumers/g/ids")
        with lasting_client(server.address) as closes:
            closes.create("/consumers/g/ids/closes", b"{}", ephemeral=True)
        create_and_die(server.address, "/consumers/g/ids/dies")
        assert eventually(lambda: watching.exists("/consumers/g/ids/dies") is None)
        with lasting_client(server.address) as ended:
            ended.create("/consumers/g/ids/ended", b"{}", ephemeral=True)
            expire_session(ended)
            assert eventually(lambda: watching.exists("/consumers/g/ids/ended") is None)
    changes = [item for item in read(tmp_path) if isinstance(item, MemberChange)]
    assert {(change.member.id, change.action.value) for change in changes} == {
        ("closes", "registered"),
        ("closes", "closed"),
        ("dies", "registered"),
        ("dies", "expired"),
        ("ended", "registered"),
        ("ended", "closed"),  # by a second connection, which an administrator made
    }


def create_and_die(hosts: str, path: str) -> None:
    """Create an ephemeral node in a session whose client then sends nothing more. The server expires it."""
    host, _, port = hosts.partition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rwb") as stream:
        name, acl = path.encode(), pack(">iii", 1, 31, 5) + b"world" + pack(">i", 6) + b"anyone"
        requests = (
            pack(">iqiqi16s", 0, 0, 4000, 0, 16, bytes(16)),
            pack(">iii", 1, 1, len(name)) + name + pack(">i", 2) + b"{}" + acl + pack(">i", 1),
        )
        for request in requests:
            stream.write(pack(">i", len(request)) + request)
            stream.flush()
            assert stream.read(int.from_bytes(stream.read(4)))


@RELEASES
def test_every_kind_of_transaction_is_read(tmp_path: Path, release: str | None) -> None:
    """Failed and successful multi transactions, changed ACLs, and paths that only look like those of groups."""
    with server_of(tmp_path, release) as server, lasting_client(server.address) as client:
        session = client.client_id[0]
        client.create(P0, b"1", makepath=True)
        client.create("/other/consumers/g/offsets/t/0", b"7", makepath=True)
        client.create("/consumers/g/offsets/t/0/deeper", b"7")
        client.set_acls("/consumers/g/offsets/t/0", client.get_acls("/consumers/g/offsets/t/0")[0])
        client.ensure_path("/consumers/g/owners/t")
        failed = client.transaction()
        failed.set_data(P0, b"99")
        failed.create(P0, b"99")
        failed.commit()
        both = client.transaction()
        both.create("/consumers/g/owners/t/0", b"me", ephemeral=True)
        both.check(P0, 0)
        both.set_data(P0, b"2")
        both.set_data(P0, b"3")
        both.delete("/consumers/g/owners/t/0")
        both.create("/consumers/g/offsets/t/1", b"0")
        both.set_data("/consumers/g/offsets/t/1", b"4")
        both.commit()
        client.set(P0, b"5")
    commits = [item for item in read(tmp_path) if isinstance(item, Commit)]
    found = [(each.partition, each.action.value, each.before, each.offset, each.version, each.gap) for each in commits]
    assert found == [
        (0, "created", None, 1, 0, False),
        (0, "committed", 1, 3, 2, False),
        (1, "created", None, 4, 1, False),
        (0, "committed", 3, 5, 3, False),
    ]
    assert {commit.session for commit in commits} == {session}
    assert [commit.is_of_owner for commit in commits] == [False, True, False, False]
    owners = [item for item in read(tmp_path) if isinstance(item, OwnerChange)]
    assert [(each.action.value, each.owner.id) for each in owners] == [("claimed", "me"), ("released", "me")]


def test_nodes_that_the_server_deletes_itself_are_deleted_by_no_session(tmp_path: Path) -> None:
    options = ("-Dzookeeper.extendedTypesEnabled=true", "-Dznode.container.checkIntervalMs=100")
    with server_of(tmp_path, None, *options) as server, lasting_client(server.address) as client:
        client.ensure_path("/consumers/g/offsets/t")
        special(client, P0, lives_ms=1)
        assert eventually(lambda: client.exists(P0) is None)
    created, deleted = (item for item in read(tmp_path) if isinstance(item, Commit))
    assert (created.offset, created.session == 0) == (5, False)
    assert (deleted.action, deleted.session, deleted.before) == ("deleted", 0, 5)


@pytest.mark.parametrize("options", [(GZIP,), (SNAPPY,)], ids=["gzip", "snappy"])
def test_compressed_snapshots_show_what_existed_before_the_first_log(tmp_path: Path, options: tuple[str, ...]) -> None:
    options = ("-Dzookeeper.snapCount=64", *options)
    with server_of(tmp_path, None, *options) as server, lasting_client(server.address) as client:
        client.ensure_path("/consumers/g/ids")
        client.ensure_path("/consumers/g/owners/t")
        client.create("/consumers/g/ids/me", b"{}", ephemeral=True)
        client.create("/consumers/g/owners/t/0", b"me", ephemeral=True)
        client.create(P0, b"0", makepath=True)
        for number in range(1, 400):
            client.set(P0, b"%d" % number)
        server.kill()
        purge(tmp_path, keep=3)  # the server begins a snapshot a moment after the log that follows it
        gap, *commits = read(tmp_path)
    assert isinstance(gap, LogGap)
    assert (gap.reason, gap.complete_from < NEVER) == (GapReason.PURGED, True)
    assert len(commits) > 60
    for commit in commits:
        assert isinstance(commit, Commit)
        assert commit.is_of_owner
        assert commit.instance is not None
        assert commit.instance.id == "me"
        assert commit.offset == (commit.before or 0) + 1 or commit is commits[0]


def purge(folder: Path, *, keep: int) -> None:
    """Delete files as ZooKeeper's own purge does."""
    snapshots = sorted((folder / "version-2").glob("snapshot.*"), key=named)
    logs = sorted((folder / "version-2").glob("log.*"), key=named)
    oldest = named(snapshots[-keep])
    first = max(named(log) for log in logs if named(log) <= oldest)
    for file in (*snapshots[:-keep], *(log for log in logs if named(log) < first)):
        file.unlink()


# Ensembles


def test_any_server_of_an_ensemble_has_the_history_of_several_leaders() -> None:
    """Except a server that has missed transactions while it was down, and got a snapshot instead."""
    with ZooKeeperEnsemble() as ensemble:
        with lasting_client(ensemble.address) as client:
            client.create(P0, b"0", makepath=True)
            for number in range(1, 4):
                leader = ensemble.leader()
                leader.kill()
                assert eventually(partial(written, client, number))
                leader.start()
        assert eventually(lambda: all(is_up_to_date(read(node.data_dir)) for node in ensemble.nodes))
        histories = [read(node.data_dir) for node in ensemble.nodes]
    whole = [history for history in histories if not any(isinstance(item, LogGap) for item in history)]
    assert whole
    for history in whole:
        commits = [item for item in history if isinstance(item, Commit)]
        assert [offset for offset, _ in groupby(commit.offset for commit in commits)] == [0, 1, 2, 3]
        assert len({commit.zxid >> 32 for commit in commits}) >= 4  # a commit that was made twice may have two leaders
        assert history == whole[0]


def is_up_to_date(history: list[HistoryItem]) -> bool:
    """Return whether it has the last commit, or transactions are missing for good. A server that follows writes its log
    a moment later."""
    commits = [item for item in history if isinstance(item, Commit)]
    return any(isinstance(item, LogGap) for item in history) or (bool(commits) and commits[-1].offset == 3)


def written(client: Any, number: int) -> bool:
    """Try to commit. If the connection is lost meanwhile, the commit may be made twice."""
    try:
        client.set(P0, b"%d" % number)
    except KazooException:
        return False
    return True
