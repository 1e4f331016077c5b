"""A verifiable producer, and the account of what became of its messages."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer

from zkgroups.testing import KafkaBroker

Place = tuple[int, int]
"""A partition and an offset."""

KEYS: Final = 12
WINDOW: Final = 50
"""The most messages of a partition that a worker has at a time."""
IN_FLIGHT: Final = WINDOW + 25
"""The most messages of a partition that are handled again after a fault: also those since the last commit."""
_PAUSE: Final = 0.01
_SETTINGS: Final = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "log_level": 0,
    "message.timeout.ms": 0,
    "topic.metadata.propagation.max.ms": 600_000,  # a broker that has just started does not know its topics
}
_LONGEST: Final = 60.0


class VerifiableProducer:
    """Writes numbered messages to each key until it is stopped. It knows the place of each one."""

    def __init__(self, broker: KafkaBroker, topic: str, partitions: int, random: Random) -> None:
        self._producer = Producer({"bootstrap.servers": broker.address, **_SETTINGS})
        self._topic, self._partitions, self._random = topic, partitions, random
        self._numbers: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._sent: dict[Place, tuple[str, int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def sent(self) -> dict[Place, tuple[str, int]]:
        """The key and the number of each message that the broker has."""
        with self._lock:
            return dict(self._sent)

    @property
    def ends(self) -> dict[int, int]:
        """The offset after the last message of each partition."""
        ends: dict[int, int] = {}
        for partition, offset in self.sent:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE):
            key = self._random.randrange(KEYS)
            number = self._numbers[key]
            self._numbers[key] += 1
            while not self._is_produced(key, number):
                self._producer.poll(_PAUSE)
            self._producer.poll(0)

    def _is_produced(self, key: int, number: int) -> bool:
        place = key % self._partitions
        try:
            self._producer.produce(self._topic, str(number), str(key), place, on_delivery=self._delivered)
        except KafkaException:  # the topic is not known again yet
            return False
        return True

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        with self._lock:
            self._sent[message.partition(), message.offset()] = (message.key().decode(), int(message.value()))

    def stop(self) -> None:
        """Stop, and wait until the broker has all messages."""
        self._ended.set()
        self._thread.join(_LONGEST)
        assert self._producer.flush(_LONGEST) == 0
        assert len(self.sent) == sum(self._numbers.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


@dataclass(frozen=True)
class Fault:
    """A fault: the messages of each partition that may be handled again because of it."""

    name: str
    began: float
    ended: float
    again: Mapping[int, range]


@dataclass
class Account:
    """How often each message may have been handled: once, and once more for each fault that it was under way in."""

    faults: list[Fault] = field(default_factory=list)

    def add(self, name: str, began: float, committed: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Allow for a fault: messages that were under way may be handled again.

        They begin at the offsets that were committed before, and end at most a window after the log ends afterwards.
        """
        again = {at: range(committed.get(at, 0), end + WINDOW) for at, end in ends.items()}
        self.faults.append(Fault(name, began, time.monotonic(), again))

    def check(self, sent: Collection[Place], log: Path, *, order: str) -> str:
        """Check the log of the workers. Return a summary."""
        rows = [line.split() for line in log.read_text().splitlines()]
        handled = Counter((int(partition), int(offset)) for partition, offset, *_ in rows)
        assert handled.keys() == set(sent), sorted(set(sent) ^ handled.keys())[:5]
        most = Counter((at, offset) for fault in self.faults for at, some in fault.again.items() for offset in some)
        too_often = [place for place, times in handled.items() if times > 1 + most[place]]
        assert not too_often, (len(too_often), too_often[0], self._told(rows, too_often[0]))
        if order != "none":
            self._check_order(rows, order)
        again = handled.total() - len(handled)
        assert again <= len(self.faults) * len({at for at, _offset in sent}) * IN_FLIGHT
        return f"{len(handled)} messages, {again} of them handled again after {len(self.faults)} faults"

    def _check_order(self, rows: Sequence[Sequence[str]], order: str) -> None:
        lanes: defaultdict[str, list[int]] = defaultdict(list)
        for partition, offset, key, *_ in rows:
            lanes[key if order == "key" else partition].append(int(offset))
        for lane, offsets in lanes.items():
            assert [*dict.fromkeys(offsets)] == sorted(set(offsets)), f"{order} {lane} was not handled in order"

    def _told(self, rows: Sequence[Sequence[str]], place: Place) -> str:
        """Return when a message was handled, by whom, and all faults."""
        times = [
            f"{worker} at {moment}" for at, offset, _key, worker, moment in rows if (int(at), int(offset)) == place
        ]
        faults = [
            f"{each.name} {each.began:.3f} to {each.ended:.3f}: {each.again.get(place[0])}" for each in self.faults
        ]
        return f"handled by {', '.join(times)}; " + "; ".join(faults)
