"""The ten rules and lost replies, on a follower and on the leader of three servers.

The tests are those of one server. They run in a process of their own, whose server is the given one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.consumer.nemesis import ROOT
from tests.cutting import FOLLOWER, LEADER, victim
from zkgroups.testing import ZooKeeperEnsemble
from zkgroups.testing.server_choice import ZOOKEEPER_VARIABLE

pytestmark = pytest.mark.zookeeper

OFTEN = ("tests/zookeeper/test_rules.py",)
"""Part of every run of the tests."""
ALL = (
    *OFTEN,
    "tests/cli/test_exit_codes.py",
    "tests/cli/test_output.py",
    "tests/zookeeper/test_bulk_read.py",
    "tests/zookeeper/test_lost_replies.py",
    "tests/zookeeper/test_malformed.py",
    "tests/zookeeper/test_migration_marks.py",
    "tests/zookeeper/test_watch.py",
)
"""The files that `docs/guarantees.md` names for the ten rules and for lost replies, if their server need not be their
own."""


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


def assert_pass(files: tuple[str, ...], address: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *files]
    env = os.environ | {ZOOKEEPER_VARIABLE: address, "ZKGROUPS_REQUIRE": "zookeeper"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-8000:]


def test_the_rules_hold_on_a_follower(ensemble: ZooKeeperEnsemble) -> None:
    assert_pass(OFTEN, victim(ensemble, FOLLOWER).address)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("role", [FOLLOWER, LEADER])
def test_all_rules_hold_and_lost_replies_do_no_harm_on_each_server(ensemble: ZooKeeperEnsemble, role: str) -> None:
    assert_pass(ALL, victim(ensemble, role).address)
