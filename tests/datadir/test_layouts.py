"""The rows of other systems in a server's files are those that the server returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zkgroups import TopicPartition
from zkgroups.core.layouts.template import parse_layout
from zkgroups.core.selection import Selection
from zkgroups.core.table_columns import Table
from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import NotFoundError
from zkgroups.tables import data_dir_reader, table_reader
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import ZooKeeperServer

from ..core.layouts.written import WRITERS, Tree, json_bytes, storm_of_one_topic
from ..lasting import lasting_client

pytestmark = pytest.mark.zookeeper

ORDERS = {TopicPartition("orders", number): 40 + number for number in (0, 2, 10)}
REFUNDS = {TopicPartition("refunds", 7): 1}
MEMBER = b'{"version":1,"subscription":{"orders":1},"pattern":"static"}'
CHROOT = "/kafka"

LAYOUTS = (*WRITERS, "storm:/", "spark:/spark --stored until", "/app/{group}/{topic}-{partition} --value json:at")

Rows = list[dict[str, Any]]


def rows_of(table: Table, layout: str, **place: Any) -> Rows:
    source = SourceOptions(cluster="it", layout=layout, table=table, **place)
    if source.data_dir is None:
        batches = table_reader.read_batches(source, Selection())
    else:
        state = DataDir(source.data_dir, chroot=source.chroot or "").state()
        batches = data_dir_reader.read_batches(source, Selection(), state)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(({name: row[name] for name in row if name != "read_at"} for row in rows), key=repr)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str, Table], Rows]]:
    """A data directory, and the rows that its server has returned, by chroot, layout and table.

    Snapshots are written while nodes are created, changed and deleted, and transactions follow the last one.
    """
    folder = tmp_path_factory.mktemp("layouts") / "data"
    options = ("-Dzookeeper.snapCount=60", "-Dzookeeper.preAllocSize=64")
    with ZooKeeperServer(data_dir=folder, jvm_options=options) as server:
        with lasting_client(server.address) as client:
            for chroot in ("", CHROOT, f"{CHROOT}2"):
                for group, offsets in {"a": ORDERS, "b b": {**ORDERS, **REFUNDS}}.items():
                    _put_all(client, chroot, group, offsets)
                    _put(client, chroot, storm_of_one_topic(f"one-{group}", ORDERS))
                _put(client, chroot, {"/consumers/a/ids/anna": MEMBER, "/consumers/a/owners/orders/0": b"anna-0"})
            for chroot in ("", CHROOT):
                _put_all(client, chroot, "b b", REFUNDS)
                last = {"/transactional/a/coordinator/currtx": b"8", "/consumers/a/offset/orders/x": b"5"}
                last |= {"/app/a/orders-10": json_bytes({"at": "none"}), "/spark/new": b"0:5"}
                _put(client, chroot, last)
                client.delete(f"{chroot}/consumers/a/offsets/orders/2")
                client.delete(f"{chroot}/kafkastorm/a", recursive=True)
                _put_all(client, chroot, "new", REFUNDS)
        found = {
            (chroot, layout, table): rows_of(table, layout, zookeeper=server.address + chroot)
            for chroot in ("", CHROOT)
            for layout in LAYOUTS
            for table in Table
        }
        server.kill()
    return folder, found


def _put_all(client: Any, chroot: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    for write in WRITERS.values():
        _put(client, chroot, write(group, offsets))


def _put(client: Any, chroot: str, tree: Tree) -> None:
    for path, data in tree.items():
        if client.exists(chroot + path):
            client.set(chroot + path, data)
        else:
            client.create(chroot + path, data, makepath=True)


def test_files_have_the_rows_that_the_server_returns(written: tuple[Path, dict[tuple[str, str, Table], Rows]]) -> None:
    folder, found = written
    assert len(list((folder / "version-2").glob("snapshot.*"))) > 2
    for (chroot, layout, table), expected in found.items():
        assert rows_of(table, layout, data_dir=str(folder), chroot=chroot) == expected, (chroot, layout, table)
        assert expected or table is not Table.OFFSETS


def test_only_selected_groups_are_kept_and_a_wrong_chroot_is_an_error(
    written: tuple[Path, dict[tuple[str, str, Table], Rows]],
) -> None:
    files, layout = DataDir(str(written[0])), parse_layout("kafka-1.1.0")
    assert files.layout_nodes(files.state(), layout, lambda name: name == "new").keys() == {"new"}
    files = DataDir(str(written[0]), chroot="/nowhere")
    with pytest.raises(NotFoundError, match="no nodes below the chroot /nowhere"):
        files.layout_nodes(files.state(), parse_layout("storm:/kafkastorm"))
