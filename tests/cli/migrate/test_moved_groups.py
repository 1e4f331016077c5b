"""`zkgroups migrate status` without a plan. `tests/messages/test_moved_consumers.py` has groups that were moved."""

from __future__ import annotations

import json

import pytest

from zkgroups import Registry

from ..running import run

pytestmark = pytest.mark.zookeeper


def test_without_moved_groups_status_says_so(registry: Registry, zookeeper_hosts: str) -> None:
    registry.group("billing").create()
    shown = run("migrate", "status", "-z", zookeeper_hosts)
    assert (shown.code, shown.out, shown.err) == (0, "", "No group was moved with `migrate switch`.\n")
    shown = run("migrate", "status", "-z", zookeeper_hosts, "-o", "json")
    assert json.loads(shown.out)["groups"] == []
