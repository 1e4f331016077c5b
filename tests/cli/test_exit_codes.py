"""Each exit code, as users see it, and the modules that a command imports before."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from zkgroups_cli.shared.options import ExitCode

from .conftest import Zkgroups
from .running import environment, run, run_installed

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


@pytest.mark.parametrize("module", ["click", "zkgroups_cli.groups.list", "kazoo.client"])
def test_ctrl_c_during_an_import_is_exit_code_130_without_a_traceback(module: str) -> None:
    code = f"""
import os, runpy, signal, sys

class PressCtrlC:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, PressCtrlC)
sys.argv = ["zkgroups", "groups", "list", "-z", "127.0.0.1:1"]
runpy.run_module("zkgroups_cli", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (130, "zkgroups: interrupted\n")


LEAN = """
import sys
from zkgroups_cli.main import run
for line in sys.argv[1:]:
    assert run(line.split()) in (0, 10), line
unused = {"pyspark", "pyarrow", "kafka", "confluent_kafka", "rich.progress", "zkgroups.testing"}
assert not unused & set(sys.modules), unused & set(sys.modules)
"""


def test_no_command_imports_spark_or_a_kafka_client_that_it_does_not_use(zookeeper_hosts: str, billing: Any) -> None:
    lines = (
        *("groups list -o wide", "groups describe billing", "members list", "owners list"),
        *("offsets get billing", "offsets export billing", "doctor"),
    )
    env = environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    done = subprocess.run([sys.executable, "-c", LEAN, *lines], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_help_needs_neither_kazoo_nor_rich_nor_pyspark() -> None:
    code = (
        "import sys; sys.argv = ['zkgroups', '--help']; from zkgroups_cli.main import main; assert main() == 0;"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert not {"kazoo", "rich", "pyspark", "zkgroups"} & set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("groups", "list", "-o", "json"), ("groups", "describe", "größe"), ("--hlep",)],
    ids=str,
)
def test_a_command_in_this_process_does_the_same_as_the_installed_one(
    zookeeper_hosts: str, billing: Any, arguments: tuple[str, ...]
) -> None:
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}
    assert run(*arguments, env=env) == run_installed(*arguments, env=env)


@pytest.mark.parametrize(
    "line", ["-o name groups list", "groups -o name list", "groups list -o name", "-o json groups list -o name"]
)
def test_a_global_option_may_be_before_or_after_the_command_and_overrides_the_environment(
    zkgroups: Zkgroups, billing: Any, line: str
) -> None:
    assert zkgroups(*line.split(), ZKGROUPS_OUTPUT="csv").out == "billing\n"
    assert zkgroups("groups", "list", ZKGROUPS_OUTPUT="name", ZKGROUPS_NO_HEADERS="true").out == "billing\n"


def test_a_short_session_timeout_causes_a_warning_of_one_line_unless_quiet(zkgroups: Zkgroups, cluster: None) -> None:
    said = zkgroups("groups", "list", "--session-timeout", "9").err.splitlines()
    assert said[0].startswith("zkgroups: a session timeout of 9 s")
    assert zkgroups("groups", "list", "--session-timeout", "9", "-q").err == ""
