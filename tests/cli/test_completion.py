"""Completion of groups, instances, topics and partitions. It is fast, and silent if nothing is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zkgroups_cli.main import COMMANDS

from .conftest import Zkgroups
from .running import COMMAND, environment, run

Complete = Callable[[str], list[str]]
NOWHERE = "127.0.0.1:1"

PATIENT = f"""#!{sys.executable}
import sys
from zkgroups_cli.main import main
from zkgroups_cli.shared import complete_names
complete_names.TIMEOUT = 20.0
sys.exit(main())
"""
"""The command with another limit for completion: within the usual second, a busy machine may find no names."""


@pytest.fixture
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of that command."""
    file = tmp_path_factory.mktemp("bin") / "zkgroups"
    file.write_text(PATIENT)
    file.chmod(0o755)
    return file


@pytest.fixture
def complete(patient: Path, zookeeper_hosts: str) -> Complete:
    """The candidates for the last word of a line, as bash's script requests them."""
    return lambda line: answer(line, patient, ZKGROUPS_ZOOKEEPER=zookeeper_hosts)


def answer(line: str, command: Path | str = COMMAND, **env: str) -> list[str]:
    words = line.split(" ")
    asked = {"_ZKGROUPS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([command], env=environment(asked | env), capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return [found.partition(",")[2] for found in done.stdout.splitlines() if found]


def test_commands_and_options_are_completed(complete: Complete) -> None:
    assert complete("zkgroups ") == list(COMMANDS)
    assert complete("zkgroups gr") == ["groups"]
    assert "describe" in complete("zkgroups groups ")
    assert complete("zkgroups groups list --sess") == ["--session-timeout"]
    assert complete("zkgroups -o j") == ["json", "jsonl"]


def test_existing_groups_topics_partitions_and_instances_are_completed(complete: Complete, billing: Any) -> None:
    billing.copy("bikes")
    assert complete("zkgroups groups describe b") == ["bikes", "billing"]
    assert complete("zkgroups groups describe bikes b") == ["billing"], "a name is offered once"
    assert complete("zkgroups claim billing ") == ["orders"]
    assert complete("zkgroups claim billing orders ") == ["0", "1"]
    assert complete("zkgroups claim billing orders 0 ") == ["1"]
    assert complete("zkgroups members show billing ") == ["anna", "ben"]
    assert complete("zkgroups release billing orders 0 --expect-owner a") == ["anna"]


def test_the_address_may_be_on_the_line_or_in_a_context(
    zookeeper_hosts: str, billing: Any, patient: Path, tmp_path: Path
) -> None:
    assert answer(f"zkgroups -z {zookeeper_hosts} groups describe b", patient) == ["billing"]
    assert answer(f"zkgroups groups describe -z {zookeeper_hosts} b", patient) == ["billing"]
    file = {"ZKGROUPS_CONFIG": str(tmp_path / "contexts.ini")}
    run("context", "add", "here", "-z", zookeeper_hosts, env=file)
    assert answer("zkgroups context use h", **file) == ["here"]
    assert answer("zkgroups -c here groups describe b", patient, **file) == ["billing"]


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"ZKGROUPS_ZOOKEEPER": NOWHERE},
        {"ZKGROUPS_ZOOKEEPER": "not an address:x"},
        {"ZKGROUPS_ZOOKEEPER": NOWHERE, "ZKGROUPS_DIGEST_USER": "ops"},
        {"ZKGROUPS_CONTEXT": "nope"},
    ],
    ids=str,
)
def test_without_candidates_completion_ends_soon_and_silently(env: dict[str, str]) -> None:
    began = time.monotonic()
    assert answer("zkgroups groups describe ", **env) == []
    assert time.monotonic() - began < 15, "and not the time-out of the session, or a question for a password"


def test_bash_completes_a_line_with_the_script(zookeeper_hosts: str, billing: Any, patient: Path) -> None:
    """Like pressing Tab."""
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{patient.parent}{os.pathsep}{os.environ['PATH']}"
    lines = """
        source <(zkgroups completion bash)
        COMP_WORDS=(zkgroups groups describe b) COMP_CWORD=3
        _zkgroups_completion zkgroups b describe
        echo "${COMPREPLY[@]}"
    """
    env = environment({"PATH": path, "ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    done = subprocess.run([bash, "--norc", "-c", lines], env=env, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("billing\n", "")


def test_a_name_completed_by_bash_is_one_word_with_that_value(
    zookeeper_hosts: str, registry: Any, patient: Path, tmp_path: Path
) -> None:
    """Like pressing Tab, and then Enter."""
    names = {
        "a b",
        "*",
        "$(touch ran)",
        "`touch ran`",
        "x;touch ran",
        "host:a",
        "k=v",
        "it's",
        "a\\b",
        "~",
        "#1",
        "café",
        "{a,b}",
        '"',
    }
    for name in names:
        registry.group(name).create()
    (tmp_path / "file").touch()
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{patient.parent}{os.pathsep}{os.environ['PATH']}"
    lines = """
        source <(zkgroups completion bash)
        COMP_WORDS=(zkgroups groups describe '') COMP_CWORD=3
        _zkgroups_completion zkgroups '' describe
        eval "printf '%s\\n' ${COMPREPLY[*]}"
    """
    env = environment({"PATH": path, "ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    done = subprocess.run([bash, "--norc", "-c", lines], env=env, capture_output=True, cwd=tmp_path, timeout=30)
    assert (set(done.stdout.decode().splitlines()), done.stderr.decode()) == (names, "")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_the_current_shell_is_the_default(shell: str) -> None:
    script = run("completion", shell).out
    assert "_ZKGROUPS_COMPLETE" in script
    assert shell in script or "COMP_WORDS" in script
    assert run("completion", env={"SHELL": f"/usr/bin/{shell}"}).out == script


def test_an_unknown_shell_is_wrong_usage(zkgroups: Zkgroups) -> None:
    assert zkgroups("completion", SHELL="/bin/dash").code == 2
    assert zkgroups("completion", "dash").code == 2
