"""`zkgroups history`: what happened on a server, read from its files."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from zkgroups_cli.history import history

from zkgroups import Registry, TopicPartition
from zkgroups.core.session_lifetime import session_hex
from zkgroups.testing import ZooKeeperServer

from ..datadir.small_directories import named, records, written
from ..lasting import lasting_client
from ..zookeeper.events import expire
from .running import Ended, run
from .test_help import FINE, examples

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BEN = "billing_app-7-1795255170109-ab12cd34"
"""A Scala member."""
REGISTRATION = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795255170109"}'


@dataclass(frozen=True)
class Story:
    """The data directory of a server, and the sessions of those who used it."""

    folder: Path
    anna: str
    ben: str

    def run(self, *arguments: Any) -> Ended:
        return run("history", *arguments, "--from-data-dir", self.folder, "--chroot", "/kafka")

    def rows(self, *arguments: Any, code: int = 0) -> list[dict[str, Any]]:
        ended = self.run(*arguments, "-o", "jsonl")
        assert ended.code == code, ended.err
        return [json.loads(line) for line in ended.lines]


LOG_SESSIONS = ("-Dorg.apache.logging.log4j.simplelog.org.apache.zookeeper.server.ZooKeeperServer.level=DEBUG",)
"""Since 3.5, the server logs addresses only at this level."""

OF_3_4 = (
    "2026-11-29 12:51:07,903 [myid:] - INFO  [SyncThread:0:ZooKeeperServer@694] - Established session SESSION with "
    "negotiated timeout 10000 for client /10.0.0.7:33116\n"
)
OF_3_9 = (
    "2026-11-29 12:52:06,347 [myid:1] - DEBUG [SyncThread:1:o.a.z.s.ZooKeeperServer@1138] - Established session "
    "SESSION with negotiated timeout 10000 for client job.example.org/[0:0:0:0:0:0:0:1]:53858\n"
)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Anna, a member of zkgroups, commits. Her session expires. Ben, a Scala member, takes over, and goes back.

    The server is running.
    """
    folder = tmp_path_factory.mktemp("story") / "data"
    with ZooKeeperServer(data_dir=folder, jvm_options=LOG_SESSIONS) as server:
        with lasting_client(server.address) as client:
            client.ensure_path("/kafka/brokers/ids")
        with Registry.connect(f"{server.address}/kafka") as registry:
            group = registry.group("billing")
            group.create()
            anna = session_hex(registry.session_id)
            me = group.instance("anna")
            me.register(["orders"])
            with me.claim_many([P0, P1]) as claims:
                claims.commit({P0: 100, P1: 7})
                claims[P0].commit(200)
            me.claim(P0)
            expire(registry)
            registry.group("other").offsets.set(P0, 1)
        with lasting_client(f"{server.address}/kafka") as client:
            ben = session_hex(client.client_id[0])
            client.create(f"/consumers/billing/ids/{BEN}", REGISTRATION, ephemeral=True)
            client.create("/consumers/billing/owners/orders/0", f"{BEN}-0".encode(), ephemeral=True)
            client.set("/consumers/billing/offsets/orders/0", b"150")
            client.set("/consumers/billing/offsets/orders/1", b"x")
            client.delete("/consumers/other/offsets/orders/0")
        yield Story(folder, anna, ben)


@pytest.mark.parametrize(
    "line", dict.fromkeys(line for _, lines in examples(history, everything=True) for line in lines)
)
def test_the_examples_of_the_help_work(story: Story, line: str) -> None:
    for shown, real in (
        ("/var/lib/zookeeper", str(story.folder)),
        ("/backup/zookeeper", str(story.folder)),
        ("orders 3", "orders 1"),
        ("0x10000a1b2c3d4e5", story.anna),
    ):
        line = line.replace(shown, real)
    _, *arguments = shlex.split(line)
    ended = run(*arguments, *(() if "--chroot" in arguments else ("--chroot", "/kafka")))
    assert ended.code in FINE, ended.err


def test_the_log_of_the_server_names_the_client_of_each_session(story: Story, tmp_path: Path) -> None:
    log = story.folder / "server.log"
    for command, code in (("offsets", 0), ("owners", 0), ("members", 0), ("groups", 0), ("check", 10)):
        rows = story.rows(command, "--server-log", log, code=code)
        assert rows
        assert all(row["session"] is None or row["address"].startswith("127.0.0.1:") for row in rows)
    assert "SESSION            ADDRESS" in story.run("offsets", "other", "--server-log", log).lines[0]
    old, new = tmp_path / "zookeeper.log", tmp_path / "zookeeper.log.1.gz"
    old.write_text(OF_3_4.replace("SESSION", story.anna) + "Established session 0x1 with nothing\n")
    new.write_bytes(gzip.compress((OF_3_9.replace("SESSION", story.ben) * 2).encode()))
    found = story.rows("offsets", "--server-log", old, "--server-log", new)
    addresses = {row["session"]: row["address"] for row in found}
    assert (addresses.pop(story.anna), addresses.pop(story.ben)) == ("10.0.0.7:33116", "[0:0:0:0:0:0:0:1]:53858")
    assert set(addresses.values()) == {None}
    old.write_text("starting\n")
    assert "only at level DEBUG" in story.run("offsets", "--server-log", old).err
    new.write_bytes(gzip.compress(b"starting\n" * 99)[:-9])
    for file in (new, tmp_path / "missing"):
        refused = story.run("offsets", "--server-log", file)
        assert (refused.code, refused.out, f"{file} cannot be read" in refused.err) == (2, "", True)


