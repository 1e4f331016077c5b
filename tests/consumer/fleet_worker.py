"""Many members in one process, each with a session of its own, and what the process needs, as lines of JSON.

    python -m tests.consumer.fleet_worker --hosts ... --group ... --topic ... --members 10 --name a --leave 30 600

Each member commits all its partitions every second. After 30 s, and then every 600 s, one member leaves and joins
again. SIGTERM ends the process.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

from zkgroups import Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import GenerationEndedError, ZkgroupsException

COMMIT_EVERY = 1.0
REPORT_EVERY = 5.0


class Fleet:
    """The members of this process."""

    def __init__(self, chosen: argparse.Namespace, stack: ExitStack) -> None:
        self._chosen = chosen
        self._lock = threading.Lock()
        self._milliseconds: list[float] = []
        self._refused: list[str] = []
        self._lost = 0
        self._registries = [stack.enter_context(Registry.connect(chosen.hosts)) for _ in range(chosen.members)]
        self.members = [self._joined(number) for number in range(chosen.members)]

    def _joined(self, number: int) -> Member:
        member = Member(
            self._registries[number].group(self._chosen.group),
            self._chosen.topic,
            id=f"{self._chosen.name}{number}",
            on_lost=self._note_lost,
        )
        threading.Thread(target=self._take_part, args=(member,), daemon=True).start()
        return member

    def _take_part(self, member: Member) -> None:
        with member:
            for generation in member.generations():
                generation.start(self._work)
                generation.wait()

    def _note_lost(self, _partitions: frozenset[TopicPartition]) -> None:
        with self._lock:
            self._lost += 1

    def _work(self, generation: Generation) -> None:
        offset = int(time.time())
        while not generation.wait(COMMIT_EVERY):
            offset += 1
            for at in generation.partitions:
                generation.mark(at, offset)
            began = time.perf_counter()
            try:
                generation.commit()
            except GenerationEndedError:
                return
            except ZkgroupsException as error:
                with self._lock:
                    self._refused.append(f"{type(error).__name__}: {error}")
            with self._lock:
                self._milliseconds.append(round((time.perf_counter() - began) * 1000, 1))

    def replace(self, number: int) -> None:
        """Let a member leave, and another one join in the same session."""
        self.members[number].close()
        self.members[number] = self._joined(number)

    def report(self) -> dict[str, object]:
        """What has happened since the last report, and what the process needs now."""
        with self._lock:
            commits, self._milliseconds = self._milliseconds, []
            refused, self._refused = self._refused, []
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            "held": sum(len(member.assignment) for member in self.members),
            "commits": commits,
            "refused": refused,
            "lost": self._lost,
            "sessions": [registry.session_id for registry in self._registries],
            "threads": threading.active_count(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "kilobytes": int(status["VmRSS"].split()[0]),
            "cpu": time.process_time(),
        }


def main() -> None:
    """Take part until SIGTERM."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    for name in ("--hosts", "--group", "--topic", "--name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--leave", type=float, nargs=2, required=True)
    chosen = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with ExitStack() as stack:
        fleet = Fleet(chosen, stack)
        first, every = chosen.leave
        next_leave, leaves = time.monotonic() + first, 0
        while not stop.wait(REPORT_EVERY):
            if time.monotonic() >= next_leave:
                fleet.replace(leaves % chosen.members)
                next_leave, leaves = next_leave + every, leaves + 1
            json.dump(fleet.report(), sys.stdout)
            print(flush=True)
        for member in fleet.members:
            member.stop()
        for member in fleet.members:
            member.close()


if __name__ == "__main__":
    main()
