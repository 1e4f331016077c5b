"""`zkgroups claim`: claims, the environment of the command, signals, and a clean end."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from zkgroups_cli.child.supervisor import ready

from tests.waiting import eventually, stands_still
from zkgroups import Consumergroup, Owner, Registry, TopicPartition

from .conftest import Zkgroups
from .running import TIMEOUT, Terminal, ended_of, started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
TELL = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('ZKGROUPS_')}))"
CLAIM = ("claim", "invoices", "orders", "0")


@pytest.fixture
def invoices(registry: Registry) -> Iterator[Consumergroup]:
    """A group without instances, with an offset of orders/0. Every claim is released in the end."""
    group = registry.group("invoices")
    group.create()
    group.offsets.set(AT, 1200)
    yield group
    assert (group.instances(), list(group.owners())) == ([], [])


# While a command runs


def test_a_command_finds_its_claim_and_no_password_in_its_environment(
    zkgroups: Zkgroups, invoices: Consumergroup
) -> None:
    given = {"ZKGROUPS_PASSWORD": "sesame", "ZKGROUPS_TLS_KEY_PASSWORD": "sesame", "ZKGROUPS_COLOR": "never"}
    done = zkgroups(*CLAIM, "7", "--as", "me", "--", sys.executable, "-c", TELL, **given)
    assert (done.code, done.err) == (0, "")
    expected = {
        "ZKGROUPS_GROUP": "invoices",
        "ZKGROUPS_TOPIC": "orders",
        "ZKGROUPS_PARTITIONS": "0,7",
        "ZKGROUPS_OFFSETS": "0:1200,7:",
        "ZKGROUPS_INSTANCE": "me",
        "ZKGROUPS_COLOR": "never",
    }
    assert {name: done.json[name] for name in expected} == expected
    assert "sesame" not in done.out


def test_the_token_grows_with_each_claim_and_is_the_zxid_of_the_owner_node(
    zkgroups: Zkgroups, zookeeper_hosts: str, invoices: Consumergroup, kazoo: KazooClient
) -> None:
    """The node has the id with a number, like those of Scala members. Kafka's own tool fails if there is no dash."""
    tokens = [int(zkgroups(*CLAIM, "--", sys.executable, "-c", TELL).json["ZKGROUPS_TOKEN"]) for _ in range(2)]
    with holding(zookeeper_hosts, "0") as (process, [row]):
        owner = invoices.owner(AT)
        assert isinstance(owner, Owner)
        assert tokens[0] < tokens[1] < row["token"] == owner.czxid
        assert kazoo.get(owner.path)[0].decode() == f"{row['instance']}-0"
        process.terminate()
        process.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("command", "code", "out"),
    [
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "kill -9 $$"), 137, ""),
        (("sh", "-c", "kill -TERM $$"), 143, ""),
        (("sh", "-c", "cat; echo $0 $*", "--wait", "--", "-o"), 0, "--wait -- -o\n"),  # stdin is empty
    ],
)
def test_the_exit_code_of_the_command_is_passed_on_and_options_after_the_dashes_are_its_own(
    zkgroups: Zkgroups, invoices: Consumergroup, command: tuple[str, ...], code: int, out: str
) -> None:
    done = zkgroups(*CLAIM, "--", *command)
    assert (done.code, done.out, done.err) == (code, out, "")


def test_processes_that_the_command_leaves_behind_end_before_the_release(
    zkgroups: Zkgroups, invoices: Consumergroup, tmp_path: Path
) -> None:
    """Even processes that left its process group and ignore SIGTERM."""
    script = f"(trap '' TERM; : > {tmp_path}/ready; exec setsid sleep 60) & while [ ! -e {tmp_path}/ready ]; do :; done"
    done = zkgroups(*CLAIM, "--grace", "0.3", "--", "sh", "-c", f"{script}; echo $!; exit 3")
    assert done.code == 3
    assert not Path(f"/proc/{int(done.out)}").exists()