def test_each_command_shows_its_events_with_the_one_who_caused_them(story: Story) -> None:
    """tests/core/test_history.py shows which events there are."""
    found = [(row["partition"], row["event"], row["before"], row["offset"]) for row in story.rows("offsets", "billing")]
    assert found == [
        (0, "created", None, 100),
        (1, "created", None, 7),
        (0, "committed", 100, 200),
        (0, "committed", 200, 150),
        (1, "committed", 7, None),
    ]
    *_, back, bad = story.rows("offsets", "billing")
    assert (back["instance"], back["session"], back["host"], back["dialect"]) == (BEN, story.ben, "app-7", "scala")
    assert (back["owner"], back["owner_session"]) == (f"{BEN}-0", story.ben)
    assert (back["complete"], back["marks"]) == (True, ["went-back"])
    assert (bad["marks"], bad["problem"]) == (["unowned"], "not a decimal number")
    owners = [(row["partition"], row["event"], row["owner"], row["session"]) for row in story.rows("owners", "billing")]
    assert owners[3:] == [
        (1, "released", "anna", story.anna),
        (0, "claimed", "anna", story.anna),
        (0, "closed", "anna", story.anna),
        (0, "claimed", f"{BEN}-0", story.ben),
        (0, "closed", f"{BEN}-0", story.ben),
    ]
    *_, registered, closed = story.rows("members", "billing")
    assert (registered["event"], closed["event"], registered["instance"]) == ("registered", "closed", BEN)
    assert registered["subscription"] == {"pattern": "static", "streams": {"orders": 2}}
    assert (registered["member_session"], registered["by"]) == (story.ben, BEN)
    assert "orders x2" in story.run("members", "billing", "-o", "wide").out
    created = [(row["event"], row["group"]) for row in story.rows("groups")]
    assert created == [("created", "billing"), ("created", "other")]


def test_groups_a_topic_a_session_and_a_period_are_chosen(story: Story) -> None:
    def offsets(*arguments: str) -> list[Any]:
        return [row["offset"] for row in story.rows("offsets", *arguments)]

    assert {row["group"] for row in story.rows("offsets")} == {"billing", "other"}
    assert {row["group"] for row in story.rows("offsets", "--groups", "oth.*")} == {"other"}
    assert offsets("billing", "orders", "0") == [100, 200, 150]
    assert offsets("billing", "--session", story.ben) == [150, None]
    _, both, third, *_ = story.rows("offsets", "billing", "orders")
    assert offsets("billing", "--since", hex(both["zxid"]), "--until", hex(third["zxid"])) == [100, 7, 200]
    assert offsets("billing", "--until", hex(both["zxid"])) == [100, 7]
    assert len(offsets("billing", "--since", "1h")) == 5
    assert offsets("billing", "--until", "1h") == []
    nothing = story.run("offsets", "billing", "refunds")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No commits were found.\n")


def test_check_finds_violations_and_ignores_some(story: Story) -> None:
    found = [(row["rule"], row["group"], row["dialect"], row["instance"]) for row in story.rows("check", code=10)]
    assert found == [
        ("commit-unowned", "other", None, None),
        ("went-back", "billing", "scala", BEN),
        ("commit-unowned", "billing", "scala", BEN),
        ("malformed", "billing", "scala", BEN),
        ("deleted", "other", None, None),
    ]
    ended = story.run("check")
    assert ended.err == "Violations: 5 (scala: 3, not registered: 2).\n"
    assert f"session {story.ben} committed 150 after 200" in ended.out
    ignored = ("--ignore", "commit-unowned", "--ignore", "malformed", "--ignore", "deleted")
    assert [row["rule"] for row in story.rows("check", *ignored, code=10)] == ["went-back"]
    ended = story.run("check", "--until", hex(story.rows("groups")[1]["zxid"] - 1))
    assert (ended.code, ended.out, ended.err) == (0, "", "No violations found.\n")


