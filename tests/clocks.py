"""Clocks of this process that jump: the wall clock is set, or the machine sleeps."""

from __future__ import annotations

import time

import pytest

HOURS = 6 * 3600.0
HAS_BOOTTIME = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock counts while the system sleeps")


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the wall clock ahead or back, as NTP or an administrator does."""
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(seconds * 1e9))


def sleep_of_the_machine(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clocks continue as after a sleep: CLOCK_MONOTONIC has stopped meanwhile, CLOCK_BOOTTIME has not."""
    read = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + seconds * (clock == time.CLOCK_BOOTTIME))
    set_wall_clock(monkeypatch, seconds)