def test_a_command_that_cannot_be_started_is_exit_code_2_and_the_claim_is_released(
    zkgroups: Zkgroups, invoices: Consumergroup, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF and nothing else")
    broken.chmod(0o755)
    done = zkgroups(*CLAIM, "--", broken)
    assert done.code == 2
    assert done.err.startswith("zkgroups: the command could not be started: Exec format error")


def test_a_group_name_that_begins_with_a_dash_is_given_after_two_dashes(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("-x").create()
    assert zkgroups("claim", "--", "-x", "orders", "0", "--", "sh", "-c", "echo $ZKGROUPS_GROUP").out == "-x\n"


# In the foreground


@contextmanager
def holding(hosts: str, *partitions: str) -> Iterator[tuple[subprocess.Popen[str], list[Any]]]:
    """A claim of invoices in the foreground, and the rows that it has printed."""
    arguments = ("claim", "invoices", "orders", *partitions, "-o", "json")
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": hosts}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = list(iter(process.stdout.readline, "}\n"))
        assert process.stderr.readline() == "Claimed. Ctrl-C releases.\n"
        yield process, json.loads("".join([*lines, "}"]))["claims"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_in_the_foreground_it_holds_the_claim_until_a_signal_and_releases_it(
    zookeeper_hosts: str, invoices: Consumergroup, number: int, code: int
) -> None:
    with holding(zookeeper_hosts, "0", "1") as (process, rows):
        [instance] = invoices.instances()
        assert dict(instance.registration.streams) == {}  # type: ignore[union-attr]
        assert rows == [
            {
                "group": "invoices",
                "topic": "orders",
                "partition": owner.at.partition,
                "offset": offset,
                "instance": instance.id,
                "session": f"{owner.session:#x}",
                "token": owner.czxid,
            }
            for owner, offset in zip(invoices.owners(), (1200, None), strict=True)
            if isinstance(owner, Owner)
        ]
        process.send_signal(number)
        assert ended_of(process).code == code


@pytest.mark.parametrize("by", [None, "ben"])
def test_a_claim_that_is_taken_away_ends_with_exit_code_7_and_names_the_new_owner(
    zookeeper_hosts: str, invoices: Consumergroup, by: str | None
) -> None:
    with invoices.instance("ben") as ben, holding(zookeeper_hosts, "0") as (process, [row]):
        ben.register([])
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: stands_still(process.pid))
        invoices.release(AT, expected_owner=row["instance"])
        if by:
            ben.claim(AT)
        process.send_signal(signal.SIGCONT)
        done = ended_of(process)
    new = " and is now claimed by 'ben' of session" if by else "\n"
    assert (done.code, f"zkgroups: the claim is lost: orders/0 was taken away{new}" in done.err) == (7, True)


# Signals while a command runs


def test_a_pipe_may_have_a_higher_number_than_select_accepts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1100)
    os.write(writer, b"stop 15")
    assert ready([high], 0.0) == [high]
    for descriptor in (reader, writer, high):
        os.close(descriptor)


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143)])
def test_a_signal_is_passed_on_to_the_command(
    zookeeper_hosts: str, invoices: Consumergroup, name: str, code: int
) -> None:
    script = f"trap 'echo caught; exit 0' {name}; echo running; while :; do sleep 0.05; done"
    with started("-z", zookeeper_hosts, *CLAIM, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        done = ended_of(process)
    assert (done.code, done.out) == (code, "caught\n")


def test_a_command_that_reads_from_the_terminal_controls_it(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    """With it, it receives Ctrl-C and Ctrl-Z. The latter has no effect."""
    script = "trap : INT; read answer; echo got $answer; cat; echo status $?"
    with Terminal("-z", zookeeper_hosts, *CLAIM, "--", "bash", "-c", script) as terminal:
        for keys, shown in (
            ("hello\n", "got hello"),
            ("again\n", "again\r\nagain\r\n"),
            ("\x1aonce more\n", "once more\r\nonce more\r\n"),
            ("\x03", "status 130"),
        ):
            terminal.type(keys)
            terminal.wait_for(shown)
        assert terminal.end().code == 0


# Refused


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("billing orders 0", 5, "orders/0 is claimed by 'anna' of session 0x"),
        ("billing orders 1 0", 5, "use --wait DURATION to wait\n"),
        ("billing orders 0 --force", 5, "'anna'"),
        ("billing orders 0 --wait 0.1", 8, "orders/0 was not free within 0.1 s: claimed by 'anna'"),
        ("billing orders 1", 4, "group 'billing' is in use by anna, ben: stop its instances first\n"),
        ("billing orders 1 --wait 0.1", 4, "in use by anna, ben"),
        ("billing refunds 0 --as anna", 5, "anna"),
        ("scala refunds 0", 4, "in use by"),  # its pattern matches
        ("unreadable refunds 0", 4, "in use by"),
        ("bare orders 0", 4, "in use by"),
        ("pykafka orders 0 --force", 5, "is claimed by"),
        ("odd orders 0", 10, "/consumers/odd/offsets/orders/0"),  # an unreadable offset is not taken for a missing one
        ("odd orders 1 --session-timeout 20 --grace 8", 2, "it must be less than 8 s with a session timeout of 20 s"),
        ("secret orders 0", 6, "no permission on /consumers/secret"),
    ],
)
def test_a_claim_is_refused_beside_owners_and_members_and_nothing_is_left_of_it(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Any, secret: str, arguments: str, code: int, said: str
) -> None:
    pattern = b'{"version":1,"subscription":{"ref.*":1},"pattern":"white_list"}'
    for path, data in {
        "scala/ids/s": pattern,
        "unreadable/ids/s": b"{",
        "bare/ids/s": b"orders",
        "pykafka/owners/b'orders'/1001-0": b"pykafka",
        "odd/offsets/orders/0": b"many",
    }.items():
        kazoo.create(f"/consumers/{path}", data, ephemeral="offsets" not in path, makepath=True)
    done = zkgroups("claim", *arguments.split(), "--", "echo", "ran")
    assert (done.code, done.out, said in done.err) == (code, "", True), done
    assert [instance.id for instance in billing.instances()] == ["anna", "ben"]
    assert [owner.at.partition for owner in billing.owners()] == [0]
    assert kazoo.get_children("/consumers/secret/ids") == []


@pytest.mark.parametrize(
    "arguments", ["billing orders 1 --force", "billing refunds 0", "ended orders 0", "secret orders 0"]
)
def test_a_claim_succeeds_by_force_or_without_members_of_the_topic_or_with_a_password(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Any, secret: str, arguments: str
) -> None:
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static"}'
    kazoo.create("/consumers/ended/ids/gone", registration, makepath=True)  # without a session
    password = {"ZKGROUPS_DIGEST_USER": "alice", "ZKGROUPS_PASSWORD": "sesame"}
    done = zkgroups("claim", *arguments.split(), "--", "echo", "ran", **password)
    assert (done.code, done.out) == (0, "ran\n"), done


def test_a_waiting_claim_succeeds_once_the_partition_is_released(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    with invoices.instance("holder") as holder:
        holder.register()
        claim = holder.claim(AT)
        with started("-z", zookeeper_hosts, *CLAIM, "--wait", "60", "--as", "next", "--", "echo", "ran") as process:
            claim.release()
            done = ended_of(process)
    assert (done.code, done.out) == (0, "ran\n")
