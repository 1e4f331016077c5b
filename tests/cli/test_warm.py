"""A command in a forked process behaves like one in a new process."""

from __future__ import annotations

import subprocess

import pytest

from zkgroups import Registry

from . import warm
from .running import COMMAND, TIMEOUT, environment


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--help",), 0), (("groups", "list", "-o", "json"), 0), (("groups", "describe", "größe"), 3), (("--hlep",), 2)],
)
def test_what_it_says_and_how_it_ends_are_the_same(
    zookeeper_hosts: str, registry: Registry, arguments: tuple[str, ...], code: int
) -> None:
    registry.group("日本").create()
    command, env = [COMMAND, *arguments], environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    forked = warm.run(command, env, timeout=TIMEOUT)
    started = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL)
    assert (forked.returncode, forked.stdout, forked.stderr) == (code, started.stdout, started.stderr)
    assert started.returncode == code


def test_one_that_takes_too_long_is_ended_and_the_next_is_run() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([COMMAND, "groups", "list", "-z", "127.0.0.1:1", "--timeout", "100"], environment(), timeout=0.3)
    assert warm.run([COMMAND, "--version"], environment(), timeout=TIMEOUT).returncode == 0
