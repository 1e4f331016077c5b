"""Messages about committed offsets that are read and written by hand: equal to those of kafka-python, in bytes that
kio wrote."""

from __future__ import annotations

import dataclasses
import random
import struct
import tracemalloc
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.input_errors import InvalidNameError
from zkgroups.kafka.requests import commit_offsets, fetch_offsets
from zkgroups.kafka.requests.commit_offsets import CommitRequest
from zkgroups.kafka.requests.fetch_offsets import MANY
from zkgroups.kafka.requests.fetch_offsets import Fetched as Committed
from zkgroups.kafka.requests.group_requests import GroupCode, partition_of
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import DamagedAnswerError

from .test_codec import TEXTS, oracle, written

VERSIONS = range(codec.APIS[codec.OFFSET_FETCH].first, codec.APIS[codec.OFFSET_FETCH].last + 1)
RUNS = 30
NAMES = ("orders", "a", "größe", "x" * 200)
GROUPS = ("billing", "größe/日本", "", "y" * 300)


class Maker:
    """Random answers of kio that brokers could send."""

    def __init__(self, version: int, run: int) -> None:
        self.chance = random.Random(run)
        self.version = version
        self.kind = oracle(codec.OFFSET_FETCH, version, "Response")
        self.modules = vars(import_module(self.kind.__module__))
        self.plain = self.chance.random() < 0.5

    def frame(self) -> bytes:
        """An answer with the header."""
        message = self._made(self.kind)
        return written(self.kind.__header_schema__(correlation_id=7)) + written(message)

    def _made(self, kind: Any, **fixed: Any) -> Any:
        wanted = {each.name: each for each in dataclasses.fields(kind)}
        return kind(**{name: self._value(name) for name in wanted if name not in fixed}, **fixed)

    def _value(self, name: str) -> Any:
        chance = self.chance
        if name == "groups":
            groups = chance.sample(GROUPS, chance.randrange(len(GROUPS) + 1))
            return tuple(self._made(self._inner("Group"), group_id=group) for group in groups)
        if name == "topics":
            names = chance.sample(NAMES, chance.choice((0, 1, 1, 1, 3)))
            return tuple(self._made(self._inner("Topic", "Topics"), name=each) for each in names)
        if name == "partitions":
            numbers = chance.sample((*range(60), 2**31 - 1), chance.choice((0, 1, 3, 50)))
            inner = self._inner("Partition", "Partitions")
            return tuple(self._made(inner, partition_index=number) for number in numbers)
        if name == "metadata":
            return chance.choice(("", None)) if self.plain else chance.choice((None, *TEXTS))
        if name == "error_code":
            return chance.choice(list(ErrorCode)) if chance.random() < 0.01 else ErrorCode.none
        if name == "throttle_time":
            return timedelta(milliseconds=chance.randrange(2**31))
        bits = 63 if name == "committed_offset" else 31
        return chance.choice((-1, 0, 2**bits - 1, chance.randrange(2**bits)))

    def _inner(self, *ends: str) -> Any:
        return next(found for end in ends if (found := self.modules.get(f"OffsetFetchResponse{end}")) is not None)


def expected(version: int, frame: bytes, name: str) -> dict[str, Committed | GroupCode]:
    """The answer, as kafka-python reads it."""
    answer = codec.decode(codec.OffsetFetchRequest(), version, frame)
    if version >= MANY:
        return {each.group_id: _group(each.group_id, each.error_code, each.topics) for each in answer.groups}
    return {name: _group(name, answer.error_code, answer.topics)}


def _group(group: str, code: int, topics: list[Any]) -> Committed | GroupCode:
    rows = sorted((topic.name, each.partition_index, each) for topic in topics for each in topic.partitions)
    errors = [code, *(each.error_code for topic in topics for each in topic.partitions)]
    if any(errors):
        return GroupCode(next(filter(None, errors)))
    return {
        TopicPartition(name, number): NativeOffset(
            group,
            TopicPartition(name, number),
            each.committed_offset,
            each.metadata or None,
            None if each.committed_leader_epoch < 0 else each.committed_leader_epoch,
        )
        for name, number, each in rows
        if each.committed_offset >= 0
    }


