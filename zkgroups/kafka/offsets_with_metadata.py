"""Offsets of groups with exact metadata, through the C interface of librdkafka.

confluent_kafka (up to 2.16) appends a NUL to all metadata that it commits, and cuts metadata at the first NUL when it
reads. So it cannot restore offsets exactly. This module calls the librdkafka that confluent_kafka has loaded, through
its documented C interface (rdkafka.h). None means no metadata, which brokers do not distinguish from empty metadata.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, cimpl

Call = Sequence[Any]
"""A group and columns: topics, partitions, offsets, metadata, leader epochs. The last two are None if all are empty."""
Answer = tuple[int, "list[Any] | KafkaError | bool"]
"""The number of a request with its rows, its error, or True if all partitions succeeded."""

_Read = Callable[[int, "_Columns"], "list[Any] | KafkaError | bool"]
"""Convert the partitions in the answer to the request with this number."""

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


class _Columns:
    """The memory of a list of partitions as columns, to read or write thousands in one step."""

    def __init__(self, partitions: _Partitions) -> None:
        width = ctypes.sizeof(_Partition)
        self.at = ctypes.addressof(partitions.elems.contents) if partitions.cnt else 0
        bytes_ = (
            memoryview((c_char * (partitions.cnt * width)).from_address(self.at)).cast("B")
            if self.at
            else memoryview(b"")
        )
        self.places = range(self.at, self.at + partitions.cnt * width, width)
        """The address of each partition."""

        def column(field: Any, code: Literal["i", "q", "Q"]) -> Any:
            whole = bytes_.cast(code)
            return whole[field.offset // whole.itemsize :: width // whole.itemsize]

        self.partitions, self.errors = column(_Partition.partition, "i"), column(_Partition.err, "i")
        self.offsets = column(_Partition.offset, "q")
        self._topics, self._notes = column(_Partition.topic, "Q"), column(_Partition.metadata, "Q")
        self._sizes = column(_Partition.metadata_size, "Q")

    @property
    def topics(self) -> list[str]:
        return [ctypes.string_at(topic).decode() for topic in self._topics]

    @property
    def notes(self) -> list[str | None]:
        return [
            ctypes.string_at(note, size).decode(errors="replace") if size else None
            for note, size in zip(self._notes, self._sizes, strict=True)
        ]


_SIGNATURES: Final[Mapping[str, tuple[Any, ...]]] = {
    # The result type, then the argument types.
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
    "topic_partition_get_leader_epoch": (c_int32, c_void_p),
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
    """Return a lookup for the functions of librdkafka, by name without the prefix `rd_kafka_`."""
    library = ctypes.CDLL(cimpl.__file__)  # also finds the libraries that it is linked to

    def function(name: str) -> Any:
        found = library[f"rd_kafka_{name}"]
        found.restype, *found.argtypes = _SIGNATURES[name]
        return found

    functions = {name: function(name) for name in _SIGNATURES}
    return functions.__getitem__


class OffsetsWithMetadata:
    """A client that is never closed: it ends with its process."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._call = _library()
        text = ctypes.create_string_buffer(_TEXT)
        settings = self._call("conf_new")()
        for key, value in {"log_level": "0", **config}.items():
            if self._call("conf_set")(settings, key.encode(), str(value).encode(), text, _TEXT) != 0:
                raise ValueError(
                    f"librdkafka does not take the setting {key}"
                )  # librdkafka's message may contain a secret
        self._client = self._call("new")(_PRODUCER, settings, text, _TEXT)
        if not self._client:
            raise ValueError("librdkafka does not take the settings")
        self._queue = self._call("queue_new")(self._client)
        self._last: tuple[tuple[str, ...], tuple[int, ...]] | None = None
        self._list: Any = None
        """The partitions of the last commit, in librdkafka's memory."""

    def committed(self, groups: Sequence[str], timeout: float) -> Iterator[Answer]:
        """Yield the committed offsets of these groups."""
        for number, group in enumerate(groups):
            self._ask("List", group, None, number, timeout)
        yield from self._answers("List", len(groups), lambda _, found: self._offsets(found))

    def commit(self, calls: Sequence[Call], timeout: float) -> Iterator[Answer]:
        """Commit offsets, one group per call. Yield True, or the error (or None) of each partition."""
        for number, (group, *columns) in enumerate(calls):
            with self._listed(*columns) as partitions:
                self._ask("Alter", group, partitions, number, timeout)
        yield from self._answers("Alter", len(calls), lambda number, found: _outcomes(calls[number], found))

    def _ask(self, operation: str, group: str, partitions: Any, number: int, timeout: float) -> None:
        """Send a request. librdkafka copies its arguments."""
        name = f"{operation}ConsumerGroupOffsets"
        question = c_void_p(self._call(f"{name}_new")(group.encode(), partitions))
        options = self._call("AdminOptions_new")(self._client, _ANY_OPERATION)
        text = ctypes.create_string_buffer(_TEXT)
        self._call("AdminOptions_set_request_timeout")(options, max(1, int(timeout * 1000)), text, _TEXT)
        self._call("AdminOptions_set_opaque")(options, number)
        self._call(name)(self._client, byref(question), 1, options, self._queue)
        self._call("AdminOptions_destroy")(options)
        self._call(f"{name}_destroy")(question)

    @contextmanager
    def _listed(
        self,
        topics: list[str],
        partitions: list[int],
        offsets: list[int],
        notes: list[str | None] | None,
        epochs: list[int | None] | None,
    ) -> Iterator[Any]:
        """Yield a list in librdkafka's memory. It is reused, because thousands of groups have the same partitions."""
        key = (tuple(topics), tuple(partitions))
        if key != self._last:
            self._unlist()
            self._last, self._list = key, self._call("topic_partition_list_new")(len(topics))
            for topic, partition in zip(*key, strict=True):
                self._call("topic_partition_list_add")(self._list, topic.encode(), partition)
        _Columns(self._list.contents).offsets[:] = memoryview(array("q", offsets))
        if notes is None and epochs is None:
            yield self._list
            return
        kept = [self._add(n, *each) for n, each in enumerate(zip(notes or (), epochs or (), strict=True))]
        try:
            yield self._list
        finally:
            for n in range(len(kept)):  # librdkafka would free memory that belongs to Python
                self._list.contents.elems[n].metadata = None
            self._unlist()

    def _unlist(self) -> None:
        if self._list is not None:
            self._call("topic_partition_list_destroy")(self._list)
        self._last = self._list = None

    def _add(self, n: int, metadata: str | None, epoch: int | None) -> object:
        """Add metadata and epoch. Return references that the caller must keep alive as long as the list."""
        added = self._list.contents.elems[n]
        if epoch is not None:
            self._call("topic_partition_set_leader_epoch")(byref(added), epoch)
        if not metadata:
            return None
        note = metadata.encode()
        kept = ctypes.create_string_buffer(note, len(note))
        added.metadata, added.metadata_size = ctypes.addressof(kept), len(note)
        return kept

    def _answers(self, operation: str, count: int, read: _Read) -> Iterator[Answer]:
        """Yield each answer as it arrives. librdkafka answers every request, at the latest with a timeout."""
        while count:
            event = self._call("queue_poll")(self._queue, _POLL_MS)
            if not event:
                continue
            number = self._call("event_opaque")(event) or 0  # a null pointer is None
            try:
                yield number, self._answer(f"{operation}ConsumerGroupOffsets", event, number, read)
            finally:
                self._call("event_destroy")(event)
            count -= 1

    def _answer(self, name: str, event: int, number: int, read: _Read) -> list[Any] | KafkaError | bool:
        if code := self._call("event_error")(event):
            return KafkaError(code, _text(self._call("event_error_string")(event)))
        result = self._call(f"event_{name}_result")(event)
        (group, *_) = self._call(f"{name}_result_groups")(result, byref(c_size_t()))[:1]
        if error := self._call("group_result_error")(group):
            return KafkaError(self._call("error_code")(error), _text(self._call("error_string")(error)))
        return read(number, _Columns(self._call("group_result_partitions")(group).contents))

    def _offsets(self, found: _Columns) -> list[Any] | KafkaError:
        if code := next(filter(None, found.errors), 0):
            return KafkaError(code)
        epochs = map(self._call("topic_partition_get_leader_epoch"), found.places)
        rows = zip(found.topics, found.partitions, found.offsets, found.notes, epochs, strict=True)
        return [
            (topic, partition, offset, note, None if epoch < 0 else epoch)
            for topic, partition, offset, note, epoch in rows
            if offset >= 0  # negative: no offset
        ]


def _outcomes(call: Call, found: _Columns) -> list[Any] | bool:
    _group, topics, partitions, *_ = call
    rows = list(zip(found.topics, found.partitions, found.errors, strict=True))
    if not any(found.errors) and {row[:2] for row in rows} >= set(zip(topics, partitions, strict=True)):
        return True
    return [(topic, partition, _error(code)) for topic, partition, code in rows]


def _error(code: int) -> list[Any] | None:
    return [code, KafkaError(code).str()] if code else None


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
