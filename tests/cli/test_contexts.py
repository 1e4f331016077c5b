"""Contexts: options saved under a name. The command line and the environment take precedence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.shared.contexts_file import FILE_VARIABLE, Contexts

from .running import Argument, Ended, run, run_without_space

Run = Callable[..., Ended]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "contexts.ini"


@pytest.fixture
def with_contexts(file: Path) -> Run:
    """Run the command with its own contexts file, and without an address in the environment."""

    def run_with(*arguments: Argument, **env: str) -> Ended:
        return run(*arguments, env={"ZKGROUPS_CONFIG": str(file)} | env)

    return run_with


@pytest.mark.usefixtures("cluster")
def test_saved_options_are_used_by_name_or_as_the_current_context(with_contexts: Run, zookeeper_hosts: str) -> None:
    assert with_contexts("context", "add", "here", "-z", zookeeper_hosts, "--timeout", "7").code == 0
    assert with_contexts("groups", "list").code == 2
    assert with_contexts("groups", "list", "-c", "here").code == 0
    assert with_contexts("-c", "here", "groups", "list").code == 0
    assert with_contexts("groups", "list", ZKGROUPS_CONTEXT="here").code == 0
    assert with_contexts("context", "use", "here").code == 0
    assert with_contexts("groups", "list").code == 0


def test_the_command_line_overrides_the_environment_and_the_environment_overrides_the_context(
    with_contexts: Run,
) -> None:
    with_contexts("context", "add", "one", "-z", "127.0.0.1:1", "--timeout", "0.2")
    with_contexts("context", "use", "one")
    assert "127.0.0.1:1 within 0.2 s" in with_contexts("groups", "list").err
    assert "127.0.0.1:2 within 0.2 s" in with_contexts("groups", "list", ZKGROUPS_ZOOKEEPER="127.0.0.1:2").err
    ended = with_contexts(
        "groups", "list", "-z", "127.0.0.1:3", ZKGROUPS_ZOOKEEPER="127.0.0.1:2", ZKGROUPS_TIMEOUT="0.3"
    )
    assert ended.code == 7
    assert "127.0.0.1:3 within 0.3 s" in ended.err


def test_contexts_are_listed_shown_replaced_and_deleted(with_contexts: Run) -> None:
    assert (with_contexts("context", "list").out, with_contexts("context", "list", "-o", "json").json["contexts"]) == (
        "",
        [],
    )
    with_contexts("context", "add", "b", "-z", "zk2:2181", "-b", "kafka2:9092", "--tls")
    with_contexts("context", "add", "a", "-z", "zk1:2181")
    assert "replaced context a" in with_contexts("context", "add", "a", "-z", "zk1:2182").err
    with_contexts("context", "use", "b")
    assert with_contexts("context", "list").lines == [
        "CURRENT  CONTEXT  ZOOKEEPER  BOOTSTRAP-SERVER",
        "         a        zk1:2182   -",
        "*        b        zk2:2181   kafka2:9092",
    ]
    shown = with_contexts("context", "show", "-o", "json").json["options"]
    assert {row["option"]: row["value"] for row in shown} == {
        "zookeeper": "zk2:2181",
        "bootstrap_server": "kafka2:9092",
        "tls": "true",
    }
    with_contexts("context", "delete", "b")
    assert with_contexts("context", "list", "-o", "name").lines == ["a"]
    assert with_contexts("context", "show").code == 2, "the one in use is forgotten with it"


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "list", "-c", "nope"),
        ("context", "use", "nope"),
        ("context", "delete", "nope"),
        ("context", "show", "nope"),
        ("context", "add", "x"),
        ("context", "add", "a]b", "-z", "zk1:2181"),
        ("context", "add", "", "-z", "zk1:2181"),
    ],
    ids=" ".join,
)
def test_missing_contexts_and_invalid_options_are_wrong_usage(
    with_contexts: Run, file: Path, arguments: tuple[str, ...]
) -> None:
    ended = with_contexts(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert not file.exists()


@pytest.mark.parametrize(
    "text", ["[context x]\nzookeeper", "[context x]\nzoo = 1\n", "[context x]\ntimeout = soon\n", "\xff["]
)
def test_an_unreadable_contexts_file_is_one_sentence_that_names_the_file(
    with_contexts: Run, file: Path, text: str
) -> None:
    file.write_bytes(text.encode("latin-1"))
    ended = with_contexts("groups", "list", "-c", "x")
    assert ended.code == 2
    assert str(file) in ended.err
    assert "Traceback" not in ended.err


def test_contexts_that_two_processes_add_at_once_are_both_saved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    one, two = Contexts(), Contexts()
    one.put("a", {"zookeeper": "zk1:2181"})
    two.put("b", {"zookeeper": "zk2:2181"})
    one.use("b")
    assert (Contexts().names(), Contexts().current) == (["a", "b"], "b")


def test_neither_passwords_nor_options_from_the_environment_are_saved(with_contexts: Run, file: Path) -> None:
    with_contexts(
        "context", "add", "x", "--digest-user", "ops", ZKGROUPS_PASSWORD="hunter2", ZKGROUPS_ZOOKEEPER="zk9:2181"
    )
    assert file.read_text().split() == ["[context", "x]", "digest_user", "=", "ops"]


def test_a_contexts_file_that_cannot_be_opened_is_not_taken_for_an_empty_one(with_contexts: Run, file: Path) -> None:
    """Otherwise a guard such as read_only would vanish, and the next `add` would delete all other contexts."""
    file.mkdir()
    for arguments in (("groups", "list", "-z", "127.0.0.1:1"), ("context", "add", "x", "-z", "zk1:2181")):
        ended = with_contexts(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert f"{file} cannot be read" in ended.err


def test_an_empty_name_is_not_the_context_in_use(with_contexts: Run) -> None:
    with_contexts("context", "add", "prod", "-z", "127.0.0.1:1")
    with_contexts("context", "use", "prod")
    ended = with_contexts("groups", "list", "-c", "")
    assert (ended.code, ended.out) == (2, "")
    assert "context '' does not exist" in ended.err


def test_a_context_named_on_the_command_line_overrides_the_environment(with_contexts: Run) -> None:
    with_contexts("context", "add", "one", "-z", "127.0.0.1:1", "--timeout", "0.2")
    assert "127.0.0.1:1 within" in with_contexts("groups", "list", "-c", "one", ZKGROUPS_ZOOKEEPER="127.0.0.1:2").err
    ended = with_contexts("groups", "list", "-c", "one", "-z", "127.0.0.1:3", ZKGROUPS_ZOOKEEPER="127.0.0.1:2")
    assert "127.0.0.1:3 within" in ended.err
    used = with_contexts("context", "use", "one", ZKGROUPS_ZOOKEEPER="127.0.0.1:2")
    assert "ZKGROUPS_ZOOKEEPER is set in the environment and wins" in used.err


def test_contexts_stay_as_they_are_if_the_disk_is_full(with_contexts: Run, file: Path) -> None:
    assert with_contexts("context", "add", "one", "-z", "zk1:2181").code == 0
    before, names = file.read_bytes(), sorted(each.name for each in file.parent.iterdir())
    ended = run_without_space("context", "add", "two", "-z", "zk2:2181", env={"ZKGROUPS_CONFIG": str(file)})
    assert (ended.code, ended.err) == (
        1,
        f"zkgroups: {file} could not be written: File too large; nothing was changed\n",
    )
    assert file.read_bytes() == before
    assert sorted(each.name for each in file.parent.iterdir()) == names
