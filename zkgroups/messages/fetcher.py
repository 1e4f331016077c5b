"""The client of confluent-kafka that fetches messages. It belongs to no group and commits nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Broker
from ..deadline import uptime
from ..exceptions import InvalidOptionError, MissingDependencyError
from ..zookeeper.session.errors import not_held

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


# What confluent-kafka says while brokers are down: many times a second that it cannot connect.
#
# Its log goes to `zkgroups.librdkafka` at level DEBUG. Callers report its errors, each kind only now and then.


_AGAIN: Final = 30.0
"""In seconds: when an error of the same kind is reported again."""

_SILENCE: Final = 60.0
"""In seconds: without an error for so long, the brokers can be reached again. The client connects more often."""

_SERVED: Final = frozenset({"error_cb", "logger", "stats_cb", "statistics.interval.ms", "throttle_cb"})
"""Settings that queue something for calls of `poll`."""

_CRITICAL: Final = 2
"""The level of syslog."""


class _ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Demotes what is not critical to DEBUG: confluent-kafka logs each failed connection as an error."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(level if level >= logging.CRITICAL else logging.DEBUG, msg, *args, **kwargs)


CLIENT_LOG: Final = _ClientLog(logging.getLogger("zkgroups.librdkafka"), None)
"""The `logger` of clients that are polled. The user's settings may have another one."""


def unserved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that nobody polls: errors and log lines in its queue would fill the memory.

    It writes its log to stderr, from `log_level` 2 (critical) on.
    """
    return {"log_level": _CRITICAL, **{name: value for name, value in settings.items() if name not in _SERVED}}


class Outage:
    """Whether a client cannot reach brokers, and which of its errors are worth a report."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._due: dict[int, float] = {}  # by the codes of errors

    @property
    def begun(self) -> bool:
        """True while brokers cannot be reached, as far as known."""
        return self._last is not None

    def failed(self, error: KafkaError) -> bool:
        """Note an error. Return whether to report it: the first of its kind, or the first for some time."""
        self._last = now = uptime()
        if now < self._due.get(error.code(), now):
            return False
        self._due[error.code()] = now + _AGAIN
        return True

    def ended(self, *, answered: bool) -> bool:
        """Return True once when brokers can be reached again: one has answered, or errors have stopped for long."""
        if self._last is None or not (answered or uptime() > self._last + _SILENCE):
            return False
        self._last = None
        self._due.clear()
        return True


# The settings of the Kafka client. confluent-kafka is imported here, when the first consumer is created.


_ADDRESS: Final = "bootstrap.servers"
_ASKS: Final = "api.version.request"
FALLBACK: Final = "broker.version.fallback"

_RESERVED: Final = {
    "auto.commit.enable": "use auto_commit_every: offsets are committed to ZooKeeper",
    "auto.commit.interval.ms": "use auto_commit_every: offsets are committed to ZooKeeper",
    "auto.offset.reset": "use start_at and out_of_range",
    "enable.auto.commit": "use auto_commit_every: offsets are committed to ZooKeeper",
    "enable.auto.offset.store": "use auto_commit_every: offsets are committed to ZooKeeper",
    "group.instance.id": "use id and a session_file",
    "partition.assignment.strategy": "use assignors",
}
"""Settings that have another meaning here, and the option to use instead."""

_QUEUE_PAUSE: Final = 20
"""In milliseconds. A client that has fetched enough in advance looks so often whether it should fetch more. The default
of librdkafka, a second, lets a partition stand still for almost as long after a pause: measured in `Consumer.run`."""


