"""Files that the command writes: contexts, which save options under a name, and files that are only for the user."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.shared import private_files
from cli.shared.global_options import FILE_VARIABLE, Contexts
from cli.shared.private_files import create_file, replace_file
from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import InvalidOptionError
from zkgroups.kafka.wire import security
from zkgroups.testing import KafkaBroker

from .running import COMMAND, TIMEOUT, Argument, Ended, environment, run

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
    with_contexts(
        "context", "add", "x", "--digest-user", "ops", ZKGROUPS_PASSWORD="hunter2", ZKGROUPS_ZOOKEEPER="zk9:2181"
    )
    assert config.read_text().split() == ["[context", "x]", "digest_user", "=", "ops"]


def test_a_contexts_file_that_cannot_be_opened_is_not_taken_for_an_empty_one(with_contexts: Run, config: Path) -> None:
    """Otherwise a guard such as read_only would vanish, and the next `add` would delete all other contexts."""
    config.mkdir()
    for arguments in (("groups", "list", "-z", "127.0.0.1:1"), ("context", "add", "x", "-z", "zk1:2181")):
        ended = with_contexts(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert f"{config} cannot be read" in ended.err


OPEN = "umask 000; exec"


def run_open(*arguments: Any, **env: str) -> Ended:
    """Run the command as a user whose files everybody may change."""
    command = ["sh", "-c", f'{OPEN} "$0" "$@"', COMMAND, *map(str, arguments)]
    done = subprocess.run(command, env=environment(env), capture_output=True, text=True, timeout=TIMEOUT)
    return Ended(done.returncode, done.stdout, done.stderr)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of all files and folders below a folder."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.lstat().st_mode) for each in folder.rglob("*")}


@pytest.fixture
def old(registry: Registry) -> Registry:
    registry.client.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    return registry


# Only for the user


@pytest.mark.zookeeper
def test_saved_offsets_and_contexts_are_only_for_the_user_whatever_the_umask(
    old: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    config = tmp_path / "config" / "zkgroups" / "contexts.ini"
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_CONFIG": str(config)}
    reset = ("offsets", "reset", "billing", "--all-topics", "--to-offset", "3", "--execute", "--undo-file")
    assert run_open("context", "add", "here", "-z", zookeeper_hosts, **env).code == 0
    assert run_open("context", "add", "there", "-z", zookeeper_hosts, **env).code == 0
    assert run_open(*reset, tmp_path / "undo", **env).code == 0
    deleted = run_open(
        "offsets", "delete", "billing", "--all-topics", "--execute", "--undo-file", tmp_path / "gone", **env
    )
    assert deleted.code == 0, deleted.err
    old.group("unused").offsets.set(TopicPartition("orders", 0), 5)
    pruned = run_open("groups", "prune", "--older-than", "0s", "--execute", "--export", tmp_path / "pruned", **env)
    assert pruned.code == 0, pruned.err
    assert modes(tmp_path) == {
        "config": 0o700,
        "config/zkgroups": 0o700,
        "config/zkgroups/contexts.ini": 0o600,
        "config/zkgroups/.contexts.ini.lock": 0o600,
        "undo": 0o600,
        "gone": 0o600,
        "pruned": 0o600,
    }


def test_a_contexts_file_that_the_user_shares_stays_shared(tmp_path: Path) -> None:
    file = tmp_path / "contexts.ini"
    file.touch()
    file.chmod(0o640)
    assert run_open("context", "add", "here", "-z", "zk1:2181", ZKGROUPS_CONFIG=str(file)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "zk1:2181" in file.read_text()


@pytest.mark.kafka
@pytest.mark.zookeeper
def test_no_file_of_a_plan_its_reports_and_its_export_can_be_changed_by_everybody(
    old: Registry, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    if "orders" not in kafka_broker_topics(kafka_broker):
        kafka_broker.create_topic("orders")
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka_broker.address}
    plan = tmp_path / "plan"
    planned = run_open("migrate", "plan", plan, "--all", "--engine", "local", "--on-out-of-range", "latest", **env)
    assert planned.code == 0, planned.err
    for step in (("apply", plan, "--execute"), ("rollback", plan, "--execute"), ("export", plan, tmp_path / "export")):
        ended = run_open("migrate", *step, **env)
        assert ended.code == 0, ended.err
    found = modes(tmp_path)
    assert {"plan/plan/_SUCCESS", "export/reset-offsets.sh"} <= found.keys()
    assert any(name.startswith("plan/reports/") and name.endswith(".parquet") for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & stat.S_IWOTH} == {}


def kafka_broker_topics(broker: KafkaBroker) -> Any:
    from zkgroups.kafka import Brokers

    with Brokers.connect(broker.address) as brokers:
        return brokers.partitions()


@pytest.mark.zookeeper
def test_the_command_of_a_claim_keeps_the_umask_of_the_user(old: Registry, zookeeper_hosts: str) -> None:
    ended = run_open("claim", "billing", "orders", "0", "--", "sh", "-c", "umask", ZKGROUPS_ZOOKEEPER=zookeeper_hosts)
    assert (ended.code, ended.out) == (0, "0000\n")


# Complete or not there at all


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file to write. Nothing else stays in its folder."""
    yield tmp_path / "file"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_new_file_appears_when_it_is_complete(file: Path) -> None:
    def lines() -> Iterator[str]:
        for number in range(3):
            assert not file.exists()
            yield f"{number}\n"

    create_file(file, lines())
    assert file.read_text() == "0\n1\n2\n"


def test_a_new_file_that_cannot_be_completed_does_not_appear(file: Path) -> None:
    def lines() -> Iterator[str]:
        yield "0\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_file(file, lines())
    assert not file.exists()


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
    assert run_open("context", "add", "here", "-z", "zk1:2181", ZKGROUPS_CONFIG=str(planted)).code == 0
    assert not planted.is_symlink()
    assert stat.S_IMODE(planted.stat().st_mode) == 0o600


def test_the_lock_of_the_contexts_is_not_opened_through_a_link(planted: Path, tmp_path: Path) -> None:
    file = tmp_path / "contexts.ini"
    planted.rename(tmp_path / ".contexts.ini.lock")
    ended = run_open("context", "add", "here", "-z", "zk1:2181", ZKGROUPS_CONFIG=str(file))
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
