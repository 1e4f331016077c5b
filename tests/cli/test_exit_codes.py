"""Each exit code, as users see it, and the modules that a command imports before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from zkgroups_cli.shared.exit_codes import ExitCode

from zkgroups import TopicPartition

from .conftest import Zkgroups
from .running import Terminal, environment, started

pytestmark = pytest.mark.zookeeper

NOWHERE = ("-z", "127.0.0.1:1", "--timeout", "0.3")

MET: dict[ExitCode, tuple[str, ...]] = {
    ExitCode.DONE: ("groups", "describe", "billing"),
    ExitCode.USAGE: ("groups", "describe", "a/b"),
    ExitCode.NOT_FOUND: ("groups", "describe", "nobody"),
    ExitCode.REFUSED: ("groups", "delete", "billing"),
    ExitCode.CONFLICT: ("claim", "billing", "orders", "0"),
    ExitCode.AUTH: ("groups", "describe", "secret"),
    ExitCode.UNAVAILABLE: ("groups", "list", *NOWHERE),
    ExitCode.TIMED_OUT: ("claim", "billing", "orders", "0", "--wait", "0.2"),
    ExitCode.PARTIAL: ("groups", "describe", "billing", "nobody"),
    ExitCode.FINDINGS: ("doctor", "billing"),
}


@pytest.mark.parametrize("code", MET, ids=lambda code: code.name.lower())
def test_each_exit_code_occurs(zkgroups: Zkgroups, billing: Any, secret: str, code: ExitCode) -> None:
    ended = zkgroups(*MET[code])
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err


def test_an_unexpected_error_is_exit_code_1_and_a_sentence(zookeeper_hosts: str) -> None:
    code = (
        "import sys, zkgroups_cli.groups.list as groups; from zkgroups_cli.main import main;"
        "groups.connected = lambda *_, **__: 1 / 0; sys.argv = ['zkgroups', 'groups', 'list']; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "zkgroups: unexpected ZeroDivisionError: division by zero (-vv shows the traceback)\n"


def test_ctrl_c_releases_the_claim_and_is_exit_code_130(zookeeper_hosts: str, billing: Any) -> None:
    with Terminal("claim", "billing", "orders", "1", "--force", "-z", zookeeper_hosts) as terminal:
        terminal.wait_for("orders")
        while billing.owner(TopicPartition("orders", 1)) is None:
            pass
        terminal.type("\x03")
        assert terminal.end().code == 130
    assert billing.owner(TopicPartition("orders", 1)) is None


def test_sigterm_releases_the_claim_and_is_exit_code_143(zookeeper_hosts: str, billing: Any) -> None:
    with started("claim", "billing", "orders", "1", "--force", "-z", zookeeper_hosts) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert billing.owner(TopicPartition("orders", 1)) is None


LEAN: dict[str, tuple[str, ...]] = {
    "groups list": ("groups", "list", "-o", "wide"),
    "groups describe": ("groups", "describe", "billing"),
    "members list": ("members", "list"),
    "owners list": ("owners", "list"),
    "offsets get": ("offsets", "get", "billing"),
    "offsets export": ("offsets", "export", "billing"),
    "doctor": ("doctor",),
}


@pytest.mark.parametrize("arguments", LEAN.values(), ids=LEAN.keys())
def test_no_command_imports_spark_or_a_kafka_client_that_it_does_not_use(
    zookeeper_hosts: str, billing: Any, arguments: tuple[str, ...]
) -> None:
    code = (
        "import json, sys; from zkgroups_cli.main import run; code = run(sys.argv[1:]);"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "-z", zookeeper_hosts],
        capture_output=True,
        text=True,
        env=environment(),
    )
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not {"pyspark", "pyarrow", "kafka", "confluent_kafka", "rich.progress", "zkgroups.testing"} & modules