def confluent() -> ModuleType:
    """Import confluent-kafka. Raise `MissingDependencyError` if it is not installed."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "a Consumer reads with confluent-kafka; from the checkout: pip install '.[consumer]'"
        ) from error
    return confluent_kafka


def client_settings(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's settings as a dictionary. Raise `InvalidOptionError` for a reserved setting.

    >>> client_settings("kafka1:9092,kafka2:9092")
    {'bootstrap.servers': 'kafka1:9092,kafka2:9092'}
    """
    given = {_ADDRESS: kafka} if isinstance(kafka, str) else kafka
    if not isinstance(given, Mapping):
        raise InvalidOptionError("kafka", kafka, "it must be an address of brokers, or settings of confluent-kafka")
    settings = dict(given)
    if not settings.get(_ADDRESS) and not settings.get("metadata.broker.list"):
        raise InvalidOptionError("kafka", ..., f"give the addresses of brokers as {_ADDRESS!r}")
    for name in sorted(_RESERVED.keys() & settings.keys()):
        raise InvalidOptionError("kafka", ..., f"leave out {name!r}: {_RESERVED[name]}")
    return settings


def old_release_settings(settings: Mapping[str, Any], brokers: Iterable[object]) -> dict[str, Any]:
    """Return the settings for brokers before 0.10, which do not answer when they are asked for their release.

    They are empty if all live brokers are newer, or if the user has set the release.

    >>> old_release_settings({}, [Broker(1, "kafka1", 9092, (), "0.9.0"), Broker(2, "kafka2", 9092, (), "0.8.2")])
    {'api.version.request': False, 'broker.version.fallback': '0.8.2'}
    """
    releases = [found.old_release for found in brokers if isinstance(found, Broker) and found.old_release]
    if not releases or not settings.keys().isdisjoint((_ASKS, FALLBACK)):
        return {}
    return {_ASKS: False, FALLBACK: min(releases)}


