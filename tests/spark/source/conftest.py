"""Fixtures: tables read through a proxy, and trees to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups.testing import TcpProxy, fresh_chroot

from ..conftest import plant
from .rows import OPERATORS, SCALA, SECRET


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def huge(zookeeper: Any) -> Iterator[str]:
    """A group with thousands of partitions in large and small topics, another group, and their owners."""
    with fresh_chroot(zookeeper) as hosts:
        with lasting_client(hosts) as client:
            large = {f"huge/offsets/large-{t}/{n}": b"%d" % n for t in range(3) for n in range(3_000)}
            small = {f"huge/offsets/small-{t:02}/{n}": b"%d" % n for t in range(40) for n in range(10)}
            other = {f"other/offsets/large-0/{n}": b"%d" % n for n in range(3_000)}
            plant(client, large | small | other)
        yield hosts


@pytest.fixture
def some(raw: Any) -> None:
    """Three groups with three topics, one with forbidden topics, and members."""
    groups, topics = ("alpha", "beta", "gamma"), ("orders", "refunds", "tax")
    plant(raw, {f"{g}/offsets/{t}/{n}": b"%d" % n for g in groups for t in topics for n in range(5)})
    plant(raw, {f"{g}/owners/{t}/{n}": b"anna" for g in groups for t in topics for n in range(5)}, ephemeral=True)
    plant(raw, {f"{g}/ids/{m}": SCALA for g in groups for m in ("anna", "ben")}, ephemeral=True)
    plant(raw, {"hidden/offsets/orders/0": b"7", "hidden/owners/orders/0": b"7", "alpha/offsets/orders/x": b"7"})
    for part in ("offsets", "owners"):
        raw.set_acls(f"/consumers/hidden/{part}", [OPERATORS])


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    return str(file)
