"""Servers in the foreground: `zkgroups zookeeper`, `gateway` and `demo`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from zkgroups_cli import demo
from zkgroups_cli.shared.options import Options

from tests.gateway.peers import commit
from tests.gateway.running import reserved
from zkgroups.testing import KafkaBroker, local_server
from zkgroups.testing import kafka_broker as kafka_releases
from zkgroups.testing.java import CACHE_VARIABLE, cache_folder

from .running import TIMEOUT, Terminal, run, started

pytestmark = pytest.mark.zookeeper


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def serves(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def server_process(data_dir: Path) -> int:
    """Return the server process with this data folder, found by its configuration file."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if words[0].endswith(b"java") and bytes(data_dir / "zoo.cfg") in words:
            return int(file.parent.name)
    raise LookupError(data_dir)


def test_the_address_is_the_one_line_on_stdout_and_sigterm_ends_both() -> None:
    with started("zookeeper") as process:
        address = address_of(process)
        assert run("groups", "create", "billing", "-z", address).code == 0
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (143, "")
    assert err.splitlines()[0].startswith("ZooKeeper is running")
    assert not serves(address)


def test_a_server_that_ends_by_itself_ends_the_command(tmp_path: Path) -> None:
    """The requested port is used, and printed in JSON."""
    port = local_server.reserve()
    with started("zookeeper", "--port", str(port.number), "-o", "jsonl", "--data-dir", tmp_path) as process:
        expected = {"schema": 1, "address": f"127.0.0.1:{port.number}", "data_dir": str(tmp_path)}
        assert json.loads(address_of(process)) == expected
        os.kill(server_process(tmp_path), signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
    port.release()
    assert (process.returncode, "zkgroups: the server stopped unexpectedly" in err) == (1, True)


def test_a_port_in_use_is_an_error_of_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("zookeeper", "--port", str(taken.getsockname()[1]))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("is taken by another program\n")


def test_without_java_the_error_names_the_package_to_install(tmp_path: Path) -> None:
    ended = run("zookeeper", env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert (ended.code, ended.out) == (2, "")
    assert "install" in ended.err
    assert len(ended.err.splitlines()) == 1


STORY = [
    r"A real ZooKeeper is running at 127\.0\.0\.1:\d+",
    "'orders' has 6 partitions",
    "anna, ben, cleo",
    r"billing +Stable +3 +1 +6 +6 +0",
    "ben tries to claim orders/0 and is refused: orders/0 is claimed by 'anna' of session 0x",
    "commits an offset",
    "anna releases orders/1. ben claims it, and will continue at offset 101",
    "cleo's session expires",
    r"billing +CompletingRebalance +2 +1 +6 +4 +6",
    r"orders +4 +104 .*unowned",
    "anna claims orders/4 and commits 250",
    "cleo tries to commit 150 for orders/4, and is refused: .*session .* has expired; nothing was changed",
    "The offset is still 250",
    r"orders +4 +250 +anna",
    "The snapshot has 6 offsets, 6 owners and 2 members",
    "All instances leave",
    r"demo +billing +orders +0 +100 +anna",
    r"demo +billing +orders +4 +250 +anna",
    r"A real Kafka 4\.\d\.\d is running at 127\.0\.0\.1:\d+",
    r"A gateway is running at 127\.0\.0\.1:\d+",
    "dora, a zkgroups member, and a librdkafka consumer join the group",
    r"dora +Stable +3 +orders +zkgroups",
    r"orders +4 +250 .*librdkafka-",
    "reads on where the instances stopped: orders/3 at 103, orders/4 at 250, orders/5 at 105",
    r"billing +billing +orders +4 +250 +0 +300 +- +250 +commit +unchanged",
    "6 offsets are written. Verified: 6 of 6 are equal",
    "anna tries to register again, and is refused: group 'billing' was moved to Kafka's own offsets",
    "The servers and their data are deleted",
]


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(1000)
def test_on_a_terminal_the_demo_prints_its_steps_in_order_with_colours_and_nothing_else(
    tmp_path: Path,
) -> None:
    """The output format from the environment is ignored. Kafka is in the cache, so no progress is shown."""
    with kafka_releases.download(kafka_releases.RELEASE, tmp_path) as download:
        assert download.wait(600) == 0
    with Terminal("demo", env={"ZKGROUPS_OUTPUT": "json"}, columns=140) as terminal:
        ended = terminal.end()
    assert ended.code == 0
    assert "\x1b[32mStable" in ended.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.out)
    assert "\x1b" not in plain
    assert not re.search("WARN|Traceback|Stage", plain)
    found = [re.search(step, plain) for step in STORY]
    assert all(found), STORY[found.index(None)]
    assert all(a.start() < b.start() for a, b in pairwise(step for step in found if step))


@pytest.mark.spark
def test_without_kafka_the_last_steps_of_the_demo_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its download is waited for as long as bytes arrive."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    (cache_folder() / ".kafka.part-1").mkdir(parents=True)
    monkeypatch.setattr(demo, "_POLL", 0.01)
    for endless in (False, True):
        monkeypatch.setattr(demo, "_STALLED_AFTER", 0.05 if endless else 1000.0)
        with ExitStack() as stack:
            stage = demo.DemoState(Options(), demo.Output(Options()), stack)
            stage.download = Download(cache_folder() / ".kafka.part-1" / "kafka.jar.part", endless=endless)
            for step in demo.STEPS[-3:]:
                step(stage)
    failed, stalled = capsys.readouterr().out.splitlines()
    skipped = "The last steps, with Kafka's own clients and offsets, are skipped: "
    assert failed == f"{skipped}Kafka could not be downloaded."
    assert stalled.startswith(f"{skipped}the download of Kafka stalled for ")


class Download:
    """A download that receives ten bytes, and then fails or stalls."""

    def __init__(self, file: Path, *, endless: bool) -> None:
        self._file, self._endless, self._calls = file, endless, 0

    def wait(self, seconds: float) -> int | None:
        self._calls += 1
        if self._calls > 10:
            time.sleep(seconds)
            return None if self._endless else 1
        with self._file.open("ab") as file:
            file.write(b"x")
        return None


USAGE, UNAVAILABLE, TERMINATED = 2, 7, 143


def test_the_command_serves_clients_until_it_is_terminated(kafka_broker: KafkaBroker) -> None:
    with reserved(2) as (port, broker_port):
        listen = ("--listen", f"{local_server.HOST}:{port}", "--broker-ports", f"{broker_port}-{broker_port}")
        with started("gateway", *listen, "-b", kafka_broker.address, "--memory") as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address == f"{local_server.HOST}:{port}"
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            brokers = admin.list_topics(timeout=TIMEOUT).brokers.values()
            assert [(each.host, each.port) for each in brokers] == [(local_server.HOST, broker_port)]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (TERMINATED, "")
    assert err.splitlines()[:3] == [
        "The gateway is running. Ctrl-C stops it.",
        "It serves all groups in memory.",
        f"Clients reach the brokers at its ports {broker_port}-{broker_port}.",
    ]


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_read_only_gateway_logs_each_kind_of_refused_request_once(
    legacy_kafka: KafkaBroker, quiet: Sequence[str]
) -> None:
    legacy_kafka.create_topic(f"gateway-refusals{len(quiet)}")
    with reserved(2) as (port, broker_port):
        address = f"{local_server.HOST}:{port}"
        listen = ("--listen", address, "--broker-ports", f"{broker_port}-{broker_port}", "--group", "billing")
        where = ("-b", legacy_kafka.address, "-z", legacy_kafka.zookeeper, "--read-only", *quiet)
        with started("gateway", *listen, *where) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == address
            for _ in range(2):
                with pytest.raises(AssertionError):
                    commit(address, "billing", f"gateway-refusals{len(quiet)}", 5)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=TIMEOUT)
    [said, *_] = refused = [line for line in err.splitlines() if "refused" in line]
    assert len(refused) == 1
    assert "OffsetCommit of client 'rdkafka' at /127.0.0.1 for 'billing'" in said
    served = f"It serves the groups that match 'billing' in ZooKeeper at {legacy_kafka.zookeeper}, read-only."
    assert (served in err) != bool(quiet)


def test_brokers_that_cannot_be_reached_are_reported() -> None:
    port = local_server.reserve()
    try:
        done = run("gateway", "--listen", "127.0.0.1:19092", "-b", f"{local_server.HOST}:{port.number}", "--memory")
    finally:
        port.release()
    assert (done.code, done.out) == (UNAVAILABLE, "")
    assert "no broker answered" in done.err
