"""`zkgroups history`: what happened on a server, read from its files."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from zkgroups_cli.history.commands import history

from zkgroups import Registry, TopicPartition
from zkgroups.core.znodes.session_ids import session_hex
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


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Anna, a member of zkgroups, commits. Her session expires. Ben, a Scala member, takes over, and goes back.

    The server is running.
    """
    folder = tmp_path_factory.mktemp("story") / "data"
    with ZooKeeperServer(data_dir=folder) as server:
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


def test_offsets_shows_every_commit_with_the_one_who_made_it(story: Story) -> None:
    found = [
        (row["partition"], row["event"], row["before"], row["offset"], row["instance"], row["marks"])
        for row in story.rows("offsets", "billing")
    ]
    assert found == [
        (0, "created", None, 100, "anna", []),
        (1, "created", None, 7, "anna", []),
        (0, "committed", 100, 200, "anna", []),
        (0, "committed", 200, 150, BEN, ["went-back"]),
        (1, "committed", 7, None, BEN, ["unowned"]),
    ]
    *_, back, bad = story.rows("offsets", "billing")
    assert (back["session"], back["host"], back["dialect"], back["owner"]) == (story.ben, "app-7", "scala", f"{BEN}-0")
    assert (back["complete"], back["owner_session"]) == (True, story.ben)
    assert bad["problem"] == "not a plain decimal number"


def test_a_topic_a_partition_a_session_and_a_period_are_chosen(story: Story) -> None:
    offsets = [row["offset"] for row in story.rows("offsets", "billing", "orders", "0")]
    assert offsets == [100, 200, 150]
    assert story.rows("offsets", "billing", "refunds") == []
    assert [row["offset"] for row in story.rows("offsets", "billing", "--session", story.ben)] == [150, None]
    _, both, third, *_ = story.rows("offsets", "billing", "orders")
    since = story.rows("offsets", "billing", "--since", hex(both["zxid"]), "--until", hex(third["zxid"]))
    assert [row["offset"] for row in since] == [100, 7, 200]
    assert [row["offset"] for row in story.rows("offsets", "billing", "--until", hex(both["zxid"]))] == [100, 7]
    assert len(story.rows("offsets", "billing", "--since", "1h")) == 5
    assert story.rows("offsets", "billing", "--until", "1h") == []
    assert story.rows("offsets", "billing", "--until", "2020-01-31T12:00:00") == []


def test_all_groups_or_some_are_chosen(story: Story) -> None:
    assert {row["group"] for row in story.rows("offsets")} == {"billing", "other"}
    assert {row["group"] for row in story.rows("offsets", "--groups", "oth.*")} == {"other"}
    assert {row["group"] for row in story.rows("offsets", "billing", "--groups", "oth.*")} == {"billing", "other"}


def test_owners_shows_every_claim_and_how_it_ended(story: Story) -> None:
    found = [(row["partition"], row["event"], row["owner"], row["session"]) for row in story.rows("owners", "billing")]
    assert found == [
        (0, "claimed", "anna", story.anna),
        (1, "claimed", "anna", story.anna),
        (0, "released", "anna", story.anna),
        (1, "released", "anna", story.anna),
        (0, "claimed", "anna", story.anna),
        (0, "closed", "anna", story.anna),
        (0, "claimed", f"{BEN}-0", story.ben),
        (0, "closed", f"{BEN}-0", story.ben),
    ]
    first, _, released, *_ = story.rows("owners", "billing")
    assert (first["held_ms"], first["holder"], first["instance"]) == (None, "anna", "anna")
    assert released["held_ms"] is None or released["held_ms"] == released["time_ms"] - first["time_ms"]
    assert len(story.rows("owners", "billing", "orders", "1")) == 2


