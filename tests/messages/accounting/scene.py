"""A group of workers on servers of its own, and the faults that strike them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from tests.cli.running import COMMAND
from tests.lasting import through_restarts
from tests.waiting import eventually
from zkgroups import Registry
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveStep
from zkgroups.testing import ChildProcess, KafkaBroker, ZooKeeperServer

from ..brokers.sides import Side, Sides
from ..looping import QUICK_NATIVE, ROOT
from .ledger import Account, VerifiableProducer
from .worker import SESSION

LONGEST: Final = 120.0
PARTITIONS: Final = 4

FAULTS: Final = (
    "join",
    "leave",
    "kill worker",
    "suspend",
    "expire",
    "restart broker",
    "kill broker",
    "restart zookeeper",
    "kill zookeeper",
    "freeze zookeeper",
    "move",
    "kill move",
)
GRACEFUL: Final = ("join", "leave", "move")
"""Nothing is handled again."""


class Scene:
    """Workers, a producer, and the group in which they meet. `strike` carries out a fault, and waits until it is over.

    While the scene lasts, no offset goes back, and none changes on the side where the group is not.
    """

    def __init__(self, zookeeper: ZooKeeperServer, broker: KafkaBroker, name: str, order: str, random: Random) -> None:
        self._zookeeper, self._broker, self._order, self._random = zookeeper, broker, order, random
        self._name = name
        self._stack = ExitStack()
        self._folder: Path = broker.data_dir
        self._log = self._folder / f"{name}.handled"
        self._numbers = count()
        self._workers: dict[str, ChildProcess] = {}
        self._account = Account()

    def __enter__(self) -> Self:
        self._broker.create_topic(self._name, PARTITIONS)
        hosts = through_restarts(self._broker.zookeeper)
        registry = self._stack.enter_context(Registry.connect(hosts, session_timeout=60.0))
        brokers = self._stack.enter_context(Brokers.connect(self._broker.address))
        self.sides = Sides(registry.group(self._name), registry, brokers)
        self._producer = self._stack.enter_context(
            VerifiableProducer(self._broker, self._name, PARTITIONS, self._random)
        )
        for _ in range(3):
            self._start_worker()
        self._settle()
        self._watch = self._stack.enter_context(Watch(hosts, self._broker.address, self._name))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._stack.close()

    # Faults

    def strike(self, fault: str) -> None:
        """Carry out a fault, and wait until everything that was under way is committed."""
        committed, here, began = self._committed(), self._side(), time.monotonic()
        getattr(self, "_" + fault.replace(" ", "_"))()
        if not _is_graceful(fault, here):
            self._account.add(fault, began, committed, self._producer.ends)
        self._settle()

    def finish(self) -> str:
        """Let the workers handle everything and leave. Check the account, and return a summary."""
        self._producer.stop()
        self._settle()
        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGTERM)
        for worker in self._workers.values():
            assert worker.wait(LONGEST) == 0, worker.tail()
        assert self._committed() == self._producer.ends
        self._watch.check()
        return self._account.check(self._producer.sent, self._log, order=self._order)

    def _start_worker(self) -> None:
        id = f"w{next(self._numbers)}"
        arguments = {
            "zookeeper": through_restarts(self._broker.zookeeper),
            "kafka": {"bootstrap.servers": self._broker.address, "log_level": 0, **QUICK_NATIVE},
            "group": self._name,
            "topic": self._name,
            "id": id,
            "log": str(self._log),
            "order": self._order,
        }
        command = [sys.executable, "-m", "tests.messages.accounting.worker", json.dumps(arguments)]
        self._workers[id] = ChildProcess(command, log=self._folder / f"{self._name}-{id}.log", directory=ROOT)

    def _any(self) -> tuple[str, ChildProcess]:
        return self._random.choice(sorted(self._workers.items()))

    def _join(self) -> None:
        self._start_worker()

    def _leave(self) -> None:
        id, worker = self._any()
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(LONGEST) == 0, worker.tail()
        del self._workers[id]
        self._start_worker()

    def _kill_worker(self) -> None:
        id, worker = self._any()
        worker.kill()
        del self._workers[id]
        self._start_worker()

    def _suspend(self) -> None:
        _id, worker = self._any()
        worker.suspend()
        time.sleep(SESSION + 5.0)  # longer than both sessions: others take its partitions
        worker.resume()

    def _expire(self) -> None:
        id, worker = self._any()
        before = self._sessions(id)
        os.kill(worker.pid, signal.SIGUSR1)
        assert eventually(lambda: not before & self._sessions(id)), worker.tail()

    def _sessions(self, id: str) -> set[int]:
        """The session of a worker: that of its registration, or that of its permit."""
        holder = f"member {id}"
        registered = {each.session for each in _patiently(self.sides.group.instances) if each.id == id}
        return registered | _patiently(lambda: self.sides.permit_sessions(holder))

    def _restart_broker(self) -> None:
        self._broker.restart()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _restart_zookeeper(self) -> None:
        self._zookeeper.restart()

    def _kill_zookeeper(self) -> None:
        self._zookeeper.kill()
        self._zookeeper.start()

    def _freeze_zookeeper(self) -> None:
        self._zookeeper.suspend()
        time.sleep(0.8 * SESSION)  # the claims end by the clocks of the workers
        self._zookeeper.resume()

    # Moves

    @property
    def _other_side(self) -> Side:
        return Side.ZOOKEEPER if self._side() is Side.KAFKA else Side.KAFKA

    def _side(self) -> Side:
        """Where commits are accepted."""
        state = _patiently(lambda: self.sides.state)
        return Side.ZOOKEEPER if state in (None, RouteState.MOVING_TO_KAFKA) else Side.KAFKA

    @contextmanager
    def _command(self, to: Side) -> Iterator[ChildProcess]:
        where = ["-z", through_restarts(self._broker.zookeeper), "-b", self._broker.address]
        command = [str(COMMAND), *where, "migrate", "switch", self._name, "--to", to, "--execute"]
        log = self._folder / f"{self._name}-moves.log"
        with ChildProcess(["env", f"ZKGROUPS_CONFIG={os.devnull}", *command], log=log) as process:
            yield process

    def _finish_move(self, to: Side) -> None:
        """Run the command until it says that the group is there. A lock of a killed command ends with its session."""
        end = time.monotonic() + LONGEST
        while True:
            with self._command(to) as process:
                code = process.wait(LONGEST)
                if code == 0:
                    return
                assert time.monotonic() < end, (code, process.tail())

    def _move(self) -> None:
        self._finish_move(self._other_side)

    def _kill_move(self) -> None:
        """Kill the command, and finish the move, or undo it."""
        to, here = self._other_side, self._side()
        with self._command(to) as process:
            eventually(lambda: self.sides.state not in (None, RouteState.KAFKA) or not process.running)
            time.sleep(self._random.random() * 1.5)
            process.kill()
        self._finish_move(self._random.choice([to, here]))

    def kill_during_move(self, victim: str, step: MoveStep) -> None:
        """Kill the command, a worker or a server when this step of a move is done. Then finish the move, or undo it."""
        committed, began, to, here = self._committed(), time.monotonic(), self._other_side, self._side()
        with self._command(to) as process:
            line, before = f"{self._name}: {step}\n", process.log.read_text()
            reached = eventually(lambda: line in process.log.read_text()[len(before) :])
            assert reached, process.tail()
            if victim == "command":
                process.kill()
            else:
                getattr(self, f"_kill_{victim}")()
            moved = process.wait(LONGEST) == 0
        if not moved:
            self._finish_move(self._random.choice([to, here]))
        self._account.add(f"kill {victim} at {step.name}", began, committed, self._producer.ends)
        self._settle()

    # Progress

    def _committed(self) -> dict[int, int]:
        return _patiently(lambda: self.sides.offsets(self._side()))

    def _settle(self) -> None:
        """Wait until all workers have joined, and all messages sent so far are handled and committed."""
        for id, worker in self._workers.items():
            assert eventually(lambda: self._sessions(id)), worker.tail()  # noqa: B023
        ends = self._producer.ends

        def all_committed() -> bool:
            committed = self._committed()
            return all(committed.get(at, 0) >= end for at, end in ends.items())

        assert eventually(all_committed), (ends, self._committed(), self._tails())
        assert all(worker.running for worker in self._workers.values()), self._tails()

    def _tails(self) -> str:
        return "\n".join(f"{id}: {worker.running}, {worker.tail(20)}" for id, worker in self._workers.items())


def _is_graceful(fault: str, here: Side) -> bool:
    """Whether nothing is handled again after a fault, in a group that was on this side.

    A restart of a server may take longer than the sessions that it keeps.
    """
    return fault in GRACEFUL or (fault == "restart broker" and here is Side.ZOOKEEPER)


def _patiently(read: Callable[[], Any]) -> Any:
    """Read again while a server is away."""
    end = time.monotonic() + LONGEST
    while True:
        try:
            return read()
        except ZkgroupsException:
            if time.monotonic() > end:
                raise


class Watch:
    """Compares the offsets of both sides again and again, with connections of its own."""

    def __init__(self, zookeeper: str, kafka: str, group: str) -> None:
        self._where = zookeeper, kafka, group
        self._ended = threading.Event()
        self._problems: list[str] = []
        self._looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        zookeeper, kafka, group = self._where
        with Registry.connect(zookeeper, session_timeout=60.0) as registry, Brokers.connect(kafka) as brokers:
            sides = Sides(registry.group(group), registry, brokers)
            before: tuple[Any, dict[Side, dict[int, int]]] | None = None
            while not self._ended.wait(0.05):
                try:
                    first = sides.route
                    found = first, {side: sides.offsets(side) for side in Side}
                    steady = sides.route == first
                except ZkgroupsException:
                    continue
                if before is not None:
                    self._compare(before, found, steady=steady and before[0] == first)
                before = found
                self._looks += 1

    def _compare(self, before: Any, found: Any, *, steady: bool) -> None:
        for side in Side:
            old, new = before[1][side], found[1][side]
            back = {at: (offset, new.get(at)) for at, offset in old.items() if new.get(at, -1) < offset}
            if back:
                self._problems.append(f"offsets went back in {side}: {back}")
        state = found[0].state
        idle = {None: Side.KAFKA, RouteState.KAFKA: Side.ZOOKEEPER}.get(state)
        if steady and idle is not None and before[1][idle] != found[1][idle]:
            self._problems.append(f"commits in {idle} while the route is {state}: {before[1][idle]}, {found[1][idle]}")

    def check(self) -> None:
        """Raise an error if something was wrong."""
        assert self._looks > 10
        assert self._problems == []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(RuntimeError):
            self._thread.join(LONGEST)