def as_lists(found: dict[str, Committed | GroupCode]) -> Any:
    """Answers as lists, in the order of partitions. Of several errors, any may be reported."""
    return {group: "error" if isinstance(it, GroupCode) else list(it.items()) for group, it in found.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_read_as_by_the_oracles(version: int) -> None:
    committed = 0
    for run in range(RUNS):
        frame = Maker(version, run).frame()
        found = fetch_offsets.read(["asked"], version, frame)
        assert as_lists(found) == as_lists(expected(version, frame, "asked"))
        committed += sum(len(each) for each in found.values() if not isinstance(each, GroupCode))
    assert committed > RUNS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cut_or_longer_answer_is_damaged(version: int) -> None:
    for run in (1, 2, 3, 4):
        frame = Maker(version, run).frame()
        for end in (*range(4, len(frame), 1 + len(frame) // 100), len(frame) - 1):
            with pytest.raises(DamagedAnswerError):
                fetch_offsets.read(["asked"], version, frame[:end])
        with pytest.raises(DamagedAnswerError):
            fetch_offsets.read(["asked"], version, frame + b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_other_bytes_are_read_or_damaged_within_little_memory(version: int) -> None:
    frames = [Maker(version, run).frame() for run in range(5)]
    tracemalloc.start()
    try:
        for run in range(300):
            chance = random.Random(run)
            frame = bytearray(chance.choice(frames)[:2000])
            for _ in range(chance.choice((1, 2, 10))):
                frame[chance.randrange(4, len(frame))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(DamagedAnswerError, InvalidNameError):
                fetch_offsets.read(["asked"], version, bytes(frame))
            assert tracemalloc.get_traced_memory()[1] - before < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2**31 - 1, 10_000_000])
@pytest.mark.parametrize("version", [3, 9])
def test_an_answer_that_promises_more_than_it_has_is_damaged_at_once(version: int, count: int) -> None:
    start = struct.pack(">ii", 7, 0) if version == 3 else struct.pack(">ibi", 7, 0, 0)
    promised = struct.pack(">i", count)
    if version == 9:
        size = count + 1
        promised = bytes([*((size >> 7 * index & 0x7F) | 0x80 for index in range(4)), size >> 28])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(DamagedAnswerError):
            fetch_offsets.read(["asked"], version, start + promised + bytes(100))
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()


def test_fields_of_a_later_release_are_skipped() -> None:
    row = struct.pack(">iqi", 3, 9, -1) + b"\1" + struct.pack(">h", 0)
    extra = b"\2" + b"\0\3abc" + b"\x85\1\0"
    topic = b"\7orders" + b"\3" + row + extra + row.replace(b"\3", b"\4", 1) + b"\0" + extra
    group = b"\2g" + b"\2" + topic + struct.pack(">h", 0) + extra
    frame = struct.pack(">i", 7) + b"\0" + struct.pack(">i", 0) + b"\2" + group + extra
    places = [TopicPartition("orders", number) for number in (3, 4)]
    assert fetch_offsets.read(["g"], 9, frame) == {"g": {at: NativeOffset("g", at, 9) for at in places}}
    assert codec.decode(codec.OffsetFetchRequest(), 9, frame)


# Commits


@pytest.mark.parametrize("version", range(2, 10))
def test_a_template_makes_the_bytes_of_the_encoder(version: int) -> None:
    places = [TopicPartition(topic, number) for topic in ("a", "b") for number in (0, 3, 200)]
    for group in ("a b", "größe/日本🎉", "with a NUL\0", "y" * 127, "x" * 300, "z" * 20_000):
        offsets = [NativeOffset(group, at, 2**63 - 1 - number) for number, at in enumerate(places)]
        plain = codec.encode(commit_offsets._message(group, offsets), version, 77, "client")
        frame, template = commit_offsets.encode(CommitRequest(group, offsets), version, 77, "client")
        assert template is not None
        assert frame == plain


def test_only_an_equal_answer_without_errors_is_not_decoded() -> None:
    at = TopicPartition("a", 0)
    _, template = commit_offsets.encode(CommitRequest("g", [NativeOffset("g", at, 1)]), 8, 1, "another client")
    kind = codec.OffsetCommitResponse

    def answer(*codes: int, first: int = 0) -> bytes:
        part = kind.OffsetCommitResponseTopic.OffsetCommitResponsePartition
        parts = [part(partition_index=number, error_code=code) for number, code in enumerate(codes, first)]
        response = kind(throttle_time_ms=0, topics=[kind.OffsetCommitResponseTopic(name="a", partitions=parts)])
        return b"\0\0\0\1\0" + bytes(response.encode(version=8))

    assert commit_offsets.read(8, answer(), template) == {}
    assert commit_offsets.read(8, answer(16), template) == {("a", 0): 16}
    assert commit_offsets.read(8, answer(0, first=7), template) == {("a", 7): 0}
    assert template is not None
    assert template.good is None
    assert commit_offsets.read(8, answer(0), template) == {("a", 0): 0}
    assert commit_offsets.read(8, b"\0\0\0\2" + answer(0)[4:], template) is None
    assert commit_offsets.read(8, answer(16), template) == {("a", 0): 16}


def test_the_hash_of_a_group_is_its_partition() -> None:
    """The values are those of Java's String.hashCode."""
    assert [partition_of(name, 2**31) for name in ("", "a", "hello world")] == [0, 97, 1794106052]
    assert partition_of("polygenelubricants", 50) == 0  # the lowest hash of all
