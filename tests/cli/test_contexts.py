"""Files that the command writes: contexts, which save options under a name, and files that are only for the user."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from zkgroups_cli import main

from cli.shared import private_files
from cli.shared.global_options import FILE_VARIABLE, Contexts
from cli.shared.private_files import create_file, replace_file
from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import InvalidOptionError
from zkgroups.kafka.wire import security
from zkgroups.testing import KafkaBroker

from .running import COMMAND, Argument, Ended, environment, run

Run = Callable[..., Ended]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "contexts.ini"


@pytest.fixture
def with_contexts(config: Path) -> Run:
    """Run the command with its own contexts file, and without an address in the environment."""

    def run_with(*arguments: Argument, **env: str) -> Ended:
        return run(*arguments, env={"ZKGROUPS_CONFIG": str(config)} | env)

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
    "text", ["[context x]\nzookeeper", "[context x]\nzoo = 1\n", "[context x]\ntimeout = soon\n", "\xff["]
)
def test_an_unreadable_contexts_file_is_one_sentence_that_names_the_file(
    with_contexts: Run, config: Path, text: str
) -> None:
    config.write_bytes(text.encode("latin-1"))
    ended = with_contexts("groups", "list", "-c", "x")
    assert ended.code == 2
    assert str(config) in ended.err
    assert "Traceback" not in ended.err


def test_contexts_that_two_processes_add_at_once_are_both_saved(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(config))
    one, two = Contexts(), Contexts()
    one.put("a", {"zookeeper": "zk1:2181"})
    two.put("b", {"zookeeper": "zk2:2181"})
    one.use("b")
    assert (Contexts().names(), Contexts().current) == (["a", "b"], "b")


def test_neither_passwords_nor_options_from_the_environment_are_saved(with_contexts: Run, config: Path) -> None:
    env = {"ZKGROUPS_PASSWORD": "hunter2", "ZKGROUPS_ZOOKEEPER": "zk9:2181"}
    with_contexts("context", "add", "x", "--digest-user", "ops", **env)
    assert config.read_text().split() == ["[context", "x]", "digest_user", "=", "ops"]


def test_a_contexts_file_that_cannot_be_opened_is_not_taken_for_an_empty_one(with_contexts: Run, config: Path) -> None:
    """Otherwise a guard such as read_only would vanish, and the next `add` would delete all other contexts."""
    config.mkdir()
    for arguments in (("groups", "list", "-z", "127.0.0.1:1"), ("context", "add", "x", "-z", "zk1:2181")):
        ended = with_contexts(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert f"{config} cannot be read" in ended.err


# Only for the user


@pytest.fixture
def for_everybody() -> Iterator[None]:
    """Run commands like a user whose files everybody may change."""
    before = os.umask(0)
    main.protect_new_files()
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of all files and folders below a folder."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.lstat().st_mode) for each in folder.rglob("*")}


@pytest.fixture
def old(registry: Registry) -> Registry:
    registry.client.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    return registry


@pytest.mark.zookeeper
@pytest.mark.usefixtures("for_everybody")
def test_saved_offsets_and_contexts_are_only_for_the_user_whatever_the_umask(
    old: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    config = tmp_path / "config" / "zkgroups" / "contexts.ini"
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_CONFIG": str(config)}
    old.group("unused").offsets.set(TopicPartition("orders", 0), 5)
    delete = ("offsets", "delete", "billing", "--all-topics", "--execute", "--undo-file", tmp_path / "undo")
    prune = ("groups", "prune", "--older-than", "0s", "--execute", "--export", tmp_path / "pruned")
    for command in (("context", "add", "here", "-z", zookeeper_hosts), delete, prune):
        ended = run(*command, env=env)
        assert ended.code == 0, ended.err
    private = ("config/zkgroups/contexts.ini", "config/zkgroups/.contexts.ini.lock", "undo", "pruned")
    assert modes(tmp_path) == {"config": 0o700, "config/zkgroups": 0o700} | dict.fromkeys(private, 0o600)


def test_a_contexts_file_that_the_user_shares_stays_shared(config: Path, with_contexts: Run) -> None:
    config.touch()
    config.chmod(0o640)
    assert with_contexts("context", "add", "here", "-z", "zk1:2181").code == 0
    assert (stat.S_IMODE(config.stat().st_mode), "zk1:2181" in config.read_text()) == (0o640, True)


@pytest.mark.kafka
@pytest.mark.zookeeper
@pytest.mark.usefixtures("for_everybody")
def test_no_file_of_a_plan_its_reports_and_its_export_can_be_changed_by_everybody(
    old: Registry, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with suppress(Exception):  # another test may have created it
        kafka_broker.create_topic("orders")
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka_broker.address}
    plan = tmp_path / "plan"
    made = ("plan", plan, "--all", "--engine", "local", "--on-out-of-range", "latest")
    for step in (made, ("apply", plan, "--execute"), ("export", plan, tmp_path / "export")):
        ended = run("migrate", *step, env=env)
        assert ended.code == 0, ended.err
    found = modes(tmp_path)
    assert {"plan/plan/_SUCCESS", "export/reset-offsets.sh"} <= found.keys()
    assert any(name.startswith("plan/reports/") and name.endswith(".parquet") for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & stat.S_IWOTH} == {}


@pytest.mark.zookeeper
def test_the_command_of_a_claim_keeps_the_umask_of_the_user_and_the_command_itself_does_not(
    old: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    command = 'umask 0; exec "$0" -z "$1" claim billing orders 0 -- sh -c "umask; grep Umask /proc/$$/status"'
    done = subprocess.run(["sh", "-c", command, COMMAND, zookeeper_hosts], env=environment(), capture_output=True)
    assert done.stdout.split() == [b"0000", b"Umask:", b"0002"]


# Complete or not there at all


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file to write. Nothing else stays in its folder."""
    yield tmp_path / "file"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_new_file_appears_when_it_is_complete_or_not_at_all(file: Path) -> None:
    def lines(*, to_the_end: bool) -> Iterator[str]:
        for number in range(3):
            assert not file.exists()
            yield f"{number}\n"
        if not to_the_end:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_file(file, lines(to_the_end=False))
    create_file(file, lines(to_the_end=True))
    assert file.read_text() == "0\n1\n2\n"


