"""Give damaged input to all targets in turn, and report every untyped error, hang and excessive use of memory.

    python -m tests.hostile.campaign SEED SECONDS      # all targets for so long
    python -m tests.hostile.campaign SEED TARGET CASE  # one case again

A case depends only on the seed, the target and its number. The process has a limit of memory, and each case one of
time. `PROGRESS` names a file that shows the current case, so that a case that kills the process is known.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from .damage import damaged
from .targets import Target, targets

PROGRESS: Final = "ZKGROUPS_FUZZ_PROGRESS"
MEMORY: Final = 2**30
"""In bytes, in addition to that of the started process."""
LONGEST: Final = 30
"""In seconds. On an idle machine, no case takes a hundredth of it."""
MOST_CPU: Final = 2.0
_FINDINGS: Final = 30


class HangError(BaseException):
    """A case took too long. Not an Exception, so that no target catches it."""


def case_of(seed: int, name: str, target: Target, number: int) -> bytes:
    """Return the input of one case."""
    return damaged(random.Random(f"{seed} {name} {number}"), target.samples)


@contextmanager
def bounded() -> Iterator[None]:
    """Interrupt what takes too long."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"it took more than {LONGEST} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)


def problem_of(target: Target, data: bytes) -> tuple[str, str]:
    """Return the kind of the problem of a case, and its description. Both are empty if there is none."""
    begun = time.process_time()
    try:
        with bounded():
            target.run(data)
    except target.errors:
        pass
    except (Exception, HangError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return f"{type(error).__name__} at {place}", "".join(traceback.format_exception(error))[-3000:]
    if (seconds := time.process_time() - begun) > MOST_CPU:
        return "slow", f"it took {seconds:.1f} s of the processor"
    return "", ""


def campaign(seed: int, seconds: float) -> int:
    """Run all targets in turn for so long. Return the number of different findings."""
    counts: Counter[str] = Counter()
    found: dict[tuple[str, str], int] = {}
    progress = open_progress()
    with tempfile.TemporaryDirectory() as folder:
        known = targets(Path(folder))
        deadline, number = time.monotonic() + seconds, 0
        while time.monotonic() < deadline and len(found) < _FINDINGS:
            for name, target in known.items():
                for case in range(number * target.weight, (number + 1) * target.weight):
                    os.pwrite(progress, f"{seed} {name!r} {case}".ljust(100).encode(), 0)
                    data = case_of(seed, name, target, case)
                    kind, text = problem_of(target, data)
                    counts[name] += 1
                    if kind and (name, kind) not in found:
                        found[name, kind] = case
                        print(f"{name!r}, case {case}: {kind}\n{text}\ninput: {data[:1000]!r}", file=sys.stderr)
            number += 1
    peak = peak_kib() // 1024
    print(json.dumps({"seed": seed, "cases": counts.total(), "peak_mib": peak, "findings": len(found)} | counts))
    return len(found)


def peak_kib() -> int:
    """Return the most memory that this process has had. `getrusage` includes that of the process that forked it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def open_progress() -> int:
    return os.open(os.environ.get(PROGRESS, os.devnull), os.O_WRONLY)


def limit_memory() -> None:
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def repeat(seed: int, name: str, case: int) -> int:
    """Run one case again, and show it."""
    with tempfile.TemporaryDirectory() as folder:
        target = targets(Path(folder))[name]
        data = case_of(seed, name, target, case)
        print(data)
        target.run(data)
    return 0


if __name__ == "__main__":
    limit_memory()
    if len(sys.argv) == 4:
        sys.exit(repeat(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    sys.exit(min(campaign(int(sys.argv[1]), float(sys.argv[2])), 1))
