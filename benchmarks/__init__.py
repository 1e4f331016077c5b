"""Benchmarks: `python -m benchmarks.<name>`, or `make bench` for all.

Each measures zkgroups against something that one would otherwise use, on a real server of its own. Contenders take
turns within one run (A B C A B C ...), so that a busy machine is busy for all, and medians are compared. The table goes
to stderr; the last line of stdout is one JSON object of ratios. A ratio of 2 means: the first takes half the time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

Times = dict[str, float]
"""Seconds for each step."""


class Stopwatch:
    """What the steps of one round take."""

    def __init__(self) -> None:
        self.seconds: Times = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what is done in the block."""
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


def every_round(contenders: Mapping[str, Callable[[int], Times]], *, rounds: int) -> dict[str, list[Times]]:
    """Let each contender do each round, whose number it gets. Round 0 is not counted."""
    found: dict[str, list[Times]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            times = contender(number)
            if number:
                found[name].append(times)
    return found


def medians(found: Mapping[str, Sequence[Times]]) -> dict[str, Times]:
    """The median of each step."""
    return {
        name: {step: statistics.median(times[step] for times in every) for step in every[0]}
        for name, every in found.items()
    }


def in_turn(contenders: Mapping[str, Callable[[int], Times]], *, rounds: int) -> dict[str, Times]:
    """Let each contender do each round, and return the median of each step."""
    return medians(every_round(contenders, rounds=rounds))


def ratios(first: Times, second: Times) -> Times:
    """How many times faster the first is, step by step."""
    return {step: round(second[step] / first[step], 2) for step in first}


def paired_ratios(first: Sequence[Times], second: Sequence[Times]) -> Times:
    """How many times faster the first is: the median of the ratios of all rounds, for a load that changes."""
    return {
        step: round(statistics.median(b[step] / a[step] for a, b in zip(first, second, strict=True)), 2)
        for step in first[0]
    }


def table(title: str, medians: Mapping[str, Times]) -> None:
    """Milliseconds for people."""
    steps: Sequence[str] = list(next(iter(medians.values())))
    print(f"{title}, median ms", file=sys.stderr)
    print(" " * 24 + "".join(f"{step:>14}" for step in steps), file=sys.stderr)
    for name, times in medians.items():
        print(f"{name:<24}" + "".join(f"{times[step] * 1000:>14.1f}" for step in steps), file=sys.stderr)


def result(benchmark: str, **values: object) -> None:
    """The line for programs."""
    print(json.dumps({"benchmark": benchmark, **values}), flush=True)
