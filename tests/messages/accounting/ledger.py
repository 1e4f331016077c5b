"""A verifiable producer, and the account of what became of its messages."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from confluent_kafka import Producer

from zkgroups.testing import KafkaBroker

Place = tuple[int, int]
"""A partition and an offset."""

KEYS: Final = 12
WINDOW: Final = 50
"""The most messages of a partition that a worker has at a time."""
IN_FLIGHT: Final = WINDOW + 25
"""The most messages of a partition that are handled again after a fault: also those since the last commit."""
_PAUSE: Final = 0.01
_LONGEST: Final = 60.0


class VerifiableProducer:
    """Writes numbered messages to each key until it is stopped. It knows the place of each one."""

    def __init__(self, broker: KafkaBroker, topic: str, partitions: int, random: Random) -> None:
        settings = {"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer(settings)
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
            self._producer.produce(
                self._topic, str(number), str(key), key % self._partitions, on_delivery=self._delivered
            )
            self._producer.poll(0)

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


@dataclass
class Account:
    """How often each message may have been handled: once, and once more for each fault that it was under way in."""

    most: Counter[Place] = field(default_factory=Counter)
    _faults: int = 0

    def fault(self, committed: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Allow for a fault: messages that were under way may be handled again.

        They begin at the offsets that were committed before, and end at most a window after the log ends afterwards.
        """
        self._faults += 1
        for at, end in ends.items():
            self.most.update((at, offset) for offset in range(committed.get(at, 0), end + WINDOW))

    def check(self, sent: Mapping[Place, tuple[str, int]], log: Path, *, order: str) -> str:
        """Check the log of the workers. Return a summary."""
        rows = [line.split() for line in log.read_text().splitlines()]
        handled = Counter((int(partition), int(offset)) for partition, offset, _key, _number in rows)
        assert handled.keys() == sent.keys(), (
            f"not handled: {sorted(sent.keys() - handled.keys())[:5]}, "
            f"not sent: {sorted(handled.keys() - sent.keys())[:5]}"
        )
        too_often = {place: times for place, times in handled.items() if times > 1 + self.most[place]}
        assert not too_often, f"handled too often: {dict(list(too_often.items())[:5])}"
        lanes: defaultdict[str, list[int]] = defaultdict(list)
        for partition, offset, key, _number in rows:
            lanes[key if order == "key" else partition].append(int(offset))
        for lane, offsets in lanes.items():
            assert _first_times(offsets) == sorted(set(offsets)), f"{order} {lane} was not handled in order"
        again = handled.total() - len(handled)
        assert again <= self._faults * len({at for at, _offset in sent}) * IN_FLIGHT
        return f"{len(handled)} messages, {again} of them handled again, {len(self.most)} were under way in faults"


def _first_times(offsets: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(offsets))
