"""`zkgroups offsets get`, `set` and `diff`, and the rules that all `zkgroups offsets` commands share."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.exceptions import NoPermissionError

from .conftest import Zkgroups
from .running import COMMAND, environment, run
from .test_groups import tree

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


@pytest.fixture
def invoices(registry: Registry) -> Any:
    """A group of offsets only: orders/0 at 50, orders/1 at 60, and refunds/0 at 7."""
    group = registry.group("invoices")
    group.offsets.set_many({P0: 50, P1: 60, TopicPartition("refunds", 0): 7})
    return group


def number(group: Any, at: TopicPartition = P0) -> int | None:
    found = group.offsets.fetch(at)
    return None if found is None else int(found.offset)


# get


def test_a_group_has_a_line_for_each_offset(zkgroups: Zkgroups, invoices: Any, billing: Any) -> None:
    ended = zkgroups("offsets", "get", "invoices")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split() for line in ended.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "OFFSET", "NOTE"],
        ["invoices", "orders", "0", "50", "-"],
        ["invoices", "orders", "1", "60", "-"],
        ["invoices", "refunds", "0", "7", "-"],
    ]


def test_a_wide_table_has_times_and_versions(zkgroups: Zkgroups, invoices: Any) -> None:
    [header, line] = zkgroups("offsets", "get", "invoices", "--topic", "orders:1", "-o", "wide").lines
    committed = invoices.offsets.fetch(P1)
    assert header.split() == ["GROUP", "TOPIC", "PARTITION", "OFFSET", "COMMITTED", "VERSION", "ZXID", "NOTE"]
    assert line.split()[:4] == ["invoices", "orders", "1", "60"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.split()[4])
    assert line.split()[5:] == ["0", hex(committed.zxid), "-"]


def test_json_has_every_field_as_a_number(zkgroups: Zkgroups, invoices: Any) -> None:
    found = zkgroups("offsets", "get", "invoices", "--topic", "refunds", "-o", "json").json
    committed = invoices.offsets.fetch(TopicPartition("refunds", 0))
    assert found == {
        "schema": 1,
        "offsets": [
            {
                "group": "invoices",
                "topic": "refunds",
                "partition": 0,
                "offset": 7,
                "committed_ms": to_ms(committed.committed_at),
                "version": 0,
                "zxid": committed.zxid,
                "note": None,
            }
        ],
    }


def test_without_a_group_all_are_shown_and_an_expression_chooses_some(
    zkgroups: Zkgroups, invoices: Any, billing: Any
) -> None:
    def groups(*arguments: str) -> list[str]:
        return [json.loads(line)["group"] for line in zkgroups("offsets", "get", *arguments, "-o", "jsonl").lines]

    assert groups() == ["billing", "invoices", "invoices", "invoices"]
    assert groups("--groups", "inv.*", "--topic", "orders") == ["invoices", "invoices"]
    assert groups("invoices", "--groups", "b.*", "--topic", "orders:0") == ["invoices", "billing"]


def test_without_offsets_the_data_is_empty_and_a_message_goes_to_stderr(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("empty").create()
    for arguments in ((), ("empty",), ("empty", "--topic", "orders")):
        ended = zkgroups("offsets", "get", *arguments)
        assert (ended.code, ended.out, ended.err) == (0, "", "There are no offsets.\n")
    assert zkgroups("offsets", "get", "-o", "json").json == {"schema": 1, "offsets": []}


@pytest.fixture
def litter(kazoo: KazooClient) -> str:
    """Nodes that are malformed offsets, and nodes with invalid partition numbers. All are readable."""
    kazoo.create("/consumers/litter/offsets/orders/0", b"many", makepath=True)
    kazoo.create("/consumers/litter/offsets/orders/01", b"5")
    return "litter"


def test_a_malformed_offset_is_a_line_with_the_reason(zkgroups: Zkgroups, litter: str, kazoo: KazooClient) -> None:
    alone = zkgroups("offsets", "get", litter, "-o", "json")
    assert alone.code == 10
    assert [(each["partition"], each["offset"], each["note"]) for each in alone.json["offsets"]] == [
        (None, None, "01: its name is not a partition: b'5'"),
        (0, None, "not a plain decimal number: b'many'"),
    ]
    kazoo.create("/consumers/litter/offsets/orders/1", b"0")
    ended = zkgroups("offsets", "get", litter, "--topic", "orders:0,1")
    assert ended.code == 0
    assert [line.split()[2:4] for line in ended.lines[1:]] == [["0", "-"], ["1", "0"]]


@pytest.mark.parametrize("wrong", ["orders:0-2", "orders:0, 1", "orders:0,"])
def test_an_invalid_list_of_partitions_is_not_taken_for_a_topic(zkgroups: Zkgroups, wrong: str) -> None:
    ended = zkgroups("offsets", "get", "--topic", wrong, "-z", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert "must be like orders:0,1,2" in ended.err


def test_a_topic_whose_name_ends_like_a_list_is_given_with_a_colon(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("odd").offsets.set(TopicPartition("orders:0-2", 0), 5)
    assert zkgroups("offsets", "get", "--topic", "orders:0-2:", "-o", "name").code == 0
    assert "orders:0-2" in zkgroups("offsets", "get", "--topic", "orders:0-2:").out


def test_a_missing_group_does_not_hide_the_others(zkgroups: Zkgroups, invoices: Any) -> None:
    ended = zkgroups("offsets", "get", "nobody", "invoices", "-o", "csv")
    assert (ended.code, ended.err) == (9, "zkgroups: group 'nobody' does not exist: check the name and the address\n")
    assert [row["offset"] for row in csv.DictReader(io.StringIO(ended.out))] == ["50", "60", "7"]


def test_forbidden_nodes_do_not_hide_the_others(zkgroups: Zkgroups, secret: str, invoices: Any) -> None:
    ended = zkgroups("offsets", "get", "-o", "json")
    assert (ended.code, ended.err) == (
        9,
        f"zkgroups: {NoPermissionError('/consumers/secret/offsets')}\n",
    )
    hidden = ended.json["offsets"][-1]
    assert (hidden["group"], hidden["offset"], hidden["note"]) == ("secret", None, "no permission")
    assert zkgroups("offsets", "get", secret).code == 6
    alice = {"ZKGROUPS_DIGEST_USER": "alice", "ZKGROUPS_PASSWORD": "sesame"}
    assert zkgroups("offsets", "get", secret, "-o", "name", **alice).lines == ["0"]


# set


def test_an_offset_is_set_forward_or_created(zkgroups: Zkgroups, invoices: Any) -> None:
    ended = zkgroups("offsets", "set", "invoices", "orders", "0", "55")
    assert (ended.code, ended.out, ended.err) == (0, "", "invoices: set the offset of orders/0 to 55; it was 50\n")
    made = zkgroups("offsets", "set", "invoices", "orders", "2", "0", "--expect", "none")
    assert (made.code, made.err) == (0, "invoices: set the offset of orders/2 to 0; it had none\n")
    assert (number(invoices), number(invoices, P2)) == (55, 0)


def test_an_offset_goes_back_only_with_backward(zkgroups: Zkgroups, invoices: Any) -> None:
    ended = zkgroups("offsets", "set", "invoices", "orders", "0", "49")
    assert (ended.code, ended.out) == (4, "")
    assert (
        ended.err
        == "zkgroups: offset of orders/0 in group 'invoices' is 50 and would go back to 49: --backward allows it\n"
    )
    assert number(invoices) == 50
    assert zkgroups("offsets", "set", "invoices", "orders", "0", "49", "--backward").code == 0
    assert number(invoices) == 49


def test_an_offset_that_is_not_as_expected_is_a_conflict_before_anything_else(
    zkgroups: Zkgroups, invoices: Any, billing: Any
) -> None:
    for expect in ("49", "none"):
        ended = zkgroups("offsets", "set", "invoices", "orders", "0", "70", "--expect", expect)
        assert (ended.code, ended.out) == (5, "")
        assert ended.err == (
            "zkgroups: offset of orders/0 was changed by another client and is now 50: check it before you try again\n"
        )
    assert number(invoices) == 50
    assert zkgroups("offsets", "set", "billing", "orders", "0", "1", "--expect", "7").code == 5
    assert zkgroups("offsets", "set", "invoices", "orders", "2", "70", "--expect", "0").code == 5
    assert zkgroups("offsets", "set", "invoices", "orders", "0", "70", "--expect", "50").code == 0


def test_a_malformed_offset_can_be_set(zkgroups: Zkgroups, litter: str, registry: Registry) -> None:
    assert zkgroups("offsets", "set", litter, "orders", "0", "7", "--expect", "none").code == 5
    refused = zkgroups("offsets", "set", litter, "orders", "0", "7")
    assert refused.code == 4
    assert "the new one might go back: --backward allows it" in refused.err
    ended = zkgroups("offsets", "set", litter, "orders", "0", "7", "--backward")
    assert (ended.code, ended.err) == (0, "litter: set the offset of orders/0 to 7; it was b'many'\n")
    assert number(registry.group(litter)) == 7


def test_a_live_group_is_not_changed_unless_forced(zkgroups: Zkgroups, billing: Any) -> None:
    ended = zkgroups("offsets", "set", "billing", "orders", "0", "200")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n"
    assert number(billing) == 100
    assert zkgroups("offsets", "set", "billing", "orders", "0", "200", "--force").code == 0
    assert number(billing) == 200


@pytest.mark.parametrize(
    ("topic", "partition", "missing"), [("order", "0", "topic 'order'"), ("orders", "2", "partition orders/2")]
)
def test_an_offset_of_a_partition_that_kafka_does_not_have_is_set_only_with_force(
    zkgroups: Zkgroups, invoices: Any, billing: Any, topic: str, partition: str, missing: str
) -> None:
    command = ("offsets", "set", "invoices", topic, partition, "5")
    refused = zkgroups(*command)
    assert (refused.code, refused.out) == (3, "")
    assert refused.err == f"zkgroups: Kafka has no {missing}: check the name and the number, or use --force\n"
    assert invoices.offsets.fetch(TopicPartition(topic, int(partition))) is None
    assert zkgroups(*command, "--force").code == 0
    assert number(invoices, TopicPartition(topic, int(partition))) == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("orders", "x", "5"),
        ("orders", "01", "5"),
        ("orders", "0", "5.0"),
        ("orders", "0", "9223372036854775808"),
        ("orders", "0", "5", "--expect", "-1"),
        ("orders", "0", "5", "--expect", ""),
        ("a/b", "0", "5"),
    ],
)
def test_an_invalid_partition_or_offset_is_wrong_usage(
    zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("offsets", "set", "invoices", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert tree(kazoo, "/consumers") == before


# diff


def test_two_groups_differ_in_their_offsets(zkgroups: Zkgroups, invoices: Any, billing: Any) -> None:
    ended = zkgroups("offsets", "diff", "billing", "invoices")
    assert ended.code == 10
    assert [line.split() for line in ended.lines] == [
        ["TOPIC", "PARTITION", "A", "B", "DELTA", "NOTE"],
        ["orders", "0", "100", "50", "-50", "-"],
        ["orders", "1", "-", "60", "-", "only", "in", "B"],
        ["refunds", "0", "-", "7", "-", "only", "in", "B"],
    ]
    found = zkgroups("offsets", "diff", "invoices", "billing", "--topic", "orders:0", "-o", "json")
    assert found.json["differences"] == [
        {"topic": "orders", "partition": 0, "a": 50, "b": 100, "delta": 50, "note": None}
    ]


def test_a_group_and_its_export_do_not_differ_until_something_changes(
    zkgroups: Zkgroups, invoices: Any, billing: Any, tmp_path: Path
) -> None:
    file = tmp_path / "kept"
    for form in ("json", "path", "spark"):
        file.write_text(zkgroups("offsets", "export", "invoices", "--format", form).out)
        same = zkgroups("offsets", "diff", f"@{file}", "invoices")
        assert (same.code, same.out, same.err) == (0, "", "The offsets are equal.\n"), form
    invoices.offsets.set(P0, 51)
    [row] = zkgroups("offsets", "diff", f"@{file}", "invoices", "-o", "json").json["differences"]
    assert (row["a"], row["b"], row["delta"]) == (50, 51, 1)


def test_one_group_of_a_file_can_be_compared_and_two_files_need_no_server(zkgroups: Zkgroups, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("/consumers/x/offsets/t/0:5\n/consumers/y/offsets/t/0:6\n")
    b.write_text("t,0,6\n")
    nowhere = ("-z", "127.0.0.1:1", "--timeout", "0.3")
    assert run("offsets", "diff", f"@{a}", f"@{b}", *nowhere).code == 2
    assert run("offsets", "diff", f"@{a}", f"@{b}", "--group", "x", *nowhere).code == 10
    assert run("offsets", "diff", f"@{a}", f"@{b}", "--group", "y", *nowhere).code == 0
    assert run("offsets", "diff", f"@{a}", f"@{b}", "--group", "z", *nowhere).code == 3
    assert run("offsets", "diff", f"@{a}", f"@{tmp_path}/none", "--group", "y", *nowhere).code == 2


def test_a_malformed_offset_differs_from_everything(zkgroups: Zkgroups, litter: str) -> None:
    ended = zkgroups("offsets", "diff", litter, litter, "-o", "json")
    [row] = ended.json["differences"]
    assert ended.code == 10
    assert (row["a"], row["b"], row["delta"]) == (None, None, None)
    assert row["note"].startswith("A has an invalid offset: not a plain")


def test_a_group_with_a_name_like_a_file_can_be_compared(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("@home").offsets.set(P0, 5)
    assert zkgroups("offsets", "diff", "@@home", "@@home").code == 0


# All commands

READING = [("get", "{}"), ("export", "{}"), ("diff", "{}", "invoices")]
WRITING = [
    ("set", "{}", "orders", "0", "500"),
    ("reset", "{}", "--all-topics", "--to-offset", "500"),
    ("delete", "{}", "--all-topics"),
    ("import", "{file}"),
]
ALL = READING + WRITING


@pytest.fixture
def command(zkgroups: Zkgroups, tmp_path: Path) -> Callable[..., Any]:
    """Run one of the commands above on a group."""

    def command(arguments: tuple[str, ...], group: str, *more: str, program: Any = zkgroups) -> Any:
        file = tmp_path / "offsets"
        file.write_text(json.dumps({"group": group, "topic": "orders", "partition": 0, "offset": 500}))
        return program("offsets", *(word.format(group, file=file) for word in arguments), *more)

    return command


def name(arguments: tuple[str, ...]) -> str:
    return arguments[0]


@pytest.mark.parametrize("arguments", [each for each in ALL if each[0] != "import"], ids=name)
def test_a_missing_group_is_exit_code_3(
    command: Callable[..., Any], kazoo: KazooClient, invoices: Any, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = command(arguments, "nobody")
    assert (ended.code, ended.err) == (3, "zkgroups: group 'nobody' does not exist: check the name and the address\n")
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("arguments", ALL, ids=name)
def test_a_bad_name_is_exit_code_2_before_anything_is_sent(
    command: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    nowhere = ("-z", "127.0.0.1:1", "--timeout", "0.3")
    ended = command(arguments, "a/ids", *nowhere, program=run)
    assert (ended.code, ended.out) == (2, "")
    assert "contains a slash" in ended.err


@pytest.mark.parametrize("arguments", ALL, ids=name)
def test_an_unreachable_server_is_exit_code_7(command: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    ended = command(arguments, "invoices", "-z", "127.0.0.1:1", "--timeout", "0.3", program=run)
    assert (ended.code, ended.out) == (7, "")


@pytest.mark.parametrize("arguments", ALL, ids=name)
def test_without_permission_nothing_changes_and_an_error_is_reported(
    command: Callable[..., Any], kazoo: KazooClient, secret: str, invoices: Any, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = command(arguments, secret, *(["--execute"] if arguments[0] in {"reset", "delete", "import"} else []))
    assert ended.code == 6, ended
    assert "zkgroups: no permission on /consumers/secret/" in ended.err
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("arguments", WRITING, ids=name)
def test_read_only_refuses_to_write(
    command: Callable[..., Any], kazoo: KazooClient, invoices: Any, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = command(arguments, "invoices", "--read-only", *(["--execute"] if arguments[0] != "set" else []))
    assert (ended.code, ended.err) == (
        4,
        "zkgroups: this command writes, but --read-only was given: leave it out to write\n",
    )
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("arguments", WRITING[1:], ids=name)
def test_without_execute_the_changes_are_only_shown(
    command: Callable[..., Any], kazoo: KazooClient, invoices: Any, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = command(arguments, "invoices", "--read-only", "-o", "json")
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    new = None if arguments[0] == "delete" else 500
    assert (ended.json["changes"][0]["old"], ended.json["changes"][0]["new"]) == (50, new)
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("arguments", WRITING[1:], ids=name)
def test_a_group_with_instances_is_not_changed_but_its_dry_run_works(
    command: Callable[..., Any], kazoo: KazooClient, billing: Any, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    shown = command(arguments, "billing", "-o", "json")
    assert (shown.code, [row["old"] for row in shown.json["changes"]]) == (4, [100])
    assert shown.err.endswith("Nothing was changed, and --execute would be refused: see above.\n")
    ended = command(arguments, "billing", "--execute", "-o", "json")
    assert (ended.code, ended.json["changes"]) == (4, [])
    assert ended.err == "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n"
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("arguments", WRITING[1:], ids=name)
def test_force_changes_offsets_beside_instances_and_warns(
    command: Callable[..., Any], billing: Any, arguments: tuple[str, ...]
) -> None:
    ended = command(arguments, "billing", "--execute", "--force")
    assert ended.code == 0
    assert "in use by anna, ben: they keep reading from their own positions" in ended.err
    assert "their next commit may overwrite the new offsets" in ended.err
    assert number(billing) == (None if arguments[0] == "delete" else 500)


@pytest.mark.parametrize("arguments", WRITING[1:], ids=name)
def test_an_undo_file_restores_the_previous_offsets(
    command: Callable[..., Any], zkgroups: Zkgroups, invoices: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    before = zkgroups("offsets", "export", "invoices").out
    undo = tmp_path / "undo.json"
    assert command(arguments, "invoices", "--undo-file", str(undo)).code == 0
    assert not undo.exists()  # nothing was changed, so there is nothing to restore
    done = command(arguments, "invoices", "--undo-file", str(undo), "--execute")
    assert (done.code, done.err.splitlines()[0]) == (
        0,
        f"Saved the old offsets to {undo}. To restore them: zkgroups offsets import {undo} --backward --execute",
    )
    assert zkgroups("offsets", "export", "invoices").out != before
    assert zkgroups("offsets", "import", str(undo), "--backward", "--execute").code == 0
    assert zkgroups("offsets", "export", "invoices").out == before


@pytest.mark.parametrize("arguments", WRITING[1:], ids=name)
def test_an_existing_file_is_never_overwritten_by_offsets_commands(
    command: Callable[..., Any], kazoo: KazooClient, invoices: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    undo = tmp_path / "undo.json"
    undo.symlink_to(tmp_path / "elsewhere")
    for execute in ([], ["--execute"]):
        ended = command(arguments, "invoices", "--undo-file", str(undo), *execute)
        assert (ended.code, ended.out) == (4, "")
        assert "already exists" in ended.err
    assert not (tmp_path / "elsewhere").exists()
    nowhere = command(arguments, "invoices", "--undo-file", str(tmp_path / "none" / "undo"), "--execute")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert tree(kazoo, "/consumers") == before


def test_a_closed_pipe_is_not_an_error(zkgroups: Zkgroups, registry: Registry, zookeeper_hosts: str) -> None:
    registry.group("invoices").offsets.set_many({TopicPartition("orders", n): n for n in range(3000)})
    for arguments in (["get", "-o", "jsonl"], ["export", "invoices", "--format", "path"]):
        with subprocess.Popen(
            [COMMAND, "offsets", *arguments],
            env=environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert (process.wait(30), process.stderr.read()) == (0, b"")
