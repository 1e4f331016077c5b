"""Completion of groups, instances, topics and partitions. It is fast, and silent if nothing is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from zkgroups_cli.main import COMMANDS, COMPLETE_VARIABLE, root
from zkgroups_cli.shared.fast_completion import fast_answer
from zkgroups_cli.shared.options import Options

from .running import COMMAND, environment, run

Complete = Callable[[str], list[str]]
NOWHERE = "127.0.0.1:1"

PATIENT = f"""#!{sys.executable}
import sys
from zkgroups_cli.main import main
from zkgroups_cli.shared import arguments
arguments.TIMEOUT = 20.0
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


def words_of_click(words: list[str]) -> list[str]:
    complete = BashComplete(root, {"obj": Options()}, "zkgroups", COMPLETE_VARIABLE)
    return sorted(item.value.lower() for item in complete.get_completions(words[1:-1], words[-1]))


def lines(command: click.Command = root, path: str = "zkgroups") -> Iterator[str]:
    """Lines of each command whose last word is a command, an option, or the value of an option."""
    yield from (f"{path} ", f"{path} -", f"{path} --t", f"{path} -v --timeout 5 --")
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and option.nargs == 1:
            yield f"{path} {option.opts[-1]} "
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from lines(found, f"{path} {name}")


def test_bash_gets_the_same_words_without_click() -> None:
    answers = 0
    for line in lines():
        words = line.split(" ")
        answer = fast_answer({"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)})
        if answer is not None:
            answers += 1
            assert sorted(word.partition(",")[2] for word in answer.lower().splitlines()) == words_of_click(words), line
    assert answers > 500
    for line in ("zkgroups groups describe ", "zkgroups groups list -z 'a b' --", "zkgroups nothing --"):
        place = str(len(line.split(" ")) - 1)
        assert fast_answer({"COMP_WORDS": line, "COMP_CWORD": place}) is None, "only click knows"


def test_commands_and_options_are_completed_without_imports() -> None:
    code = (
        "import sys; from zkgroups_cli.__main__ import main; main();"
        "print(*sorted(sys.modules.keys() & {'click', 'kazoo', 'zkgroups'}), file=sys.stderr)"
    )
    for line in ("zkgroups ", "zkgroups offsets get --", "zkgroups groups list --state "):
        asked = {"_ZKGROUPS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([sys.executable, "-c", code], env=environment(asked), capture_output=True, text=True)
        assert (bool(done.stdout), done.stderr) == (True, "\n")


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
        {"ZKGROUPS_ZOOKEEPER": NOWHERE, "ZKGROUPS_DIGEST_USER": "ops"},
        {"ZKGROUPS_CONTEXT": "nope"},
    ],
    ids=str,
)
def test_without_candidates_completion_ends_soon_and_silently(env: dict[str, str]) -> None:
    began = time.monotonic()
    assert answer("zkgroups groups describe ", **env) == []
    assert time.monotonic() - began < 15, "and not the time-out of the session, or a question for a password"


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
