"""`zkgroups claim`: claims, the environment of the command, and a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.testing import KafkaBroker
from zkgroups.testing.java import find_java
from zkgroups.testing.kafka_releases import release_jars

from ..testing.waiting import eventually, stands_still
from .conftest import Zkgroups
from .running import COMMAND, TIMEOUT, Ended, Terminal, run, started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
TELL = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('ZKGROUPS_')}))"
EMPTY: dict[str, list[Any]] = {"ids": [], "owners": []}


@pytest.fixture
def invoices(registry: Registry) -> Consumergroup:
    """A group without instances, with an offset of orders/0."""
    group = registry.group("invoices")
    group.create()
    group.offsets.set(AT, 1200)
    return group


def left(group: Consumergroup) -> dict[str, list[Any]]:
    return {"ids": group.instances(), "owners": list(group.owners())}


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=TIMEOUT)
    return Ended(process.returncode, out, err)


# While a command runs


def test_a_command_finds_its_claim_in_its_environment(zkgroups: Zkgroups, invoices: Consumergroup) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "7", "--as", "me", "--", sys.executable, "-c", TELL)
    told = done.json
    assert (done.code, done.err) == (0, "")
    assert int(told["ZKGROUPS_TOKEN"]) > 0
    expected = {
        "ZKGROUPS_GROUP": "invoices",
        "ZKGROUPS_TOPIC": "orders",
        "ZKGROUPS_PARTITIONS": "0,7",
        "ZKGROUPS_OFFSETS": "0:1200,7:",
        "ZKGROUPS_INSTANCE": "me",
    }
    assert {name: told[name] for name in expected} == expected
    assert left(invoices) == EMPTY


def test_the_token_grows_with_each_claim_and_is_the_zxid_of_the_owner_node(
    zkgroups: Zkgroups, zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    tokens = [
        int(zkgroups("claim", "invoices", "orders", "0", "--", sys.executable, "-c", TELL).json["ZKGROUPS_TOKEN"])
        for _ in range(2)
    ]
    with holding(zookeeper_hosts, "0") as (_, [row]):
        owner = invoices.owner(AT)
        assert isinstance(owner, Owner)
        assert tokens[0] < tokens[1] < row["token"] == owner.czxid


def test_passwords_in_the_environment_are_not_passed_on_to_the_command(
    zkgroups: Zkgroups, invoices: Consumergroup
) -> None:
    given = {"ZKGROUPS_PASSWORD": "sesame", "ZKGROUPS_TLS_KEY_PASSWORD": "sesame", "ZKGROUPS_COLOR": "never"}
    done = zkgroups("claim", "invoices", "orders", "0", "--", "env", **given)
    assert "sesame" not in done.out
    assert "ZKGROUPS_COLOR=never" in done.lines


def test_kafkas_own_tool_shows_the_group_while_a_partition_is_claimed_by_an_id_without_a_dash(
    legacy_kafka: KafkaBroker,
) -> None:
    legacy_kafka.create_topic("claimed-at-the-shell", 1)
    jars = os.pathsep.join(map(str, release_jars(legacy_kafka.release)))
    java = (find_java(), "-XX:TieredStopAtLevel=1", "-cp", jars, "kafka.admin.ConsumerGroupCommand")
    arguments = ("--zookeeper", legacy_kafka.zookeeper, "--describe", "--group", "at-the-shell")
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        registry.group("at-the-shell").offsets.set(TopicPartition("claimed-at-the-shell", 0), 0)
        done = run(
            *("-z", legacy_kafka.zookeeper, "claim", "at-the-shell", "claimed-at-the-shell", "0", "--as", "anna"),
            *("--", *map(str, java), *arguments),
        )
    [line] = [line for line in done.lines if line.startswith("claimed-at-the-shell")]
    assert line.split() == ["claimed-at-the-shell", "0", "0", "0", "0", "anna"]


OPEN_MANY_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_command_runs_beside_more_open_files_than_select_accepts(
    zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    arguments = ["-z", zookeeper_hosts, "claim", "invoices", "orders", "0", "--", "true"]
    command = [sys.executable, "-c", OPEN_MANY_FILES, COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert left(invoices) == EMPTY


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 0", 0)]
)
def test_the_exit_code_of_the_command_is_passed_on(
    zkgroups: Zkgroups, invoices: Consumergroup, script: str, code: int
) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "--", "sh", "-c", script)
    assert (done.code, done.out, done.err) == (code, "", "")
    assert left(invoices) == EMPTY


def test_the_command_inherits_stdin_and_stdout_and_gets_the_options_after_the_dashes(
    zkgroups: Zkgroups, invoices: Consumergroup
) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "--", "sh", "-c", "cat; echo $0 $*", "--wait", "--", "-o")
    assert (done.code, done.out) == (0, "--wait -- -o\n")


def test_processes_that_the_command_leaves_behind_end_before_the_release(
    zkgroups: Zkgroups, invoices: Consumergroup, tmp_path: Path
) -> None:
    """Even processes that left its process group and ignore SIGTERM."""
    script = f"(trap '' TERM; : > {tmp_path}/ready; exec setsid sleep 60) & while [ ! -e {tmp_path}/ready ]; do :; done"
    done = zkgroups(
        "claim", "invoices", "orders", "0", "--grace", "0.3", "--", "sh", "-c", f"{script}; echo $!; exit 3"
    )
    assert done.code == 3
    assert not Path(f"/proc/{int(done.out)}").exists()
    assert left(invoices) == EMPTY


def test_a_missing_command_is_exit_code_2_before_anything_is_claimed(
    zkgroups: Zkgroups, invoices: Consumergroup, tmp_path: Path
) -> None:
    not_executable = tmp_path / "notes"
    not_executable.write_text("no script")
    for name in ("no-such-command", str(not_executable), str(tmp_path / "nothing")):
        done = zkgroups("claim", "invoices", "orders", "0", "-z", "127.0.0.1:1", "--", name)
        assert (done.code, done.err.splitlines()[0]) == (2, f"zkgroups: command {name!r} was not found in PATH")


def test_a_command_that_cannot_be_started_is_exit_code_2_and_the_claim_is_released(
    zkgroups: Zkgroups, invoices: Consumergroup, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF and nothing else")
    broken.chmod(0o755)
    done = zkgroups("claim", "invoices", "orders", "0", "--", broken)
    assert done.code == 2
    assert done.err.startswith("zkgroups: the command could not be started: Exec format error")
    assert left(invoices) == EMPTY


def test_dashes_without_a_command_are_refused(zkgroups: Zkgroups, invoices: Consumergroup) -> None:
    assert zkgroups("claim", "invoices", "orders", "0", "--").code == 2


def test_a_group_name_that_begins_with_a_dash_is_given_after_two_dashes(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("-x").create()
    assert zkgroups("claim", "--", "-x", "orders", "0", "--", "sh", "-c", "echo $ZKGROUPS_GROUP").out == "-x\n"


def test_an_unreadable_offset_is_not_taken_for_a_missing_one(
    zkgroups: Zkgroups, kazoo: KazooClient, invoices: Consumergroup
) -> None:
    kazoo.set("/consumers/invoices/offsets/orders/0", b"many")
    done = zkgroups("claim", "invoices", "orders", "0", "--", "echo", "ran")
    assert (done.code, done.out) == (10, "")
    assert left(invoices) == EMPTY


@pytest.mark.parametrize("option", ["--grace", "--wait"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_invalid_times_are_refused(zkgroups: Zkgroups, option: str, value: str) -> None:
    assert zkgroups("claim", "invoices", "orders", "0", option, value, "-z", "127.0.0.1:1", "--", "true").code == 2


def test_a_grace_time_longer_than_a_proof_of_the_session_is_refused(
    zkgroups: Zkgroups, invoices: Consumergroup
) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "--session-timeout", "20", "--grace", "8", "--", "echo", "ran")
    assert (done.code, done.out) == (2, "")
    assert "it must be less than 8 s with a session timeout of 20 s" in done.err


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
        first, second = list(invoices.owners())
        [instance] = invoices.instances()
        assert isinstance(first, Owner)
        assert isinstance(second, Owner)
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
            for owner, offset in ((first, 1200), (second, None))
        ]
        process.send_signal(number)
        assert ended(process).code == code
    assert left(invoices) == EMPTY


def test_ctrl_c_on_a_terminal_releases_the_claim(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    with Terminal("claim", "invoices", "orders", "0", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as terminal:
        terminal.wait_for("Ctrl-C releases.")
        assert "GROUP" in terminal.seen
        terminal.type("\x03")
        assert terminal.end().code == 130
    assert left(invoices) == EMPTY


def test_a_claim_that_is_taken_away_ends_with_exit_code_7(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    with holding(zookeeper_hosts, "0") as (process, [row]):
        invoices.release(AT, expected_owner=row["instance"])
        done = ended(process)
        assert (done.code, done.err) == (7, "zkgroups: the claim is lost: orders/0 was taken away\n")
    assert left(invoices) == EMPTY


def test_a_lost_claim_names_the_new_owner(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    with invoices.instance("ben") as ben, holding(zookeeper_hosts, "0") as (process, [row]):
        ben.register([])
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: stands_still(process.pid))
        invoices.release(AT, expected_owner=row["instance"])
        ben.claim(AT)
        process.send_signal(signal.SIGCONT)
        done = ended(process)
    assert done.code == 7
    assert "the claim is lost: orders/0 was taken away and is now claimed by 'ben' of session" in done.err


# Ctrl-C while a command runs


def test_ctrl_c_is_passed_on_to_the_command(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    script = "trap 'echo caught; exit 0' INT; echo running; while :; do sleep 0.05; done"
    with Terminal(
        "claim", "invoices", "orders", "0", "--", "sh", "-c", script,
        env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts},
    ) as terminal:  # fmt: skip
        terminal.wait_for("running")
        terminal.type("\x03")
        terminal.wait_for("caught")
        assert terminal.end().code == 130
    assert left(invoices) == EMPTY


def test_sigterm_is_passed_on_to_the_command(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    script = "trap 'echo caught; exit 0' TERM; echo running; while :; do sleep 0.05; done"
    arguments = ("claim", "invoices", "orders", "0", "--", "sh", "-c", script)
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stdout.readline() == "running\n"  # type: ignore[union-attr]
        process.terminate()
        done = ended(process)
    assert (done.code, done.out) == (143, "caught\n")
    assert left(invoices) == EMPTY


def test_a_command_that_reads_from_the_terminal_controls_it(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    """With it, it receives Ctrl-C and Ctrl-Z. The latter has no effect."""
    script = "read answer; echo got $answer; cat; echo status $?"
    with Terminal(
        "claim", "invoices", "orders", "0", "--", "bash", "-c", f"trap : INT; {script}",
        env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts},
    ) as terminal:  # fmt: skip
        terminal.type("hello\n")
        terminal.wait_for("got hello")
        terminal.type("again\n")
        terminal.wait_for("again\r\nagain\r\n")
        terminal.type("\x1a")
        terminal.type("once more\n")
        terminal.wait_for("once more\r\nonce more\r\n")
        terminal.type("\x03")
        terminal.wait_for("status 130")
        assert terminal.end().code == 0
    assert left(invoices) == EMPTY


# Refused


def test_an_owned_partition_is_a_conflict(zkgroups: Zkgroups, invoices: Consumergroup) -> None:
    with invoices.instance("holder") as holder:
        holder.register()
        holder.claim(TopicPartition("orders", 1))
        done = zkgroups("claim", "invoices", "orders", "0", "1", "--", "echo", "ran")
        assert (done.code, done.out) == (5, "")
        assert done.err.startswith("zkgroups: orders/1 is claimed by 'holder' of session 0x")
        assert [instance.id for instance in invoices.instances()] == ["holder"]
        assert [owner.at.partition for owner in invoices.owners() if isinstance(owner, Owner)] == [1]


def test_a_claim_that_times_out_is_exit_code_8(zkgroups: Zkgroups, invoices: Consumergroup) -> None:
    with invoices.instance("holder") as holder:
        holder.register()
        holder.claim(AT)
        done = zkgroups("claim", "invoices", "orders", "0", "--wait", "0.3", "--", "echo", "ran")
        assert (done.code, done.out) == (8, "")
        assert done.err.startswith("zkgroups: orders/0 was not free within 0.3 s: claimed by 'holder'")
        assert [instance.id for instance in invoices.instances()] == ["holder"]


def test_a_waiting_claim_succeeds_once_the_partition_is_released(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    with invoices.instance("holder") as holder:
        holder.register()
        claim = holder.claim(AT)
        arguments = ("claim", "invoices", "orders", "0", "--wait", "60", "--as", "next", "--", "echo", "ran")
        with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
            claim.release()
            done = ended(process)
    assert (done.code, done.out) == (0, "ran\n")


def test_beside_live_members_of_the_topic_it_is_refused(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    done = zkgroups("claim", "billing", "orders", "1", "--", "echo", "ran")
    assert (done.code, done.out, done.err) == (
        4,
        "",
        "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n",
    )
    assert [instance.id for instance in billing.instances()] == ["anna", "ben"]
    assert zkgroups("claim", "billing", "orders", "1", "--wait", "0.1", "--", "echo", "ran").code == 4


def test_beside_live_members_an_owned_partition_is_reported_as_a_conflict_first(
    zkgroups: Zkgroups, billing: Any
) -> None:
    assert zkgroups("claim", "billing", "orders", "0", "--", "echo", "ran").code == 5
    assert zkgroups("claim", "billing", "orders", "1", "0", "--", "echo", "ran").code == 5
    assert zkgroups("claim", "billing", "orders", "0", "--wait", "0.1", "--", "echo", "ran").code == 8


def test_with_force_it_claims_beside_live_members(zkgroups: Zkgroups, billing: Any) -> None:
    done = zkgroups("claim", "billing", "orders", "1", "--force", "--", "echo", "ran")
    assert (done.code, done.out) == (0, "ran\n")
    assert zkgroups("claim", "billing", "orders", "0", "--force", "--", "echo", "ran").code == 5


def test_a_registration_without_a_session_does_not_prevent_a_claim(
    zkgroups: Zkgroups, invoices: Consumergroup, kazoo: KazooClient
) -> None:
    kazoo.create("/consumers/invoices/ids/gone", b'{"version":1,"subscription":{"orders":1},"pattern":"static"}')
    assert zkgroups("claim", "invoices", "orders", "0", "--", "true").code == 0
    done = zkgroups("offsets", "reset", "invoices", "--all-topics", "--shift-by", "1", "--execute")
    assert (done.code, done.err) == (0, "Changed: 1. Unchanged: 0.\n")
    assert zkgroups("groups", "delete", "invoices", "--execute").code == 0


def test_live_members_of_other_topics_do_not_prevent_a_claim(zkgroups: Zkgroups, billing: Any) -> None:
    assert zkgroups("claim", "billing", "refunds", "0", "--", "echo", "ran").out == "ran\n"


@pytest.mark.parametrize("data", [b'{"version":1,"subscription":{"ref.*":1},"pattern":"white_list"}', b"{", b"refunds"])
def test_a_matching_pattern_and_an_unreadable_registration_prevent_a_claim(
    zkgroups: Zkgroups, kazoo: KazooClient, invoices: Consumergroup, data: bytes
) -> None:
    kazoo.create("/consumers/invoices/ids/scala", data, ephemeral=True)
    assert zkgroups("claim", "invoices", "refunds", "0", "--", "echo", "ran").code == 4


def test_an_owner_in_the_form_of_pykafka_is_a_conflict(
    zkgroups: Zkgroups, kazoo: KazooClient, invoices: Consumergroup
) -> None:
    kazoo.create("/consumers/invoices/owners/b'orders'/1001-0", b"pykafka", ephemeral=True, makepath=True)
    assert zkgroups("claim", "invoices", "orders", "0", "--force", "--", "echo", "ran").code == 5


def test_a_registered_id_is_a_conflict(zkgroups: Zkgroups, billing: Any) -> None:
    done = zkgroups("claim", "billing", "refunds", "0", "--as", "anna", "--", "echo", "ran")
    assert (done.code, done.out) == (5, "")
    assert [instance.id for instance in billing.instances()] == ["anna", "ben"]


@pytest.mark.usefixtures("cluster")
def test_a_missing_group_is_exit_code_3_and_is_not_created(zkgroups: Zkgroups, registry: Registry) -> None:
    done = zkgroups("claim", "nobody", "orders", "0", "--", "echo", "ran")
    assert (done.code, done.out, done.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    assert registry.groups() == []


@pytest.mark.parametrize(
    "arguments",
    [["a/b", "orders", "0"], ["invoices", "..", "0"], ["invoices", "orders", "x"], ["invoices", "orders", "-1"],
     ["invoices", "orders"], ["invoices", "orders", "0", "--as", "a/b"]],
    ids=" ".join,
)  # fmt: skip
def test_bad_names_are_exit_code_2(zkgroups: Zkgroups, arguments: list[str]) -> None:
    assert zkgroups("claim", *arguments, "-z", "127.0.0.1:1", "--", "echo", "ran").code == 2


def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "-z", "127.0.0.1:1", "--timeout", "0.3", "--", "echo", "ran")
    assert (done.code, done.out) == (7, "")


def test_with_read_only_nothing_is_claimed(zkgroups: Zkgroups, invoices: Consumergroup) -> None:
    done = zkgroups("claim", "invoices", "orders", "0", "--read-only", "--", "echo", "ran")
    assert (done.code, done.out) == (4, "")


def test_without_permission_nothing_is_claimed(zkgroups: Zkgroups, secret: str, kazoo: KazooClient) -> None:
    done = zkgroups("claim", secret, "orders", "0", "--", "echo", "ran")
    assert (done.code, done.out) == (6, "")
    assert kazoo.get_children(f"/consumers/{secret}/ids") == []
    alice = ("--digest-user", "alice")
    done = zkgroups("claim", secret, "orders", "0", *alice, "--", "echo", "ran", ZKGROUPS_PASSWORD="sesame")
    assert (done.code, done.out) == (0, "ran\n")
