"""Failure 7 in the shell: the wall clock is set while a command runs under a claim."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.testing import TcpProxy

from .holding import SESSION, holding, same_chroot

pytestmark = pytest.mark.zookeeper

HOURS = 6 * 3600.0

STEPPED = """
import datetime, sys, time
from pathlib import Path
offset, wall, wall_ns = Path(sys.argv.pop(1)), time.time, time.time_ns
time.time = lambda: wall() + float(offset.read_text())
time.time_ns = lambda: wall_ns() + int(float(offset.read_text()) * 1e9)

class Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Stepped
from zkgroups_cli.main import main
sys.exit(main())
"""
"""Runs the command with a wall clock that is as many seconds ahead as a file says. Its child has the real clock."""


def test_failure_7_setting_the_wall_clock_neither_ends_nor_prolongs_a_claim(
    zookeeper: Any, zookeeper_hosts: str, kazoo: KazooClient, registry: Registry, tmp_path: Path
) -> None:
    registry.group("invoices").create()
    offset = tmp_path / "offset"

    def step(seconds: float) -> None:
        offset.with_suffix(".new").write_text(str(seconds))
        offset.with_suffix(".new").rename(offset)

    step(0.0)
    program = (sys.executable, "-c", STEPPED, str(offset))
    with (
        TcpProxy(zookeeper.address) as proxy,
        holding(
            kazoo, zookeeper_hosts, tmp_path, through=same_chroot(proxy, zookeeper_hosts), program=program
        ) as holder,
    ):
        for seconds in (HOURS, -HOURS, 0.0, -HOURS):
            stepped, proofs = time.time(), proxy.replies
            step(seconds)
            assert eventually(lambda stepped=stepped: holder.ran(stepped, time.time()) > SESSION / 10)
            assert eventually(lambda proofs=proofs: proxy.replies > proofs + 2)
            assert not holder.has_been_asked, f"it was stopped after a step by {seconds} s"
        proxy.drop()
        begun = holder.next_claims()
        assert begun.code == 0
        assert holder.last_beat() < min(holder.wait_gone(), float(begun.out))
        assert holder.ended().code == 7
