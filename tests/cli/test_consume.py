"""`zkgroups consume`: what it writes, what it commits, and how it ends. With real brokers."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..testing.waiting import eventually
from .conftest import Zkgroups
from .running import COMMAND, TIMEOUT, Argument, Ended, Terminal, environment, run, started

_numbers = itertools.count()

TO_END = "--exit-at-end"

SOON = 20.0
"""In seconds: shorter than the time after which a rebalance is given up."""


class Topic:
    """A topic of three partitions on a broker, and a group that no other test uses."""

    def __init__(self, broker: KafkaBroker, hosts: str) -> None:
        self.name, self.group = f"consumed-{next(_numbers)}", f"consuming-{next(_numbers)}"
        self.hosts = hosts
        broker.create_topic(self.name, 3)
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})

    def write(self, *values: bytes | None, partition: int = 0, **more: Any) -> None:
        for value in values:
            self._producer.produce(self.name, value, partition=partition, **more)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def numbers(self, count: int, partition: int = 0, size: int = 0) -> list[str]:
        """Write that many numbered messages, and return them."""
        values = [f"{partition}-{number}".ljust(size, ".") for number in range(count)]
        self.write(*(value.encode() for value in values), partition=partition)
        return values

    def arguments(self, *more: Argument) -> list[Argument]:
        return ["-z", self.hosts, "consume", self.group, self.name, *more]

    def consume(self, *more: Argument) -> Ended:
        return run(*self.arguments(*more))

    def left(self) -> tuple[dict[int, int], list[Any], list[Any]]:
        """The committed offsets, the registered instances, and the owners."""
        with Registry.connect(self.hosts) as registry:
            group = registry.group(self.group)
            if not group.exists():
                return {}, [], []
            return committed(group), list(group.instances()), list(group.owners())


def committed(group: Consumergroup) -> dict[int, int]:
    return {found.at.partition: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> Topic:
    return Topic(legacy_kafka, str(legacy_kafka.zookeeper))


def current(broker: KafkaBroker, hosts: str, kazoo: KazooClient) -> Topic:
    """A topic on a broker without ZooKeeper: the members find it in another ZooKeeper."""
    topic = Topic(broker, hosts)
    node = {"version": 1, "partitions": {"0": [0], "1": [0], "2": [0]}}
    kazoo.create(f"/brokers/topics/{topic.name}", json.dumps(node).encode(), makepath=True)
    return topic


# What is written and committed


def test_each_partition_is_written_in_its_order_and_committed(topic: Topic) -> None:
    """Without -b, the brokers are those in ZooKeeper."""
    written = [topic.numbers(40, partition) for partition in range(3)]
    ended = topic.consume(TO_END)
    assert (ended.code, ended.err) == (0, "")
    assert [[line for line in ended.lines if line.startswith(f"{partition}-")] for partition in range(3)] == written
    assert topic.left() == ({0: 40, 1: 40, 2: 40}, [], [])
    more = topic.numbers(2)
    assert topic.consume(TO_END, "--from", "latest").lines == more


def test_messages_of_a_current_broker_are_written_too(
    kafka_broker: KafkaBroker, zookeeper_hosts: str, kazoo: KazooClient
) -> None:
    topic = current(kafka_broker, zookeeper_hosts, kazoo)
    topic.write("café".encode(), b"\xff", None, partition=1, key=b"anna", headers=[("trace", b"1")])
    ended = topic.consume("-b", kafka_broker.address, TO_END, "-o", "jsonl")
    assert (ended.code, ended.err) == (0, "")
    rows = [json.loads(line) for line in ended.lines]
    assert [row["value"] for row in rows] == ["café", {"base64": "/w=="}, None]
    assert {(row["topic"], row["partition"], row["key"]) for row in rows} == {(topic.name, 1, "anna")}
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert rows[0]["headers"] == [["trace", "1"]]
    assert topic.left()[0] == {1: 3}


def test_a_number_of_messages_is_written_and_the_next_run_goes_on_there(topic: Topic) -> None:
    values = topic.numbers(10)
    assert topic.consume("--max-messages", "3", "-f", r"%o=%s\n").lines == [f"{n}={values[n]}" for n in range(3)]
    assert topic.left() == ({0: 3}, [], [])
    assert topic.consume("--max-messages", "7").lines == values[3:]


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_without_commits_no_offset_is_written(topic: Topic, begin: str) -> None:
    """Also not the log end, where `latest` begins."""
    values = topic.numbers(3)
    ended = topic.consume(TO_END, "--no-commit", "--from", begin)
    assert (ended.code, ended.lines) == (0, values if begin == "earliest" else [])
    assert topic.left() == ({}, [], [])


@pytest.mark.parametrize(
    ("options", "in_zookeeper"), [(("--offsets", "kafka"), 2), (("--offsets", "both", "--truth", "kafka"), 7)]
)
def test_offsets_on_the_brokers_are_read_and_committed(
    topic: Topic, legacy_kafka: KafkaBroker, options: tuple[str, ...], in_zookeeper: int
) -> None:
    values, at = topic.numbers(7), TopicPartition(topic.name, 0)
    with Registry.connect(topic.hosts) as registry, Brokers.connect(legacy_kafka.address) as brokers:
        registry.group(topic.group).offsets.set(at, 2)
        brokers.commit({topic.group: {at: 4}})
        ended = topic.consume(TO_END, *options)
        assert (ended.code, ended.lines) == (0, values[4:])
        assert {at: found.offset for at, found in brokers.committed([topic.group])[topic.group].items()} == {at: 7}
    assert topic.left()[0] == {0: in_zookeeper}
    assert (f"{at}: 2 in ZooKeeper, 4 on the brokers" in ended.err) is (in_zookeeper == 7)


def test_an_offset_outside_of_the_log_is_an_error_after_the_other_partitions_were_read(topic: Topic) -> None:
    values, others = topic.numbers(3), topic.numbers(3, partition=1)
    with Registry.connect(topic.hosts) as registry:
        registry.group(topic.group).offsets.set(TopicPartition(topic.name, 0), 5_558)
    ended = topic.consume(TO_END)
    assert (ended.code, ended.lines) == (4, others)
    hint = f"{topic.name}/0 stands still: --from earliest or --from latest goes on there"
    assert [line for line in ended.err.splitlines() if "stands still" in line] == [hint]
    assert topic.left()[0] == {0: 5_558, 1: 3}
    assert topic.consume(TO_END, "--from", "earliest").lines == values
    assert topic.left()[0] == {0: 3, 1: 3}


def test_without_an_end_a_partition_outside_of_its_log_is_reported_and_the_others_are_written(topic: Topic) -> None:
    with Registry.connect(topic.hosts) as registry:
        registry.group(topic.group).offsets.set(TopicPartition(topic.name, 0), 5_558)
    with started(*topic.arguments()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "stands still" not in process.stderr.readline():
            assert process.poll() is None
        values = topic.numbers(2, partition=1)
        assert [process.stdout.readline().strip() for _ in values] == values
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT)
    assert (process.returncode, topic.left()[0]) == (143, {0: 5_558, 1: 2})


def test_an_unreadable_offset_is_reported_after_the_other_partitions_were_read(topic: Topic) -> None:
    values = topic.numbers(3)
    topic.numbers(3, partition=1)
    with Registry.connect(topic.hosts) as registry:
        registry.client.create(f"/consumers/{topic.group}/offsets/{topic.name}/1", b"many", makepath=True)
    ended = topic.consume(TO_END)
    assert (ended.code, ended.lines) == (10, values)
    assert f"/offsets/{topic.name}/1" in ended.err


def test_a_member_for_which_no_partition_is_left_ends_too(topic: Topic) -> None:
    topic.numbers(3)
    with ExitStack() as stack:
        registry = stack.enter_context(Registry.connect(topic.hosts))
        for partition, name in enumerate("abc"):
            instance = stack.enter_context(registry.group(topic.group).instance(name))
            instance.register([topic.name])
            instance.claim(TopicPartition(topic.name, partition))
        ended = topic.consume(TO_END, "--as", "zoe")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.endswith("This member received no partition: the other members hold all of them.\n")


def test_a_log_that_ends_with_the_marker_of_a_transaction_is_read_to_its_end(
    kafka_broker: KafkaBroker, zookeeper_hosts: str, kazoo: KazooClient
) -> None:
    topic = current(kafka_broker, zookeeper_hosts, kazoo)
    settings = {"bootstrap.servers": kafka_broker.address, "transactional.id": topic.name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic.name, b"paid", partition=0)
    producer.commit_transaction(60)
    ended = topic.consume("-b", kafka_broker.address, TO_END)
    assert (ended.code, ended.out) == (0, "paid\n")
    assert topic.left()[0] == {0: 1}


def test_on_a_terminal_invisible_characters_are_escaped(topic: Topic) -> None:
    topic.write(b"a\x1b[31mb")
    with Terminal(*topic.arguments("--max-messages", "1")) as terminal:
        ended = terminal.end()
    assert (ended.code, ended.out) == (0, "a\\x1b[31mb\n")


# The end


@pytest.mark.parametrize("count", [1, 20_000])
def test_a_reader_that_has_enough_ends_it_also_if_no_more_messages_come(topic: Topic, count: int) -> None:
    topic.numbers(count, size=100)
    line = f"{COMMAND} {' '.join(map(str, topic.arguments()))} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.stdout, done.stderr) == (f"{'0-0'.ljust(100, '.')}\n0\n", "")
    offsets, instances, owners = topic.left()
    assert (instances, owners) == ([], [])
    assert offsets.get(0, 0) < 20_000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_commits_what_was_written(topic: Topic, number: int, code: int) -> None:
    values = topic.numbers(5)
    with started(*topic.arguments()) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in values] == values
        process.send_signal(number)
        out, _err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (code, "")
    assert topic.left() == ({0: 5}, [], [])


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_signal_ends_it_while_nobody_reads_and_commits_exactly_the_messages_that_were_written_whole(
    topic: Topic, size: int
) -> None:
    """A pipe takes long messages in parts, so the last one may be torn."""
    values = topic.numbers(1_000, size=size)
    with started(*topic.arguments()) as process:
        wait_until_full(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 143
        *whole, torn = read_all(process).split("\n")
    assert 0 < len(whole) < 1_000
    assert whole == values[: len(whole)]
    assert (torn == "") is (size == 100)
    assert topic.left() == ({0: len(whole)}, [], [])
    assert topic.consume(TO_END).lines == values[len(whole) :]


@pytest.mark.parametrize("options", [("--no-commit",), ("--offsets", "kafka")])
def test_a_signal_while_nobody_reads_commits_where_offsets_are(
    topic: Topic, legacy_kafka: KafkaBroker, options: tuple[str, ...]
) -> None:
    topic.numbers(1_000, size=100)
    with started(*topic.arguments(*options)) as process:
        wait_until_full(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 143
        whole = read_all(process).count("\n")
    assert topic.left() == ({}, [], [])
    with Brokers.connect(legacy_kafka.address) as brokers:
        found = [committed.offset for committed in brokers.committed([topic.group])[topic.group].values()]
    assert found == ([whole] if "kafka" in options else [])


def test_a_rebalance_while_nobody_reads_lets_no_message_be_written_twice(topic: Topic) -> None:
    """The last partition goes to the second member."""
    values = topic.numbers(3_000, partition=2, size=100)
    with started(*topic.arguments("--as", "a")) as slow:
        wait_until_full(slow.pid)
        with started(*topic.arguments("--as", "b")) as quick:
            taken = lines_until(quick, values[-1])
            quick.send_signal(signal.SIGTERM)
            assert quick.wait(TIMEOUT) == 143
        slow.send_signal(signal.SIGTERM)
        assert slow.wait(TIMEOUT) == 143
        written = read_all(slow).splitlines()
    assert written + taken == values
    assert topic.left() == ({2: 3_000}, [], [])


def test_a_signal_ends_it_soon_while_nobody_reads_and_another_client_keeps_a_partition_of_its_share(
    topic: Topic,
) -> None:
    values = topic.numbers(1_000, size=100)
    with Registry.connect(topic.hosts) as registry:
        owner = f"/consumers/{topic.group}/owners/{topic.name}/2"
        registry.client.create(owner, b"z-0", ephemeral=True, makepath=True)
        with started(*topic.arguments()) as process:
            assert process.stderr is not None
            assert "waiting: " in process.stderr.readline()
            wait_until_full(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON) == 143
            whole = read_all(process).splitlines()
        assert whole == values[: len(whole)]
        offsets, instances, owners = topic.left()
    assert (offsets, instances, [owner.id for owner in owners]) == ({0: len(whole)}, [], ["z-0"])


def wait_until_full(process: int, descriptor: int = 1) -> None:
    """Wait until a pipe of a process, by default that of its output, is full. Nothing is read."""
    pipe = os.open(f"/proc/{process}/fd/{descriptor}", os.O_WRONLY)
    try:
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        assert eventually(lambda: not room.poll(0), timeout=TIMEOUT)
    finally:
        os.close(pipe)


def read_all(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """Read lines up to the last one."""
    assert process.stdout is not None
    lines: list[str] = []
    while last not in lines[-1:]:
        line = process.stdout.readline()
        assert line, "the command has ended"
        lines.append(line.strip())
    return lines


# Into a command


def test_a_command_receives_the_messages_and_its_group_in_the_environment(topic: Topic) -> None:
    values = topic.numbers(5)
    ended = topic.consume(TO_END, "--", "sh", "-c", 'cat; echo "$ZKGROUPS_GROUP $ZKGROUPS_TOPICS"')
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == [*values, f"{topic.group} {topic.name}"]
    assert topic.left() == ({0: 5}, [], [])


def test_the_exit_code_of_a_command_is_handed_on_and_its_end_is_the_end(topic: Topic) -> None:
    topic.numbers(20_000, size=100)
    ended = topic.consume("--", "sh", "-c", "head -c 300000 > /dev/null; exit 3")
    assert ended.code == 3
    offsets, instances, owners = topic.left()
    assert offsets.get(0, 0) < 20_000
    assert (instances, owners) == ([], [])


def test_a_command_that_has_closed_its_input_is_waited_for(topic: Topic) -> None:
    topic.numbers(5_000, size=100)
    ended = topic.consume("--", "sh", "-c", "exec < /dev/null; sleep 0.3; echo end")
    assert (ended.code, ended.lines) == (0, ["end"])
    assert topic.left()[0].get(0, 0) < 5_000


def test_after_ctrl_c_a_command_can_finish_its_input(topic: Topic, tmp_path: Path) -> None:
    values, file = topic.numbers(5), tmp_path / "messages"
    with started(*topic.arguments("--", "sh", "-c", f"cat >> {file}; echo end >> {file}")) as process:
        assert eventually(lambda: file.exists() and file.read_text().split() == values)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    assert file.read_text().split() == [*values, "end"]
    assert topic.left() == ({0: 5}, [], [])


def test_after_a_signal_a_slow_command_can_read_exactly_the_messages_that_were_committed(
    topic: Topic, tmp_path: Path
) -> None:
    values, file = topic.numbers(1_000, size=100), tmp_path / "messages"
    may_read = tmp_path / "may-read"
    program = f"echo $$; while ! test -e {may_read}; do sleep 0.05; done; cat > {file}"
    with started(*topic.arguments("--grace", f"{TIMEOUT}", "--", "sh", "-c", program)) as process:
        assert process.stdout is not None
        wait_until_full(int(process.stdout.readline()), 0)
        process.send_signal(signal.SIGTERM)
        assert eventually(lambda: topic.left()[1:] == ([], []), timeout=TIMEOUT)
        may_read.touch()
        assert process.wait(TIMEOUT) == 143
    whole = file.read_text().splitlines()
    assert whole == values[: len(whole)]
    assert topic.left() == ({0: len(whole)}, [], [])


def test_after_ctrl_c_a_command_that_does_not_end_is_stopped(topic: Topic) -> None:
    topic.numbers(1)
    program = 'trap "" TERM; read line; echo $line; while true; do sleep 0.05; done'
    with started(*topic.arguments("--grace", "0.2", "--", "bash", "-c", program)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0-0\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130


# Refused


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("-o", "table"), 2, "give -o jsonl or -f FORMAT"),
        (("-f", "%q"), 2, "%q is not one of"),
        (("--max-messages", "0"), 2, "--max-messages"),
        (("--", "no-such-command"), 2, "was not found in PATH"),
        (("--read-only",), 4, "--read-only"),
        (("--offsets", "both"), 2, "give --truth together with --offsets both"),
    ],
)
def test_what_cannot_work_is_refused_before_joining(
    topic: Topic, arguments: tuple[str, ...], code: int, text: str
) -> None:
    ended = topic.consume(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert text in ended.err
    assert topic.left() == ({}, [], [])


@pytest.mark.zookeeper
def test_a_missing_topic_and_missing_brokers_are_reported(zkgroups: Zkgroups, cluster: None) -> None:
    ended = zkgroups("consume", "billing", "nowhere", "-b", "127.0.0.1:1")
    assert (ended.code, ended.err) == (3, "zkgroups: topic 'nowhere' does not exist: check the name and the address\n")
    ended = zkgroups("consume", "billing", "nowhere")
    assert (ended.code, "give -b HOST:PORT" in ended.err) == (2, True)