def test_a_new_file_is_created_where_files_cannot_have_two_names(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(private_files.os, "link", link)
    create_file(file, ["0\n"])
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("0\n", 0o600)
    with pytest.raises(FileExistsError):
        create_file(file, ["1\n"])
    assert file.read_text() == "0\n"


def test_a_file_is_replaced_as_a_whole(file: Path) -> None:
    replace_file(file, "old\n")
    with file.open() as before:
        replace_file(file, "new\n")
        assert before.read() == "old\n"
    assert file.read_text() == "new\n"


# Planted links


@pytest.fixture(params=["of the user", "missing"])
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A link that leads to a file that must not be changed, or to none that must not be created."""
    precious, link = tmp_path / "elsewhere" / "precious", tmp_path / "link"
    precious.parent.mkdir()
    if request.param == "of the user":
        precious.touch(0o644)
    link.symlink_to(precious)
    before = modes(precious.parent)
    yield link
    assert modes(precious.parent) == before
    assert not precious.exists() or precious.read_bytes() == b""


def test_saved_offsets_are_not_written_through_a_link(planted: Path) -> None:
    with pytest.raises(FileExistsError):
        create_file(planted, ["0\n"])


def test_contexts_are_not_written_through_a_link(planted: Path) -> None:
    assert run("context", "add", "here", "-z", "zk1:2181", env={"ZKGROUPS_CONFIG": str(planted)}).code == 0
    assert not planted.is_symlink()
    assert stat.S_IMODE(planted.stat().st_mode) == 0o600


def test_the_lock_of_the_contexts_is_not_opened_through_a_link(planted: Path, tmp_path: Path) -> None:
    file = tmp_path / "contexts.ini"
    planted.rename(tmp_path / ".contexts.ini.lock")
    ended = run("context", "add", "here", "-z", "zk1:2181", env={"ZKGROUPS_CONFIG": str(file)})
    assert ended.code != 0
    assert not file.exists()
    (tmp_path / ".contexts.ini.lock").rename(planted)


@pytest.mark.zookeeper
def test_a_session_is_not_saved_through_a_link(planted: Path, zookeeper_hosts: str) -> None:
    with pytest.raises(InvalidOptionError, match="it is a symbolic link, which is not followed: name the file itself"):
        Registry.connect(zookeeper_hosts, session_file=planted)


# Keys


def test_the_key_of_a_client_is_never_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with security._file_in_memory("a key") as file:
        assert Path(file).read_text() == "a key"
        assert Path(file).readlink().name.startswith("memfd:")
    assert not Path(file).exists()
