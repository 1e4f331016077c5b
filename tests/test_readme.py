"""What the README shows is true: its commands and programs run, on a real server, and print what it says they print.

Console blocks: a line that begins with `$` is a command, what follows is what it prints (`...` stands for anything).
The commands of a block run one after the other in one shell, until one fails. Only those in NOT_RUN do not run.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from kazoo.client import KazooClient

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker, Server, missing

from .cli.running import hear_ctrl_c, interrupt

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# They run this very test; have tests of their own (tests/cli/test_demo.py); install what is installed; need an engine.
NOT_RUN = re.compile(r"make test|make demo|pip install .*|docker compose .*")
FOREGROUND = "zkgroups zookeeper"
ADDRESS = "zk1:2181,zk2:2181/kafka"
BROKER = "kafka1:9092"
DESTINATION = "/data/groups"
PLAN = "/data/plan"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def shown(block: str) -> str:
    return "".join(line for line in block.splitlines(keepends=True) if not line.startswith("$ "))


CONSOLE = [block for block in blocks("console") if not all(map(NOT_RUN.fullmatch, commands(block)))]
MIGRATION = [block for block in CONSOLE if "zkgroups migrate" in block]  # run in tests/cli/test_migrate.py
SNAPSHOT = [block for block in CONSOLE if "zkgroups snapshot /data" in block]  # run in tests/spark/test_readme.py
SHELL = [block for block in CONSOLE if FOREGROUND not in commands(block) and block not in MIGRATION + SNAPSHOT]
CONSUMERS = [block for block in blocks("python") if "confluent_kafka" in block]
WITH_SPARK = [block for block in blocks("python") if "pyspark" in block]  # run in tests/spark/test_readme.py
ELSEWHERE = [*CONSUMERS, *WITH_SPARK]
PROGRAMS = [block for block in blocks("python") if "def test_" not in block and block not in ELSEWHERE]
TESTS = [block for block in blocks("python") if "def test_" in block]


def _environment() -> dict[str, str]:
    """As on the machine of somebody who has just installed it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZKGROUPS_")}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


def test_the_readme_has_something_of_everything() -> None:
    assert SHELL
    assert SNAPSHOT
    assert PROGRAMS
    assert WITH_SPARK
    assert TESTS


def test_every_command_is_run_or_known_not_to_be() -> None:
    for block in blocks("console"):
        for command in commands(block):
            known = command.startswith(("zkgroups ", "export ZKGROUPS_"))
            assert known or NOT_RUN.fullmatch(command), command


@pytest.fixture
def hosts_with_a_group(zookeeper_hosts: str, registry: Registry) -> Iterator[str]:
    with groups_shown(zookeeper_hosts, registry):
        yield zookeeper_hosts


@contextmanager
def groups_shown(hosts: str, registry: Registry) -> Iterator[None]:
    """The groups that the examples show: of one nobody owns the last partition, the other has an offset only."""
    client = KazooClient(hosts)
    client.start()
    client.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}', makepath=True)
    client.stop()
    client.close()
    registry.group("invoices").create()
    registry.group("invoices").offsets.set(TopicPartition("orders", 0), 1200)
    group = registry.group("billing")
    with group.instance("anna") as anna, group.instance("ben") as ben:
        anna.register(["orders"])
        ben.register(["orders"])
        for partition, offset in enumerate((1200, 900)):
            anna.claim(TopicPartition("orders", partition)).commit(offset)
        yield


