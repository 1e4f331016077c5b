"""The offsets of other systems in a server's files are those that the server returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from zkgroups import CommittedOffset, Registry, TopicPartition, UnreadableNode
from zkgroups.core.layouts.parse_layout import parse_layout
from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import NotFoundError
from zkgroups.testing import ZooKeeperServer
from zkgroups.zookeeper.reading.layout_reader import offsets_of
from zkgroups.zookeeper.reading.tree_walk import all_topics

from ..core.layouts.written import WRITERS, Tree, json_bytes, storm_of_one_topic
from ..lasting import lasting_client

pytestmark = pytest.mark.zookeeper

ORDERS = {TopicPartition("orders", number): 40 + number for number in (0, 2, 10)}
REFUNDS = {TopicPartition("refunds", 7): 1}
CHROOT = "/kafka"

LAYOUTS = (*WRITERS, "storm:/", "spark:/spark --stored until", "/app/{group}/{topic}-{partition} --value json:at")

Found = dict[str, list[CommittedOffset | UnreadableNode]]


@dataclass(frozen=True)
class Written:
    """A data directory, and the offsets that its server has returned, by chroot and layout."""

    folder: Path
    found: dict[tuple[str, str], Found]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Snapshots are written while nodes are created, changed and deleted, and transactions follow the last one."""
    folder = tmp_path_factory.mktemp("layouts") / "data"
    options = ("-Dzookeeper.snapCount=60", "-Dzookeeper.preAllocSize=64")
    with ZooKeeperServer(data_dir=folder, jvm_options=options) as server:
        with lasting_client(server.address) as client:
            for chroot in ("", CHROOT, f"{CHROOT}2"):
                for group, offsets in {"a": ORDERS, "b b": {**ORDERS, **REFUNDS}}.items():
                    trees = [write(group, offsets) for write in WRITERS.values()]
                    _put(client, chroot, {path: data for tree in trees for path, data in tree.items()})
                    _put(client, chroot, storm_of_one_topic(f"one-{group}", ORDERS))
            for chroot in ("", CHROOT):
                _put(
                    client,
                    chroot,
                    {path: data for write in WRITERS.values() for path, data in write("b b", REFUNDS).items()},
                )
                _put(
                    client, chroot, {"/transactional/a/coordinator/currtx": b"8", "/consumers/a/offset/orders/x": b"5"}
                )
                _put(client, chroot, {"/app/a/orders-10": json_bytes({"at": "none"}), "/spark/new": b"0:5"})
                client.delete(f"{chroot}/consumers/a/offsets/orders/2")
                client.delete(f"{chroot}/kafkastorm/a", recursive=True)
                for write in WRITERS.values():
                    _put(client, chroot, write("new", REFUNDS))
        found = {}
        for chroot in ("", CHROOT):
            with Registry.connect(server.address + chroot) as registry:
                for text in LAYOUTS:
                    groups = registry.groups(text)
                    found[chroot, text] = {name: list(registry.offsets([name], layout=text)) for name in groups}
        server.kill()
    return Written(folder, found)


def _put(client: object, chroot: str, tree: Tree) -> None:
    for path, data in tree.items():
        if client.exists(chroot + path):  # type: ignore[attr-defined]
            client.set(chroot + path, data)  # type: ignore[attr-defined]
        else:
            client.create(chroot + path, data, makepath=True)  # type: ignore[attr-defined]


def from_files(written: Written, chroot: str, text: str) -> Found:
    files, layout = DataDir(str(written.folder), chroot=chroot), parse_layout(text)
    nodes = files.layout_nodes(files.state(), layout)
    return {name: [each.found for each in offsets_of(layout, name, some, all_topics)] for name, some in nodes.items()}


@pytest.mark.parametrize("text", LAYOUTS)
@pytest.mark.parametrize("chroot", ["", CHROOT])
def test_files_have_the_offsets_that_the_server_returns(written: Written, chroot: str, text: str) -> None:
    expected = {name: some for name, some in written.found[chroot, text].items() if some}
    assert len(list((written.folder / "version-2").glob("snapshot.*"))) > 2
    assert expected
    assert {name: some for name, some in from_files(written, chroot, text).items() if some} == expected


def test_only_selected_groups_are_kept(written: Written) -> None:
    files, layout = DataDir(str(written.folder)), parse_layout("kafka-1.1.0")
    assert files.layout_nodes(files.state(), layout, lambda name: name == "new").keys() == {"new"}


def test_a_wrong_chroot_is_an_error(written: Written) -> None:
    files = DataDir(str(written.folder), chroot="/nowhere")
    with pytest.raises(NotFoundError, match="no nodes below the chroot /nowhere"):
        files.layout_nodes(files.state(), parse_layout("storm:/kafkastorm"))
