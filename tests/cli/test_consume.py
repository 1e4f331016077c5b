"""`zkgroups consume`: what it writes, what it commits, and how it ends. With real brokers."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from zkgroups_cli.consume import sinks
from zkgroups_cli.consume.sinks import ByteSink, for_terminal, json_line, parse_format, raw_line

from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from .running import COMMAND, TIMEOUT, Argument, Ended, Terminal, environment, run, started

_numbers = itertools.count()

TO_END = "--exit-at-end"


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


def test_a_number_of_messages_is_written_and_the_next_run_goes_on_there(topic: Topic) -> None:
    values = topic.numbers(10)
    assert topic.consume("--max-messages", "3", "-f", r"%o=%s\n").lines == [f"{n}={values[n]}" for n in range(3)]
    assert topic.left() == ({0: 3}, [], [])
    assert topic.consume("--max-messages", "7").lines == values[3:]


def test_without_commits_no_offset_is_written(topic: Topic) -> None:
    """Also not the log end, where `latest` begins."""
    values = topic.numbers(3)
    assert topic.consume(TO_END, "--no-commit", "--from", "latest").lines == []
    assert topic.consume(TO_END, "--no-commit").lines == values
    assert topic.left() == ({}, [], [])


def test_offsets_on_the_brokers_are_read_and_committed(topic: Topic, legacy_kafka: KafkaBroker) -> None:
    values, at = topic.numbers(7), TopicPartition(topic.name, 0)
    with Registry.connect(topic.hosts) as registry, Brokers.connect(legacy_kafka.address) as brokers:
        registry.group(topic.group).offsets.set(at, 2)
        brokers.commit({topic.group: {at: 4}})
        ended = topic.consume(TO_END, "--offsets", "both", "--truth", "kafka")
        assert (ended.code, ended.lines) == (0, values[4:])
        assert {at: found.offset for at, found in brokers.committed([topic.group])[topic.group].items()} == {at: 7}
    assert topic.left()[0] == {0: 7}
    assert f"{at}: 2 in ZooKeeper, 4 on the brokers" in ended.err


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


def wait_until_full(process: int, descriptor: int = 1) -> None:
    """Wait until a pipe of a process, by default that of its output, is full. Nothing is read."""
    pipe = os.open(f"/proc/{process}/fd/{descriptor}", os.O_WRONLY)
    try:
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        assert eventually(lambda: not room.poll(0))
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
        assert eventually(lambda: topic.left()[1:] == ([], []))
        may_read.touch()
        assert process.wait(TIMEOUT) == 143
    whole = file.read_text().splitlines()
    assert whole == values[: len(whole)]
    assert topic.left() == ({0: len(whole)}, [], [])


# Refused


TIME = (1, 1_500_000_000_123)
HEADERS = [("trace", b"1a"), ("trace", b"\xff"), ("empty", None)]


def message(**more: Any) -> Message:
    fields: dict[str, Any] = {"topic": "orders", "partition": 2, "offset": 17, "value": "café".encode(), "key": b"anna"}
    return Message(**fields | {"timestamp": TIME, "headers": HEADERS} | more)


BARE = {"key": None, "value": None, "headers": None, "timestamp": (0, -1)}


def test_a_raw_line_is_the_value_as_it_is() -> None:
    assert raw_line(message(value=b"\xff\n")) == b"\xff\n\n"
    assert raw_line(message(**BARE)) == b"\n"


def test_a_json_line_has_everything_and_what_is_no_text_as_base64() -> None:
    line = json_line(message(key=b"\xff\x00"))
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "schema": 1,
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp_ms": 1_500_000_000_123,
        "headers": [["trace", "1a"], ["trace", {"base64": "/w=="}], ["empty", None]],
        "key": {"base64": "/wA="},
        "value": "café",
    }
    nothing = {"key": None, "value": None, "headers": [], "timestamp_ms": None}
    assert json.loads(json_line(message(**BARE))).items() >= nothing.items()


@pytest.mark.parametrize(
    ("text", "written", "of_bare"),
    [
        (r"%t/%p %o\n", b"orders/2 17\n", b"orders/2 17\n"),
        (r"%k:%s", "anna:café".encode(), b":"),
        (r"%K %S %T", b"4 5 1500000000123", b"-1 -1 -1"),
        (r"%R", b"\0\0\0\x05", b"\xff\xff\xff\xff"),
        (r"%h", b"trace=1a,trace=\xff,empty=NULL", b""),
        (r"100%% \\n\t\x41\x7|\0é", b"100% \\n\tA\x07|\0" + "é".encode(), b"100% \\n\tA\x07|\0" + "é".encode()),
        ("", b"", b""),
    ],
)
def test_a_format_is_filled_in_as_kcat_does_it(text: str, written: bytes, of_bare: bytes) -> None:
    formatter = parse_format(text)
    assert (formatter(message()), formatter(message(**BARE))) == (written, of_bare)


@pytest.mark.parametrize("text", ["%x", "%", "%s %", r"\q", r"a\x", "\\"])
def test_a_format_with_an_unknown_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        parse_format(text)


def test_on_a_terminal_a_message_cannot_change_the_screen() -> None:
    formatter = for_terminal(raw_line)
    assert formatter(message(value=b"a\tb\nc\x1b[31m\xff\r")) == b"a\tb\nc\\x1b[31m\\xff\\r\n"
    assert formatter(message()) == "café\n".encode()


LONG = 3 * select.PIPE_BUF


@dataclass
class Pipe:
    """A pipe, and the sink that writes to it."""

    reader: int
    writer: int
    stopped: bool = False

    def __post_init__(self) -> None:
        self.sink = ByteSink(self.writer, lambda: self.stopped)

    def read(self) -> bytes:
        """Read everything that was written. No more can be written after that."""
        os.close(self.writer)
        with open(self.reader, "rb", closefd=False) as file:
            return file.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    yield pipe
    for descriptor in (pipe.reader, pipe.writer):
        with suppress(OSError):  # the test has closed it
            os.close(descriptor)


def lines(count: int, size: int) -> list[bytes]:
    return [f"{number}".ljust(size - 1).encode() + b"\n" for number in range(count)]


def test_messages_are_written_in_their_order(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_MOMENT", 60.0)  # longer than a machine stands still
    messages = [b"", *lines(100, 10), b"", *lines(3, LONG)]
    assert pipe.sink.write(messages) == len(messages)
    assert pipe.sink.write([]) == 0
    assert pipe.read() == b"".join(messages)


@pytest.mark.parametrize("size", [1, 7, 1_000, select.PIPE_BUF])
def test_a_reader_that_stands_still_gets_no_part_of_a_message(pipe: Pipe, size: int) -> None:
    messages = lines(200_000 // size, size)
    count = 0
    while written := pipe.sink.write(messages[count:]):  # more than once if the machine stands still for a moment
        count += written
    assert 0 < count < len(messages)
    assert pipe.read() == b"".join(messages[:count])


def test_a_message_that_has_begun_is_written_to_its_end(pipe: Pipe) -> None:
    messages = lines(100, LONG)
    counts: list[int] = []
    writing = threading.Thread(target=lambda: counts.append(pipe.sink.write(messages)))
    writing.start()
    read = b""
    while writing.is_alive() or select.select([pipe.reader], [], [], 0)[0]:
        if select.select([pipe.reader], [], [], 0.01)[0]:
            read += os.read(pipe.reader, 1_000)
    assert read == b"".join(messages[: counts[0]])


def test_a_message_that_has_begun_is_torn_if_it_is_stopped(pipe: Pipe) -> None:
    messages, pipe.stopped = lines(100, LONG), True
    count = pipe.sink.write(messages)
    written = pipe.read()
    assert count == len(written) // LONG > 0
    assert len(written) % LONG > 0


def test_a_reader_that_has_gone_is_an_error(pipe: Pipe) -> None:
    pipe.sink.check()
    os.close(pipe.reader)
    with pytest.raises(BrokenPipeError):
        pipe.sink.check()
    with pytest.raises(BrokenPipeError):
        pipe.sink.write([b"paid\n"])