def fetching_settings(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings of the client that fetches: it commits nothing, and reports a position outside of the log."""
    default = {"group.id": group, "fetch.queue.backoff.ms": _QUEUE_PAUSE, "enable.partition.eof": True}
    fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}
    return {**default, **settings, **fixed}


def reason(error: Exception) -> str:
    """Return the text of an error of confluent-kafka."""
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(error)


_LOOK: Final = 1.0
"""In seconds: how often to note the log ends that came with fetches."""

_FEW: Final = 50
"""Up to this number of partitions, it is faster to ask the client for their positions than to look at each message."""


_NONE: Final[frozenset[TopicPartition]] = frozenset()


class Pause(Enum):
    """Why a partition is not fetched. It is fetched again when no reason is left."""

    USER = auto()
    """The caller has paused it."""
    FULL = auto()
    """Too many of its messages are not finished."""


class Fetcher:
    """Fetches the partitions that are assigned to it. `on_error` receives errors that concern no partition.

    One thread fetches, assigns and unassigns. Other threads may call the other methods. These do not use the client: it
    serves one call at a time, so they would wait as long as the first thread fetches.
    """

    def __init__(self, settings: Mapping[str, Any], on_error: Callable[[KafkaError], object]) -> None:
        kafka = confluent()
        users = settings.get("error_cb")

        def error_cb(error: KafkaError) -> None:
            on_error(error)
            if users is not None:
                users(error)

        self._partition = kafka.TopicPartition
        self._failure = kafka.KafkaException
        try:
            self._client = kafka.Consumer({"logger": CLIENT_LOG, **settings, "error_cb": error_cb})
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise InvalidOptionError("kafka", ..., f"confluent-kafka refuses the settings: {reason(error)}") from error
        self._assigned: set[TopicPartition] = set()
        self._pauses: dict[TopicPartition, set[Pause]] = {}
        self._places: tuple[list[TopicPartition], list[Any]] | None = None  # what is assigned, and for the client
        self._paused: set[TopicPartition] = set()  # as the client knows them
        self._pauses_changed = False
        self._log_ends: dict[TopicPartition, int] = {}
        self._look_at = 0.0  # when to note them again; at once if a partition begins
        self._reader = 0  # the thread that fetches
        self._lock = threading.RLock()
        self._fetching = threading.RLock()  # held while messages are fetched: the client must not be closed then

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are fetched, or paused."""
        with self._lock:
            return frozenset(self._assigned)

    @property
    def in_use(self) -> bool:
        """True if there is a partition to fetch."""
        return bool(self._assigned)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin these partitions at these offsets, or begin them again. Other partitions keep what was fetched."""
        if not positions:
            return
        with self._lock:
            self.unassign(positions)
            self._client.incremental_assign([self._partition(*at, offset) for at, offset in positions.items()])
            self._assigned |= positions.keys()
            self._places = None
            self._pauses_changed = True
            self._look_at = 0.0

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Messages that have been fetched before do not come any more."""
        with self._lock:
            if known := self._assigned.intersection(partitions):
                self._client.resume(self._named(known & self._paused))  # otherwise it is still paused in its next life
                self._client.incremental_unassign(self._named(known))
                self._assigned -= known
                self._places = None
                self._paused -= known
                for at in known:
                    self._log_ends.pop(at, None)

    def pause(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Do not fetch these partitions until this reason is taken back."""
        with self._lock:
            for at in partitions:
                self._pauses.setdefault(at, set()).add(why)
            self._pauses_changed = True

    def resume(self, partitions: Iterable[TopicPartition], why: Pause) -> None:
        """Take a reason for a pause back."""
        with self._lock:
            for at in partitions:
                if (reasons := self._pauses.get(at)) is not None:
                    reasons.discard(why)
                    if not reasons:
                        del self._pauses[at]
            self._pauses_changed = True

    def _carry_out_pauses(self) -> None:
        with self._lock:
            self._pauses_changed = False
            wanted = self._assigned & self._pauses.keys()
            new, free = wanted - self._paused, self._paused - wanted
            self._paused = wanted
        if new:
            self._client.pause(self._named(new))
        if free:
            self._client.resume(self._named(free))

    def forget_pauses(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget why these partitions are paused: they are not held any more."""
        with self._lock:
            for at in partitions:
                self._pauses.pop(at, None)

    def paused(self, why: Pause) -> frozenset[TopicPartition]:
        """Return the partitions that are paused for this reason."""
        if not self._pauses:
            return _NONE
        with self._lock:
            return frozenset(at for at, reasons in self._pauses.items() if why in reasons)

    def fetch(self, most: int, timeout: float) -> list[Message]:
        """Return messages and errors of partitions. Wait at most `timeout` for the first."""
        with self._fetching:
            self._reader = threading.get_ident()
            if self._pauses_changed:
                self._carry_out_pauses()
            found: list[Message] = self._client.consume(most, 0.0)
            if timeout and not found:
                found = self._wait(most, timeout)
            if (now := uptime()) >= self._look_at:
                partitions = self.assigned
                self._note_log_ends(partitions)
                all_known = bool(partitions) and partitions <= self._log_ends.keys()
                self._look_at = now + _LOOK if all_known else now
            return found

    def _wait(self, most: int, timeout: float) -> list[Message]:
        first = self._client.poll(timeout)  # `consume` would wait until it has all
        if first is None:
            return []
        return [first, *(self._client.consume(most - 1, 0.0) if most > 1 else ())]

    def positions(self) -> tuple[list[TopicPartition], list[Any]] | None:
        """Return the fetched partitions, and the client's position of each. Only for the thread that fetches.

        None if looking at the messages is faster.
        """
        if len(self._assigned) > _FEW:
            return None
        if self._places is None:
            places = sorted(self._assigned)
            self._places = places, self._named(places)
        places, named = self._places
        return places, self._client.position(named)

    def log_end(self, at: TopicPartition) -> int | None:
        """Return the log end as of the last fetch; for other threads, of the last second. None if it is not known."""
        if threading.get_ident() == self._reader:
            self._note_log_ends([at])
        return self._log_ends.get(at)

    def _note_log_ends(self, partitions: Iterable[TopicPartition]) -> None:
        """Note what came with the last fetches. Sends no request."""
        for at in partitions:
            with suppress(self._failure, RuntimeError):
                _start, end = self._client.get_watermark_offsets(self._partition(*at), cached=True)
                if end >= 0:
                    self._log_ends[at] = end

    def close(self) -> None:
        """Close the client."""
        with not_held(self._fetching, "a consumer that is fetching"), self._lock:
            self._assigned.clear()
            self._client.close()

    def _named(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        return [self._partition(*at) for at in partitions]