def test_members_shows_every_registration_and_how_it_ended(story: Story) -> None:
    found = [(row["event"], row["instance"], row["dialect"]) for row in story.rows("members", "billing")]
    assert found == [
        ("registered", "anna", "zkgroups"),
        ("closed", "anna", "zkgroups"),
        ("registered", BEN, "scala"),
        ("closed", BEN, "scala"),
    ]
    ben = story.rows("members", "billing")[2]
    assert ben["subscription"] == {"pattern": "static", "streams": {"orders": 2}}
    assert (ben["member_session"], ben["session"], ben["by"]) == (story.ben, story.ben, BEN)
    assert "orders x2" in story.run("members", "billing", "-o", "wide").out


def test_groups_shows_which_were_created(story: Story) -> None:
    assert [(row["event"], row["group"]) for row in story.rows("groups")] == [
        ("created", "billing"),
        ("created", "other"),
    ]


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


def test_all_formats_have_the_same_rows(story: Story) -> None:
    rows = story.rows("offsets", "billing")
    for row in rows:
        del row["schema"]
    document = {"schema": 1, "commits": rows}
    assert story.run("offsets", "billing", "-o", "json").out == json.dumps(document, indent=2) + "\n"
    text = story.run("offsets", "billing", "-o", "yaml").out
    assert text == yaml.safe_dump(document, sort_keys=False, explicit_start=True)
    lines = list(csv.DictReader(StringIO(story.run("offsets", "billing", "-o", "csv").out)))
    assert [line["offset"] for line in lines] == ["100", "7", "200", "150", ""]
    assert story.run("offsets", "billing", "-o", "name").lines == [str(row["zxid"]) for row in rows]
    header, *table = story.run("offsets", "billing").lines
    assert header.split()[:7] == ["TIME", "ZXID", "GROUP", "TOPIC", "PARTITION", "BEFORE", "OFFSET"]
    assert len(table) == len(rows)
    for form, empty in (("json", '{\n  "schema": 1,\n  "commits": []\n}\n'), ("yaml", "---\nschema: 1\ncommits: []\n")):
        assert story.run("offsets", "billing", "refunds", "-o", form).out == empty


def test_an_unknown_group_is_not_found(story: Story) -> None:
    ended = story.run("offsets", "biling")
    assert (ended.code, ended.out) == (3, "")
    assert "group 'biling' does not appear in" in ended.err
    ended = run("history", "offsets", "billing", "--from-data-dir", story.folder)
    assert (ended.code, ended.out) == (3, "")
    assert "check the name and --chroot" in ended.err