@pytest.mark.parametrize("command", ["offsets", "owners", "members", "groups", "check"])
def test_an_unknown_group_chroot_or_folder_is_not_found(story: Story, tmp_path: Path, command: str) -> None:
    """Above all, it is not reported that there are no violations."""
    for arguments, said in (
        ((story.folder,), f"no group appears in {story.folder}: check --chroot"),
        ((story.folder, "--chroot", "/elsewhere"), f"no group appears in {story.folder}/elsewhere: check --chroot"),
        ((story.folder, "--chroot", "/kafka", "--groups", "nobody.*"), "no group that matches appears in"),
        ((tmp_path / "nowhere",), "does not exist"),
        ((tmp_path,), "is not a ZooKeeper data directory"),
    ):
        ended = run("history", command, "--from-data-dir", *arguments)
        assert (ended.code, ended.out, said in ended.err, "No " in ended.err) == (3, "", True, False), ended
    if command == "offsets":
        ended = story.run("offsets", "biling")
        assert (ended.code, "group 'biling' does not appear in" in ended.err) == (3, True)


# Missing transactions


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed, with several logs."""
    folder = tmp_path_factory.mktemp("several") / "data"
    server = ZooKeeperServer(data_dir=folder, jvm_options=("-Dzookeeper.snapCount=32", "-Dzookeeper.preAllocSize=64"))
    with server:
        with lasting_client(server.address) as client:
            client.create("/consumers/g/offsets/t/0", b"0", makepath=True)
            for number in range(1, 200):
                client.set("/consumers/g/offsets/t/0", b"%d" % number)
        server.kill()
    return folder


@pytest.fixture
def logs(several: Path, tmp_path: Path) -> list[Path]:
    """The logs of a copy of the directory, oldest first."""
    shutil.copytree(several, tmp_path / "data")
    found = sorted((tmp_path / "data" / "version-2").glob("log.*"), key=named)
    assert len(found) > 4
    return found


def offsets(folder: Path, *arguments: str) -> tuple[Ended, list[int]]:
    ended = run("history", "offsets", "g", "--from-data-dir", folder, *arguments, "-o", "jsonl")
    return ended, [json.loads(line)["offset"] for line in ended.lines]


def test_purged_logs_are_reported_and_are_an_error_only_if_they_were_asked_for(
    logs: list[Path], tmp_path: Path
) -> None:
    for log in logs[:2]:
        log.unlink()
    first = named(logs[2])
    ended, found = offsets(tmp_path / "data")
    assert ended.code == 0
    assert f"the logs begin with transaction 0x{first:x} of " in ended.err
    assert ended.err.endswith(": older logs were deleted.\n")
    assert found == list(range(found[0], 200))
    ended, same = offsets(tmp_path / "data", "--since", hex(first - 1))
    assert (ended.code, same) == (9, found)
    assert f"zkgroups: the logs begin with transaction 0x{first:x}" in ended.err
    ended, same = offsets(tmp_path / "data", "--since", hex(first))
    assert (ended.code, ended.err, same) == (0, "", found)


def test_damaged_torn_and_missing_logs_are_reported(logs: list[Path], tmp_path: Path) -> None:
    last = logs[-1].read_bytes()
    logs[-1].write_bytes(last[: written(last) - 5])
    ended, found = offsets(tmp_path / "data")
    assert (ended.code, found) == (0, list(range(199 if found[-1] == 198 else 200)))
    assert ended.err == f"{logs[-1]} ends within a record, which is left out.\n"
    logs[-1].write_bytes(last)
    data, at = list(records(logs[2]))[5]
    logs[2].write_bytes(data[: at + 40] + bytes([data[at + 40] ^ 1]) + data[at + 41 :])
    ended, found = offsets(tmp_path / "data")
    assert (ended.code, found[-1], len(found) < 200) == (9, 199, True)
    assert f"{logs[2]}: a record has a wrong checksum" in ended.err
    (tmp_path / "logs" / "version-2").mkdir(parents=True)
    for log in logs:
        log.rename(tmp_path / "logs" / "version-2" / log.name)
    ended, _ = offsets(tmp_path / "data")
    assert (ended.code, "has no transaction logs: if the server has a dataLogDir" in ended.err) == (3, True)
    assert offsets(tmp_path / "data", "--data-log-dir", str(tmp_path / "logs"))[0].code == 9


def test_a_large_table_is_drawn_in_pages_with_one_header(tmp_path: Path) -> None:
    with ZooKeeperServer(data_dir=tmp_path) as server, lasting_client(server.address) as client:
        client.create("/consumers/g/offsets/t/0", b"0", makepath=True)
        for answer in [client.set_async("/consumers/g/offsets/t/0", b"%d" % number) for number in range(1, 2500)]:
            answer.get()
        lines = run("history", "offsets", "g", "--from-data-dir", tmp_path).lines
    assert len(lines) == 2501
    assert sum(line.startswith("TIME") for line in lines) == 1
    assert {line.index("0x") for line in lines[1:]} == {lines[0].index("ZXID")}
