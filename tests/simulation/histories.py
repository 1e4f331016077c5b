"""Random histories of a model: draw, play, and if one fails, print the shortest history that still does.

A history is a list of steps. Each has the name of a move and three numbers. The state that a move meets decides what it
does with the numbers. So every part of a history is a history, too, and can be played.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import pytest

MOST_REPLAYS = 300
"""How many shorter histories to try."""


class Step(NamedTuple):
    """A move, and the numbers by which it chooses what to do."""

    move: str
    a: int
    b: int
    c: int


Play = Callable[[int, Sequence[Step]], Counter[str]]
"""Plays a history in a world with this seed. Returns how often each thing happened."""


def draw(seed: int, weights: Mapping[str, int], length: int) -> list[Step]:
    """Draw a history."""
    random = Random(seed)
    moves = random.choices(list(weights), list(weights.values()), k=length)
    return [Step(move, *(random.randrange(1 << 16) for _ in range(3))) for move in moves]


def check(play: Play, weights: Mapping[str, int], *, seeds: Sequence[int], length: int) -> Counter[str]:
    """Play a history for each seed. Return how often each thing happened in all of them."""
    total: Counter[str] = Counter()
    logging.disable()  # a history logs a lot; play the shortest one again to see its log
    try:
        for seed in seeds:
            history = draw(seed, weights, length)
            try:
                total += play(seed, history)
            except Exception as error:
                shortest = shorten(play, seed, history, type(error))
                steps = "\n".join(map(str, shortest))
                name = type(error).__name__
                pytest.fail(f"seed {seed}: {name}: {error}\n{len(shortest)} steps are enough:\n{steps}", pytrace=False)
    finally:
        logging.disable(logging.NOTSET)
    return total


def shorten(play: Play, seed: int, history: Sequence[Step], error: type[Exception]) -> Sequence[Step]:
    """Leave out steps, many at once at first, as long as the same kind of error comes."""
    replays, size = 0, max(len(history) // 2, 1)
    while replays < MOST_REPLAYS:
        start, was_shortened = 0, False
        while start < len(history) and replays < MOST_REPLAYS:
            shorter = [*history[:start], *history[start + size :]]
            replays += 1
            try:
                play(seed, shorter)
            except error:
                history, was_shortened = shorter, True
            except Exception:
                start += size
            else:
                start += size
        if size == 1 and not was_shortened:
            break
        size = max(size // 2, 1)
    return history