@pytest.mark.parametrize("command", ["offsets", "owners", "members", "groups", "check"])
def test_without_any_group_the_chroot_is_probably_wrong(story: Story, command: str) -> None:
    """Above all, it is not reported that there are no violations."""
    for chroot in ((), ("--chroot", "/elsewhere")):
        ended = run("history", command, "--from-data-dir", story.folder, *chroot)
        assert (ended.code, ended.out) == (3, "")
        assert f"no group appears in {story.folder}{''.join(chroot[1:])}: check --chroot" in ended.err
        assert "No " not in ended.err
    ended = story.run(command, "--groups", "nobody.*")
    assert (ended.code, "no group that matches appears in" in ended.err) == (3, True)
    ended = run("history", command, "--from-data-dir", story.folder, "--chroot", "kafka")
    assert (ended.code, ended.err) == (2, "zkgroups: chroot is 'kafka', but it must be a path such as /kafka\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("offsets", "billing", "refunds"), "No commits were found."),
        (("owners", "billing", "refunds"), "No owners were found."),
        (("members", "other"), "No registrations were found."),
        (("groups", "--session", "0x1"), "No groups were created or deleted."),
    ],
)
def test_a_result_without_rows_is_reported(story: Story, arguments: tuple[str, ...], said: str) -> None:
    ended = story.run(*arguments)
    assert (ended.code, ended.out, ended.err) == (0, "", f"{said}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "it must be a time like 2026-01-31T12:00:00"),
        (("--session", "x"), "'x' is not a session id"),
        (("billing", "orders", "x"), "'x' is not the number of a partition"),
        (("a/b",), "contains a slash"),
        (("--groups", "("), "is not a regular expression"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(story: Story, arguments: tuple[str, ...], said: str) -> None:
    ended = story.run("offsets", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_a_missing_or_empty_directory_is_not_found(tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "is not a ZooKeeper data directory")):
        ended = run("history", "check", "--from-data-dir", folder)
        assert (ended.code, ended.out) == (3, "")
        assert said in ended.err


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


def test_a_missing_log_is_reported_in_its_place(logs: list[Path], tmp_path: Path) -> None:
    """A snapshot may show the offset before the first commit after the gap. Without it, that offset is unknown."""
    logs[2].unlink()
    ended, found = offsets(tmp_path / "data")
    assert ended.code == 9
    assert f"transactions are missing between 0x{named(logs[2]) - 1:x} and 0x{named(logs[3]):x}" in ended.err
    [after] = [after for before, after in pairwise(found) if after != before + 1]
    known, unknown = (after - 1, False), (None, True)
    for possible in ({known, unknown}, {unknown}):
        lines = run("history", "offsets", "g", "--from-data-dir", tmp_path / "data", "-o", "jsonl").lines
        [row] = (row for line in lines if (row := json.loads(line))["offset"] == after)
        assert (row["before"], "gap" in row["marks"]) in possible
        for snapshot in (tmp_path / "data" / "version-2").glob("snapshot.*"):
            snapshot.unlink()


def test_a_damaged_log_is_reported_and_the_next_one_is_read(logs: list[Path], tmp_path: Path) -> None:
    data, at = list(records(logs[2]))[5]
    logs[2].write_bytes(data[: at + 40] + bytes([data[at + 40] ^ 1]) + data[at + 41 :])
    ended, found = offsets(tmp_path / "data")
    assert ended.code == 9
    assert f"{logs[2]}: a record has a wrong checksum" in ended.err
    assert found[-1] == 199
    assert len(found) < 200


def test_a_torn_last_record_is_left_out(logs: list[Path], tmp_path: Path) -> None:
    data = logs[-1].read_bytes()
    logs[-1].write_bytes(data[: written(data) - 5])
    ended, found = offsets(tmp_path / "data")
    assert (ended.code, found) == (0, list(range(199 if found[-1] == 198 else 200)))
    assert ended.err == f"{logs[-1]} ends within a record, which is left out.\n"


def test_a_snapshot_without_logs_has_no_history(logs: list[Path], tmp_path: Path) -> None:
    for log in logs:
        log.unlink()
    ended, _ = offsets(tmp_path / "data")
    assert ended.code == 3
    assert "has no transaction logs: if the server has a dataLogDir, give it, too" in ended.err


def test_logs_may_be_in_another_folder(logs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "logs" / "version-2").mkdir(parents=True)
    for log in logs:
        log.rename(tmp_path / "logs" / "version-2" / log.name)
    ended, found = offsets(tmp_path / "data", "--data-log-dir", str(tmp_path / "logs"))
    assert (ended.code, found) == (0, list(range(200)))


def test_a_large_table_is_drawn_in_pages_with_one_header(tmp_path: Path) -> None:
    with ZooKeeperServer(data_dir=tmp_path) as server, lasting_client(server.address) as client:
        client.create("/consumers/g/offsets/t/0", b"0", makepath=True)
        for answer in [client.set_async("/consumers/g/offsets/t/0", b"%d" % number) for number in range(1, 2500)]:
            answer.get()
        lines = run("history", "offsets", "g", "--from-data-dir", tmp_path).lines
    assert len(lines) == 2501
    assert sum(line.startswith("TIME") for line in lines) == 1
    assert {line.index("0x") for line in lines[1:]} == {lines[0].index("ZXID")}
