"""Offsets of groups with their metadata to the byte, by librdkafka's own interface.

confluent_kafka (2.16, and before) adds a NUL to all metadata that it commits, and cuts what it reads at the first one:
whoever puts offsets back by it leaves other metadata than was there. The library is the same that it has loaded, and
is called by its C interface, which is documented and stays (rdkafka.h). None is no metadata, which to a broker is the
same as empty metadata.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Final

from confluent_kafka import KafkaError, cimpl

Row = Sequence[Any]
"""Topic, partition, offset, metadata, leader epoch."""
Answer = tuple[int, "list[list[Any]] | KafkaError"]
"""The number of a question, and what is known of each partition, or why nothing is."""
_Read = Callable[[list[Any]], "list[list[Any]] | KafkaError"]

_PRODUCER: Final = 0
_ANY_OPERATION: Final = 0
_POLL_MS: Final = 100
_TEXT: Final = 512


class _Partition(ctypes.Structure):
    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    )


class _Partitions(ctypes.Structure):
    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(_Partition)))


_SIGNATURES: Final[Mapping[str, tuple[Any, ...]]] = {
    # The type of what comes back, then those of what is passed.
    "conf_new": (c_void_p,),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "queue_new": (c_void_p, c_void_p),
    "queue_poll": (c_void_p, c_void_p, c_int),
    "event_error": (c_int, c_void_p),
    "event_error_string": (c_char_p, c_void_p),
    "event_opaque": (c_void_p, c_void_p),
    "event_destroy": (None, c_void_p),
    "AdminOptions_new": (c_void_p, c_void_p, c_int),
    "AdminOptions_set_request_timeout": (c_int, c_void_p, c_int, c_char_p, c_size_t),
    "AdminOptions_set_opaque": (None, c_void_p, c_void_p),
    "AdminOptions_destroy": (None, c_void_p),
    "topic_partition_list_new": (POINTER(_Partitions), c_int),
    "topic_partition_list_add": (POINTER(_Partition), POINTER(_Partitions), c_char_p, c_int32),
    "topic_partition_list_destroy": (None, POINTER(_Partitions)),
    "topic_partition_set_leader_epoch": (None, POINTER(_Partition), c_int32),
    "topic_partition_get_leader_epoch": (c_int32, POINTER(_Partition)),
    "group_result_error": (c_void_p, c_void_p),
    "group_result_partitions": (POINTER(_Partitions), c_void_p),
    "error_code": (c_int, c_void_p),
    "error_string": (c_char_p, c_void_p),
    **{
        f"{before}{operation}ConsumerGroupOffsets{after}": signature
        for operation in ("List", "Alter")
        for before, after, signature in (
            ("", "_new", (c_void_p, c_char_p, POINTER(_Partitions))),
            ("", "_destroy", (None, c_void_p)),
            ("", "", (None, c_void_p, POINTER(c_void_p), c_size_t, c_void_p, c_void_p)),
            ("event_", "_result", (c_void_p, c_void_p)),
            ("", "_result_groups", (POINTER(c_void_p), c_void_p, POINTER(c_size_t))),
        )
    },
}


def _library() -> Callable[[str], Any]:
    """What librdkafka has by a name, without what all its names begin with."""
    library = ctypes.CDLL(cimpl.__file__)  # finds what this one is linked to as well

    def function(name: str) -> Any:
        found = library[f"rd_kafka_{name}"]
        found.restype, *found.argtypes = _SIGNATURES[name]
        return found

    functions = {name: function(name) for name in _SIGNATURES}
    return functions.__getitem__


class ExactOffsets:
    """A client that lives as long as its process."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._call = _library()
        text = ctypes.create_string_buffer(_TEXT)
        settings = self._call("conf_new")()
        for key, value in {"log_level": "0", **config}.items():
            if self._call("conf_set")(settings, key.encode(), str(value).encode(), text, _TEXT) != 0:
                raise ValueError(f"librdkafka does not take the setting {key}")  # its own words may have a secret
        self._client = self._call("new")(_PRODUCER, settings, text, _TEXT)
        if not self._client:
            raise ValueError("librdkafka does not take the settings")
        self._queue = self._call("queue_new")(self._client)

    def committed(self, groups: Sequence[str], patience: float) -> Iterator[Answer]:
        """What each of these groups has committed."""
        for number, group in enumerate(groups):
            self._ask("List", number, group, None, patience)
        yield from self._answers("List", len(groups), self._offsets)

    def commit(self, calls: Sequence[tuple[str, Sequence[Row]]], patience: float) -> Iterator[Answer]:
        """Commit offsets, each call's for one group; of every partition the answer is its error, or None."""
        for number, (group, rows) in enumerate(calls):
            self._ask("Alter", number, group, rows, patience)
        yield from self._answers("Alter", len(calls), _outcomes)

    def _ask(self, operation: str, number: int, group: str, rows: Sequence[Row] | None, patience: float) -> None:
        name = f"{operation}ConsumerGroupOffsets"
        question = c_void_p(self._question(name, group, rows))
        options = self._call("AdminOptions_new")(self._client, _ANY_OPERATION)
        text = ctypes.create_string_buffer(_TEXT)
        self._call("AdminOptions_set_request_timeout")(options, max(1, int(patience * 1000)), text, _TEXT)
        self._call("AdminOptions_set_opaque")(options, number)
        self._call(name)(self._client, byref(question), 1, options, self._queue)
        self._call("AdminOptions_destroy")(options)
        self._call(f"{name}_destroy")(question)

    def _question(self, name: str, group: str, rows: Sequence[Row] | None) -> int:
        """Both are copied by librdkafka, names and metadata too."""
        if rows is None:
            return int(self._call(f"{name}_new")(group.encode(), None))
        partitions = self._call("topic_partition_list_new")(len(rows))
        notes = [self._add(partitions, *row) for row in rows]
        try:
            return int(self._call(f"{name}_new")(group.encode(), partitions))
        finally:
            for n in range(len(notes)):  # which librdkafka would free, and which are not its own
                partitions.contents.elems[n].metadata = None
            self._call("topic_partition_list_destroy")(partitions)

    def _add(
        self, partitions: Any, topic: str, number: int, offset: int, metadata: str | None, epoch: int | None
    ) -> object:
        """Returns what must stay in memory as long as the list."""
        added = self._call("topic_partition_list_add")(partitions, topic.encode(), number)
        added.contents.offset = offset
        if epoch is not None:
            self._call("topic_partition_set_leader_epoch")(added, epoch)
        if not metadata:
            return None
        note = metadata.encode()
        kept = ctypes.create_string_buffer(note, len(note))
        added.contents.metadata, added.contents.metadata_size = ctypes.addressof(kept), len(note)
        return kept

    def _answers(self, operation: str, count: int, read: _Read) -> Iterator[Answer]:
        """Each as soon as it is there; librdkafka answers all, if only that time is up."""
        while count:
            event = self._call("queue_poll")(self._queue, _POLL_MS)
            if not event:
                continue
            number = self._call("event_opaque")(event) or 0  # a null pointer is None
            try:
                yield number, self._answer(f"{operation}ConsumerGroupOffsets", event, read)
            finally:
                self._call("event_destroy")(event)
            count -= 1

    def _answer(self, name: str, event: int, read: _Read) -> list[list[Any]] | KafkaError:
        if code := self._call("event_error")(event):
            return KafkaError(code, _text(self._call("event_error_string")(event)))
        result = self._call(f"event_{name}_result")(event)
        (group, *_) = self._call(f"{name}_result_groups")(result, byref(c_size_t()))[:1]
        if error := self._call("group_result_error")(group):
            return KafkaError(self._call("error_code")(error), _text(self._call("error_string")(error)))
        partitions = self._call("group_result_partitions")(group).contents
        return read([partitions.elems[n] for n in range(partitions.cnt)])

    def _offsets(self, partitions: list[Any]) -> list[list[Any]] | KafkaError:
        if code := next((each.err for each in partitions if each.err), 0):
            return KafkaError(code)
        return [self._offset(each) for each in partitions if each.offset >= 0]  # below are signs for none

    def _offset(self, partition: Any) -> list[Any]:
        size = partition.metadata_size
        note = ctypes.string_at(partition.metadata, size).decode(errors="replace") if size else None
        epoch = self._call("topic_partition_get_leader_epoch")(byref(partition))
        return [partition.topic.decode(), partition.partition, partition.offset, note, None if epoch < 0 else epoch]


def _outcomes(partitions: list[Any]) -> list[list[Any]]:
    return [[each.topic.decode(), each.partition, _error(each.err)] for each in partitions]


def _error(code: int) -> list[Any] | None:
    return [code, KafkaError(code).str()] if code else None


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