@pytest.mark.zookeeper
@pytest.mark.parametrize("block", SHELL, ids=lambda block: commands(block)[0])
def test_the_commands_print_what_is_shown(block: str, hosts_with_a_group: str, tmp_path: Path) -> None:
    script = "\n".join(commands(block))
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", here(script, hosts_with_a_group, tmp_path)],
        env=_environment()
        | {"ZKGROUPS_ZOOKEEPER": hosts_with_a_group, "ZKGROUPS_CONFIG": str(tmp_path / "contexts.ini")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
    if shown(block):
        assert_printed(here(shown(block), hosts_with_a_group, tmp_path), result.stdout)


def here(text: str, hosts: str, folder: Path) -> str:
    """What the page says of some machine, said of this one."""
    return text.replace(ADDRESS, hosts).replace(DESTINATION, str(folder / "groups")).replace(PLAN, str(folder / "plan"))


def assert_printed(wanted: str, printed: str) -> None:
    """Times and sessions differ from run to run, and the width of columns with them."""
    varying = r"0x[0-9a-f]+|\d{4}-\d\d-\d\dT[0-9:]+Z|\d{8}T\d{6}\.\d{3}Z(-[0-9a-f]{8})?|\b\d+\.\d\b(?=  | s; )"
    texts = [re.sub(varying, "?", text) for text in (wanted, printed)]
    same = doctest.OutputChecker().check_output(*texts, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, printed


@pytest.mark.zookeeper
def test_the_server_in_the_foreground_prints_what_is_shown_and_ends() -> None:
    [block] = [block for block in CONSOLE if FOREGROUND in commands(block)]
    assert commands(block) == [FOREGROUND]
    with subprocess.Popen(
        FOREGROUND.split(), env=_environment(), stdout=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        interrupt(server)
        assert server.returncode == 130
    assert_printed(shown(block), line)


@pytest.mark.zookeeper
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs(program: str, zookeeper_hosts: str, tmp_path: Path) -> None:
    assert ADDRESS in program
    (tmp_path / "program.py").write_text(here(program, zookeeper_hosts, tmp_path))
    result = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr


def test_the_consumer_shown_reads_what_was_written_and_commits_it_when_it_is_told_to_end(
    legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    [consumer] = CONSUMERS
    assert len([line for line in consumer.splitlines() if line.strip()]) <= 30
    topic = "orders-of-the-page"
    written = write_to(topic, legacy_kafka, partitions=3, messages=30)
    assert consumed(topic, legacy_kafka, tmp_path, messages=30) == written
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        assert sum(found.offset for found in group.offsets if isinstance(found, CommittedOffset)) == 30
        assert group.instances() == []
        assert list(group.owners()) == []
        group.delete()


def test_the_consumer_shown_reads_a_topic_that_was_made_anew_once(legacy_kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = "orders-made-anew"
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        group.offsets.set(TopicPartition(topic, 0), 5_558)
        first = write_to(topic, legacy_kafka, partitions=1, messages=20)
        assert consumed(topic, legacy_kafka, tmp_path, messages=20) == first
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [20]
        legacy_kafka.write(topic, 0, 1)
        assert consumed(topic, legacy_kafka, tmp_path, messages=1) == {f"{topic} 0 b'0'\n"}
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [21]
        group.delete()


def consumed(topic: str, broker: KafkaBroker, folder: Path, *, messages: int) -> set[str]:
    """Run the consumer until it has printed so many messages, tell it to end, and return what it printed."""
    [consumer] = CONSUMERS
    program = consumer.replace(ADDRESS, broker.zookeeper).replace(BROKER, broker.address)
    command = [sys.executable, "-c", program.replace('"orders"', f'"{topic}"')]
    with subprocess.Popen(command, env=_environment(), cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        read = {running.stdout.readline() for _ in range(messages)}
        running.terminate()
        assert running.wait(60) == 0
    return read


def write_to(topic: str, broker: KafkaBroker, *, partitions: int, messages: int) -> set[str]:
    """Make a topic with messages, and say how the consumer prints them."""
    broker.create_topic(topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(messages):
        producer.produce(topic, f"message {number}", partition=number % partitions)
    assert producer.flush(60) == 0
    return {f"{topic} {number % partitions} b'message {number}'\n" for number in range(messages)}


@pytest.mark.zookeeper
def test_the_tests_shown_pass_and_the_fixtures_are_there(zookeeper: Server, tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text("\n\n".join(TESTS))
    environment = _environment() | {"ZKGROUPS_TEST_ZOOKEEPER": zookeeper.address}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_shown.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


def test_the_tree_shown_is_the_tree() -> None:
    [tree] = [block for block in blocks("text") if "zkgroups/\n" in block or "zkgroups/ " in block]
    paths: set[str] = set()
    folder = ""
    for line in tree.splitlines():
        name = line.split()[0]
        folder = folder if line.startswith(" ") else name
        paths.add(folder + name if line.startswith(" ") else name)
    assert all((ROOT / path).exists() for path in paths), paths
    assert {f"zkgroups/{path.parent.name}/" for path in (ROOT / "zkgroups").glob("*/__init__.py")} <= paths


def test_every_file_linked_is_there() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_make_target_named_is_there() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (\w+)`", README)) | {"demo", "test"} <= targets


def test_the_compose_file_publishes_on_this_machine_only_and_knows_when_a_service_is_healthy() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["healthcheck"]["test"]
    assert set(services["kafka"]["depends_on"]) == services.keys() - {"kafka"}


@pytest.mark.docker
def test_docker_compose_accepts_the_compose_file() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "compose", "version"]).returncode:
        missing("docker", "docker compose is not installed")
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=ROOT, check=True)
