"""Completion of groups, instances, topics and partitions. It is silent if nothing is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from zkgroups_cli import main
from zkgroups_cli.main import COMMANDS, COMPLETE_VARIABLE, root
from zkgroups_cli.shared import arguments, connect
from zkgroups_cli.shared.fast_completion import fast_answer
from zkgroups_cli.shared.options import Options

from .running import TIMEOUT, environment, run

Complete = Callable[..., list[str]]
PATIENT = 20.0
"""Another limit for completion: within the usual second, a busy machine may find no names."""


@pytest.fixture
def complete(zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """The candidates for the last word of a line, as bash's script requests them."""
    monkeypatch.setattr(arguments, "TIMEOUT", PATIENT)

    def complete(line: str, **env: str) -> list[str]:
        asked = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = run(env=asked | {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts} | env, main=main.main)
        assert done.err == ""
        return [found.partition(",")[2] for found in done.lines if found]

    return complete


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
        asked = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
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
    complete: Complete, zookeeper_hosts: str, billing: Any, tmp_path: Path
) -> None:
    nowhere, file = {"ZKGROUPS_ZOOKEEPER": ""}, {"ZKGROUPS_CONFIG": str(tmp_path / "contexts.ini")}
    assert complete(f"zkgroups -z {zookeeper_hosts} groups describe b", **nowhere) == ["billing"]
    assert complete(f"zkgroups groups describe -z {zookeeper_hosts} b", **nowhere) == ["billing"]
    run("context", "add", "here", "-z", zookeeper_hosts, env=file)
    assert complete("zkgroups context use h", **file) == ["here"]
    assert complete("zkgroups -c here groups describe b", **file) == ["billing"]


def test_layouts_and_their_paths_are_completed(complete: Complete, kazoo: Any) -> None:
    for path in ("/kafkastorm/spout", "/kafka", "/apps"):
        kazoo.ensure_path(path)
    assert complete("zkgroups offsets get --layout k") == ["kafka-1.1.0"]
    assert complete("zkgroups lag --layout s") == [r"spark\:/", r"storm\:/"]
    assert complete("zkgroups offsets get --layout storm:/kafkas") == [r"storm\:/kafkastorm"]
    assert complete("zkgroups offsets get --layout /kafkastorm/") == ["/kafkastorm/spout"]
    assert complete("zkgroups offsets get --layout storm:/nowhere/") == []
    assert complete("zkgroups offsets get --stored ") == ["next", "last", "from", "until"]


def test_without_candidates_completion_is_silent_asks_for_no_password_and_waits_for_a_second_at_most(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(options: Options, *, may_prompt: bool) -> Any:
        asked.append((options.timeout, may_prompt))
        return real(options, may_prompt=may_prompt)

    asked: list[tuple[float, bool]] = []
    real = connect.open_registry
    monkeypatch.setattr(connect, "open_registry", opened)
    monkeypatch.setattr(arguments, "TIMEOUT", 1.0)
    nowhere = {"ZKGROUPS_ZOOKEEPER": "127.0.0.1:1"}
    for env in ({"ZKGROUPS_ZOOKEEPER": ""}, nowhere, nowhere | {"ZKGROUPS_DIGEST_USER": "ops"}):
        assert complete("zkgroups groups describe ", **env) == []
    assert asked == [(1.0, False)] * 3
    assert complete("zkgroups groups describe ", ZKGROUPS_CONTEXT="nope") == []


def test_a_name_completed_by_bash_is_one_word_with_that_value(
    zookeeper_hosts: str, registry: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Like pressing Tab, and then Enter."""
    names = {"a b", "*", "$(touch ran)", "`touch ran`", "x;touch ran", "host:a", "k=v", "it's", "a\\b", "~", "#1"}
    names |= {"café", "{a,b}", '"'}
    for name in names:
        registry.group(name).create()
    (tmp_path / "file").touch()
    command = tmp_path_factory.mktemp("bin") / "zkgroups"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom zkgroups_cli.main import main\n"
        f"from zkgroups_cli.shared import arguments\narguments.TIMEOUT = {PATIENT}\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    lines = """
        source <(zkgroups completion bash)
        COMP_WORDS=(zkgroups groups describe '') COMP_CWORD=3
        _zkgroups_completion zkgroups '' describe
        eval "printf '%s\\n' ${COMPREPLY[*]}"
    """
    env = environment({"PATH": path, "ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    done = subprocess.run([bash, "--norc", "-c", lines], env=env, capture_output=True, cwd=tmp_path, timeout=TIMEOUT)
    assert (set(done.stdout.decode().splitlines()), done.stderr.decode()) == (names, "")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_the_current_shell_is_the_default(shell: str) -> None:
    script = run("completion", shell).out
    assert "_ZKGROUPS_COMPLETE" in script
    assert shell in script or "COMP_WORDS" in script
    assert run("completion", env={"SHELL": f"/usr/bin/{shell}"}).out == script
