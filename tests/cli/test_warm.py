"""A command in a forked process behaves like one in a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zkgroups import Registry

from . import warm
from .running import COMMAND, TIMEOUT, environment


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--help",), 0), (("groups", "list", "-o", "json"), 0), (("groups", "describe", "größe"), 3), (("--hlep",), 2)],
)
def test_output_and_exit_code_are_those_of_a_new_process(
    zookeeper_hosts: str, registry: Registry, arguments: tuple[str, ...], code: int
) -> None:
    registry.group("日本").create()
    command, env = [COMMAND, *arguments], environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    forked = warm.run(command, env, timeout=TIMEOUT)
    started = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL)
    assert (forked.returncode, forked.stdout, forked.stderr) == (code, started.stdout, started.stderr)
    assert started.returncode == code


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([COMMAND, "groups", "list", "-z", "127.0.0.1:1", "--timeout", "100"], environment(), timeout=0.3)
    assert warm.run([COMMAND, "--version"], environment(), timeout=TIMEOUT).returncode == 0


IMPORTS = """
import sys
from tests.cli import warm
from zkgroups_cli.main import main
warm._prepare()
before = set(sys.modules)
sys.argv = ["zkgroups", "groups", "describe", "billing", "--timeout", "0.1", "-z", "127.0.0.1:1"]
assert main() == 7
print(*(set(sys.modules) - before))
"""


def test_a_forked_command_has_nothing_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, env=environment())
    assert "could not connect to 127.0.0.1:1" in done.stderr
    assert done.stdout.split() == []
