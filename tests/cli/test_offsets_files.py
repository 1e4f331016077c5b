"""Files of offsets: `offsets export` and `import`, round trips, files of other tools, and invalid files."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import CommittedOffset, Registry, TopicPartition

from ..zookeeper.tree import dump as tree
from .conftest import Zkgroups
from .running import COMMAND, environment

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)

ODD_NAMES = ["a,b", 'say "x"', "it's", "a:0", " a b ", "#a", "%41", "Ünïcode", "\u2028", "\ufeffa"]
ODD_NAMES += ["{", "[0]", "a\\b", "offsets", "null", "-", "=1+1"]


@pytest.fixture
def invoices(registry: Registry) -> Any:
    group = registry.group("invoices")
    group.offsets.set_many({P0: 50, P1: 0})
    return group


@pytest.fixture
def odd(registry: Registry) -> dict[tuple[str, TopicPartition], int]:
    """Offsets of groups and topics with every kind of name that ZooKeeper allows."""
    found = {}
    for number, name in enumerate(ODD_NAMES):
        offsets = {TopicPartition(topic, number): number for topic in (name, "orders", ODD_NAMES[number - 1])}
        registry.group(name).offsets.set_many(offsets)
        found |= {(name, at): offset for at, offset in offsets.items()}
    return found


def everything(registry: Registry) -> dict[tuple[str, TopicPartition], int]:
    return {(each.group, each.at): each.offset for each in registry.offsets() if isinstance(each, CommittedOffset)}


@pytest.mark.parametrize(("form", "locale"), [("json", "C"), ("csv", "")])
def test_deleted_groups_are_restored_by_importing_their_export(
    zkgroups: Zkgroups, registry: Registry, odd: Any, tmp_path: Path, form: str, locale: str
) -> None:
    ascii_only = {"LC_ALL": locale, "PYTHONUTF8": "0"} if locale else {}
    assert everything(registry) == odd
    file = tmp_path / "offsets"
    exported = zkgroups("offsets", "export", "--groups", ".*", "--format", form, **ascii_only)
    assert (exported.code, exported.err) == (0, "")
    file.write_bytes(exported.out.encode())
    for name in ODD_NAMES:
        registry.group(name).delete()
    imported = zkgroups("offsets", "import", str(file), "--execute", **ascii_only)
    assert (imported.code, re.sub(r"\d+", "N", imported.err)) == (0, "Changed: N. Unchanged: N.\n")
    assert everything(registry) == odd


def test_an_export_can_be_read_by_spark_and_imported_again(
    zkgroups: Zkgroups, invoices: Any, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "startingOffsets"
    file.write_text(zkgroups("offsets", "export", "invoices", "--format", "spark").out)
    assert json.loads(file.read_text()) == {"orders": {"0": 50, "1": 0}}
    assert zkgroups("offsets", "import", str(file), "--execute").code == 2
    assert zkgroups("offsets", "import", str(file), "--group", "new", "--execute").code == 0
    assert {key: value for key, value in everything(registry).items() if key[0] == "new"} == {
        ("new", P0): 50,
        ("new", P1): 0,
    }
    several = zkgroups("offsets", "export", "invoices", "new", "--format", "spark")
    assert (several.code, several.out) == (2, "")
    some = zkgroups("offsets", "export", "new", "--groups", "inv.*", "--topic", "orders:1", "--format", "path")
    assert some.lines == ["/consumers/new/offsets/orders/1:0", "/consumers/invoices/offsets/orders/1:0"]


def test_an_import_only_moves_forward_and_reports_offsets_that_would_go_back(
    zkgroups: Zkgroups, invoices: Any, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "offsets"
    file.write_text("invoices,orders,0,49\ninvoices,orders,1,7\n")
    ended = zkgroups("offsets", "import", str(file), "--execute")
    assert ended.code == 9
    assert [line.split()[2:] for line in ended.lines] == [
        ["PARTITION", "OLD", "NEW", "DELTA", "NOTE"],
        ["0", "50", "49", "-1", "would", "go", "back"],
        ["1", "0", "7", "+7", "-"],
    ]
    assert ended.err == (
        "zkgroups: group 'invoices': 1 offset is left unchanged: would go back; --backward allows it\n"
        "Changed: 1. Unchanged: 1.\n"
    )
    assert everything(registry) == {("invoices", P0): 50, ("invoices", P1): 7}
    assert zkgroups("offsets", "import", str(file), "--execute", "--topic", "x").code == 2
    alone = zkgroups("offsets", "import", str(file))
    assert (alone.code, alone.err.count("would go back")) == (9, 1)
    assert zkgroups("offsets", "import", str(file), "--backward", "--execute").code == 0
    assert everything(registry) == {("invoices", P0): 49, ("invoices", P1): 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("invoices,orders,0,60\ninvoices,orders,1\n", "line 2"),
        ("invoices,orders,0,60\ninvoices,orders,0,61\n", "line 2: orders/0 already has an offset"),
        ('{"offsets": [\n', "line 2"),
        ("orders,0,60\n", "--group NAME"),
        ("invoices,a/b,0,60\n", "contains a slash"),
    ],
)
def test_nothing_of_an_invalid_file_is_imported(
    zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient, tmp_path: Path, text: str, said: str
) -> None:
    before, file = tree(kazoo, "/consumers"), tmp_path / "offsets"
    file.write_text(text)
    ended = zkgroups("offsets", "import", str(file), "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize(
    ("lines", "can_be_cut"),
    [
        ("invoices,orders,0,51", True),
        ("group,topic,partition,offset\ninvoices,orders,0,51", True),
        ("/consumers/invoices/offsets/orders/0:51", True),
        ('{"group": "invoices", "topic": "orders", "partition": 0, "offset": 51}', False),
    ],
)
def test_a_last_line_without_a_newline_is_imported_with_a_warning_if_it_can_have_been_cut(
    zkgroups: Zkgroups, invoices: Any, tmp_path: Path, lines: str, can_be_cut: bool
) -> None:
    file = tmp_path / "offsets"
    warning = (
        f"zkgroups: {file} ends without a newline, as if it was cut: check its last line, with offset 51 of orders/0"
    )
    for command in (("import",), ("reset", "invoices", "--from-file")):
        for end in ("", "\n"):
            file.write_text(f"{lines}{end}")
            ended = zkgroups("offsets", *command, str(file), "-o", "json")
            assert [change["new"] for change in ended.json["changes"]] == [51]
            assert (warning in ended.err) is (can_be_cut and not end)


def test_offsets_are_imported_from_a_pipe(zookeeper_hosts: str, registry: Registry) -> None:
    done = subprocess.run(
        [COMMAND, "offsets", "import", "--execute"],
        input=b"/consumers/new/offsets/orders/0:5\n",
        env=environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"Changed: 1. Unchanged: 0.\n")
    assert everything(registry) == {("new", P0): 5}


def moves(ended: Any) -> list[tuple[Any, ...]]:
    return [(f"{row['topic']}/{row['partition']}", row["old"], row["new"]) for row in ended.json["changes"]]


def test_offsets_come_from_kafkas_file_of_one_or_several_groups(
    zkgroups: Zkgroups, registry: Registry, invoices: Any, tmp_path: Path
) -> None:
    registry.group("a").offsets.set(P0, 1)
    invoices.offsets.set(TopicPartition("refunds", 0), 7)
    plan = tmp_path / "plan.csv"
    plan.write_text("invoices,orders,0,5\na,orders,0,6\ninvoices,refunds,0,8\n")

    def planned(*arguments: str) -> Any:
        return zkgroups("offsets", "reset", *arguments, "--from-file", str(plan), "-o", "json")

    assert moves(planned()) == [("orders/0", 50, 5), ("refunds/0", 7, 8), ("orders/0", 1, 6)]
    assert moves(planned("invoices")) == [("orders/0", 50, 5), ("refunds/0", 7, 8)]
    assert moves(planned("invoices", "--topic", "refunds")) == [("refunds/0", 7, 8)]
    assert planned("nobody").code == 2
    assert planned("--execute").code == 0
    assert everything(registry)["invoices", P0] == 5
    plan.write_text("orders,0,5\norders,2,6\n")
    assert moves(planned("a")) == [("orders/0", 6, 5), ("orders/2", None, 6)]
    assert (planned().code, planned("a", "invoices").code) == (2, 2), "it names no group"
    plan.write_text("invoices,orders,0,5\ninvoices,orders,1,-1\n")
    broken = planned("--execute")
    assert (broken.code, broken.out) == (2, "")
    assert broken.err.startswith(f"zkgroups: {plan}, line 2: ")
    assert everything(registry)["invoices", P1] == 0
