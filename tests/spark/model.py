"""A tree in ZooKeeper, and the expected rows, computed independently of zkgroups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from zkgroups.spark import Snapshot, Table
from zkgroups.storage.atomic_folder import ABANDONED_AFTER
from zkgroups.storage.files import timestamp_text

Row = dict[str, Any]

ALICE = ACL(Permissions.ALL, Id("digest", make_digest_acl_credential("alice", "sesame")))
SUBSCRIPTION = {"orders": 2, "refunds": 1}
REGISTRATION = json.dumps({"version": 1, "subscription": SUBSCRIPTION, "pattern": "static", "timestamp": "17"})
REGISTERED: Row = {"subscription": list(SUBSCRIPTION.items()), "pattern": "static", "dialect": "scala"}
REGISTERED |= dict.fromkeys(["client_id", "client_host"])

COLUMNS = {
    Table.OFFSETS: "group topic partition offset commit_count committed_at created_at zxid owner layout log_start "
    "log_end raw problem",
    Table.OWNERS: "group topic partition owner session claimed_at zxid raw problem",
    Table.MEMBERS: "group instance session registered_at subscription pattern dialect client_id client_host "
    "raw problem",
}
"""All columns except `cluster` and `read_at`."""


@dataclass
class Model:
    """The rows of each table. A problem is represented by the path that it must name."""

    rows: dict[Table, list[Row]] = field(default_factory=lambda: {table: [] for table in Table})
    groups: int = 0

    def add(self, table: Table, **known: Any) -> None:
        row = dict.fromkeys(COLUMNS[table].split()) | known
        self.rows[table].append(row | {"layout": "legacy"} if table is Table.OFFSETS else row)

    def counts(self) -> Row:
        """The counts that a snapshot must report."""
        wrong = [row for rows in self.rows.values() for row in rows if row["problem"]]
        denied = sum(row["raw"] is None for row in wrong)
        lengths = {str(table): len(rows) for table, rows in self.rows.items()}
        return {"groups": self.groups, **lengths, "problems": len(wrong), "forbidden": denied}


def plant(client: Any, groups: Sequence[str], *, topics: int = 2, partitions: int = 5) -> Model:
    """Create groups with offsets. Their instance `anna` owns the first partition of each topic."""
    model = Model(groups=len(groups))
    for group in groups:
        paths = {f"{part}/t{topic}": b"" for part in ("offsets", "owners") for topic in range(topics)}
        offsets = {f"offsets/t{topic}/{n}": b"%d" % (n * 7) for topic in range(topics) for n in range(partitions)}
        owners = {f"owners/t{topic}/0": b"anna" for topic in range(topics)}
        members = {"ids/anna": REGISTRATION.encode()}
        client.ensure_path(f"/consumers/{group}")
        parts = dict.fromkeys(("offsets", "owners", "ids"), b"")
        for nodes, ephemeral in ((parts | paths | offsets, False), (owners | members, True)):
            transaction = client.transaction()
            for path, data in nodes.items():
                transaction.create(f"/consumers/{group}/{path}", data, ephemeral=ephemeral)
            assert all(isinstance(made, str) for made in transaction.commit())
        _expect(model, client, group, offsets, owners, members)
    return model


def _expect(model: Model, client: Any, group: str, *nodes: dict[str, bytes]) -> None:
    paths = [path for some in nodes for path in some]
    asked = [client.exists_async(f"/consumers/{group}/{path}") for path in paths]
    for path, answer in zip(paths, asked, strict=True):
        part, *names = path.split("/")
        stat = answer.get(timeout=30)
        if part == "ids":
            known = {"instance": names[0], **held(stat, "registered_at"), **REGISTERED}
            model.add(Table.MEMBERS, group=group, **known)
            continue
        at = {"group": group, "topic": names[0], "partition": int(names[1])}
        if part == "owners":
            model.add(Table.OWNERS, **at, owner="anna", **held(stat, "claimed_at"), zxid=stat.czxid)
        else:
            owner = "anna" if names[1] == "0" else None
            model.add(Table.OFFSETS, **at, offset=int(names[1]) * 7, owner=owner, **written(stat))


def held(stat: Any, since: str) -> Row:
    return {"session": f"{stat.ephemeralOwner & (2**64 - 1):#x}", since: at_ms(stat.ctime)}


def written(stat: Any) -> Row:
    times = {"committed_at": at_ms(stat.mtime), "created_at": at_ms(stat.ctime)}
    return {"commit_count": stat.version, **times, "zxid": stat.mzxid}


def at_ms(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def spoil(model: Model, client: Any) -> None:
    """Add a group `odd` with one valid node. The others are malformed or forbidden."""
    root = "/consumers/odd"
    client.add_auth("digest", "alice:sesame")
    client.ensure_path(root)
    for path in ("offsets", "offsets/t", "owners", "owners/t"):
        client.create(f"{root}/{path}")
    client.create(f"{root}/offsets/hidden", acl=[ALICE])
    client.create(f"{root}/ids", acl=[ALICE])
    client.create(f"{root}/offsets/t/0", b"1")
    client.set(f"{root}/offsets/t/0", b"2")
    client.create(f"{root}/offsets/t/1", b"7.5")
    client.create(f"{root}/offsets/t/2", b"3", acl=[ALICE])
    client.create(f"{root}/owners/t/0", "ünï".encode(), ephemeral=True)
    client.create(f"{root}/owners/t/1", b"a/b", ephemeral=True)
    stats = {
        path: client.exists(f"{root}/{path}") for path in ("offsets/t/0", "offsets/t/1", "owners/t/0", "owners/t/1")
    }
    at: Row = {"group": "odd", "topic": "t"}
    model.groups += 1
    model.add(Table.OFFSETS, **at, partition=0, offset=2, owner="ünï", **written(stats["offsets/t/0"]))
    half: Row = {"raw": b"7.5", "problem": f"{root}/offsets/t/1"}
    model.add(Table.OFFSETS, **at, partition=1, **written(stats["offsets/t/1"]), **half)
    model.add(Table.OFFSETS, **at, partition=2, problem=f"{root}/offsets/t/2")
    model.add(Table.OFFSETS, group="odd", topic="hidden", problem=f"{root}/offsets/hidden")
    model.add(Table.MEMBERS, group="odd", problem=f"{root}/ids")
    for number, of in ((0, {"owner": "ünï"}), (1, {"raw": b"a/b", "problem": f"{root}/owners/t/1"})):
        stat = stats[f"owners/t/{number}"]
        model.add(Table.OWNERS, **at, partition=number, **held(stat, "claimed_at"), zxid=stat.czxid, **of)


# Written files

LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER - timedelta(hours=1))
NOT_SO_LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER + timedelta(hours=1))


def left(destination: Path) -> list[str]:
    """Return the folders that exist, and the contents of unfinished ones."""
    return sorted(str(path.relative_to(destination)) for path in destination.glob("*/*"))


def appeared(destination: Path, pattern: str) -> bool:
    """Return whether a matching file or folder exists. Retry while others are being deleted."""
    with suppress(FileNotFoundError):
        return next(destination.glob(pattern), None) is not None
    return False


def files(destination: Path, table: Table, name: str) -> list[Path]:
    return sorted((destination / f"table={table}" / f"snapshot={name}").glob("*.parquet"))


def parquet(destination: Path, table: Table, name: str) -> list[Row]:
    """Read the rows of a table from its files without Spark."""
    return [row for file in files(destination, table, name) for row in pq.ParquetFile(file).read().to_pylist()]


def assert_is(model: Model, destination: Path, name: str, tables: Iterable[Table] = Table) -> None:
    """Assert that these tables have exactly the expected rows."""
    for table in tables:
        found = list(parquet(destination, table, name))
        for row in found:
            del row["cluster"], row["read_at"]
        assert _in_order(map(_without_reason, found)) == _in_order(model.rows[table]), f"{table} of {name}"


def _without_reason(row: Row) -> Row:
    return row | {"problem": row["problem"] and row["problem"].partition(": ")[0]}


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: repr([row.get(name) for name in ("group", "topic", "partition", "instance")]))


def assert_complete(model: Model, destination: Path, snapshots: Iterable[Snapshot | str] = ()) -> list[str]:
    """Assert that every visible folder is complete, as a reader without zkgroups would see it. Return the names."""
    names = {}
    for table in Table:
        names[table] = sorted(path.name.removeprefix("snapshot=") for path in destination.glob(f"table={table}/*"))
        for name in names[table]:
            assert_is(model, destination, name, [table])
    assert set(names[Table.OFFSETS]) <= set(names[Table.OWNERS]) & set(names[Table.MEMBERS])
    return names[Table.OFFSETS]
