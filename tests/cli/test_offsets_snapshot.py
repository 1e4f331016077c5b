"""Offsets of snapshots and audits in the shell: errors before Spark starts, and the examples.

The tests with a running Spark are in tests/spark/test_restore.py and test_plot.py.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from zkgroups_cli.main import root

from zkgroups import Registry, TopicPartition

from .conftest import Zkgroups
from .running import run
from .test_help import OF_SNAPSHOTS, Shell, examples

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}

USAGE = [
    (("export", "--from-snapshot", "d"), "no group is chosen"),
    (("export", "g", "--at", "latest"), "--at needs --from-snapshot DEST"),
    (("export", "g", "--cluster", "blue"), "--cluster needs --from-snapshot DEST"),
    (("import", "--master", "local"), "--master needs --from-snapshot DEST"),
    (("import", "--conf", "a=b"), "--conf needs --from-snapshot DEST"),
    (("import", "file", "--from-snapshot", "d"), "cannot be combined with FILE or --format"),
    (("import", "--format", "csv", "--from-snapshot", "d"), "cannot be combined with FILE or --format"),
    (("import", "--topic", "t"), "--groups and --topic need --from-snapshot"),
    (("import", "--group", "a", "--group", "b"), "a file without groups belongs to one group"),
    (("import", "--from-snapshot", "d", "--group", "a/b"), "contains a slash"),
    (("reset", "g", "--to-snapshot", "d"), "choose the topics"),
    (("reset", "--all-topics", "--to-snapshot", "d"), "no group is chosen"),
    (("reset", "g", "--all-topics", "--to-snapshot", "d", "--to-latest"), "give exactly one target: --"),
    (("reset", "g", "--all-topics", "--to-latest", "--at", "latest"), "--at needs --to-snapshot DEST"),
    (("reset", "g", "--all-topics", "--to-latest", "--from-audit", "d"), "--from-audit needs --to-datetime TIME or"),
    (("reset", "g", "--all-topics", "--to-snapshot", "d", "--from-audit", "d"), "--from-audit needs"),
    (
        ("reset", "g", "--all-topics", "--by-duration", "PT1H", "--from-audit", "d", "--at", "latest"),
        "--at needs --to-snapshot DEST",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_an_ambiguous_command_line_is_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    ended = run("offsets", *arguments, "-z", "127.0.0.1:1", env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


@pytest.mark.parametrize(
    "arguments",
    [("import", "--from-snapshot", "d"), ("reset", "g", "--all-topics", "--to-snapshot", "d")],
    ids=["import", "reset"],
)
def test_without_an_address_nothing_is_restored_and_spark_is_not_started(arguments: tuple[str, ...]) -> None:
    ended = run("offsets", *arguments, "-z", "127.0.0.1:1", "--timeout", "0.5", env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (7, "")
    assert ended.err.startswith("zkgroups: could not connect to 127.0.0.1:1 within 0.5 s: ")


@pytest.mark.zookeeper
def test_read_only_is_refused_before_spark_starts(zkgroups: Zkgroups) -> None:
    ended = zkgroups("offsets", "import", "--from-snapshot", "d", "--execute", "--read-only", **WITHOUT_JAVA)
    assert (ended.code, ended.err) == (
        4,
        "zkgroups: this command writes, but --read-only was given: leave it out to write\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("offsets", "export", "g", "--from-snapshot", "d"),
        ("snapshots", "plot", "d", "g", "out.svg"),
    ],
    ids=["export", "plot"],
)
def test_without_spark_the_error_names_the_package_to_install(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    ended = run(*arguments, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "zkgroups: this needs Spark: pip install 'zkgroups[spark]'\n"


def test_without_matplotlib_the_error_names_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('No module', name='matplotlib')")
    ended = run("snapshots", "plot", "d", "g", "out.svg", env={"PYTHONPATH": str(tmp_path)} | WITHOUT_JAVA)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "zkgroups: a plot needs matplotlib: pip install 'zkgroups[plot]'\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("g", "out.pdf"), "out.pdf must end in .svg or .png"),
        (("g", "nowhere/out.svg"), "the folder nowhere does not exist"),
        (("a/b", "out.svg"), "contains a slash"),
        (("g", "out.svg", "--since", "yesterday"), "the time is 'yesterday'"),
        (("g", "out.svg", "--by", "group"), "--by"),
    ],
    ids=lambda each: str(each[-1]),
)
def test_an_impossible_plot_is_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    ended = run("snapshots", "plot", "d", *arguments, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("offsets", "export", "g", "--from-snapshot", "d", "--at", "yesterday"),
        ("offsets", "reset", "g", "--all-topics", "--to-snapshot", "d", "--at", "yesterday"),
        ("snapshots", "verify", "d", "--at", "yesterday"),
        ("snapshots", "diff", "d", "yesterday"),
        ("snapshots", "diff", "d", "previous", "yesterday"),
    ],
    ids=lambda each: " ".join(each[:2]),
)
def test_an_invalid_moment_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, "-z", "127.0.0.1:1", env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert (
        "'yesterday' is neither latest, previous, the name of a snapshot, nor a time such as 2026-01-31T12:00"
        in ended.err
    )


@pytest.mark.soak
@pytest.mark.zookeeper
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_examples_work(zookeeper_hosts: str, registry: Registry, tmp_path: Path) -> None:
    """The `--help` examples that read snapshots or an audit. Each starts Spark."""
    for group in ("billing", "invoices"):
        registry.group(group).offsets.set(TopicPartition("orders", 0), 5)
    shell = Shell(zookeeper_hosts, "", tmp_path)
    between = datetime.now(UTC)
    for line in ("snapshot /data/groups", "snapshot /data/groups", "audit /data/audit --once"):
        shell.run(f"zkgroups {line}".replace("/data", str(tmp_path)))
        between = between if "audit" in line else datetime.now(UTC)
    lines = [line for _, some in examples(root, everything=True) for line in some]
    ours = re.compile(f" offsets .*({OF_SNAPSHOTS.pattern})| snapshots (list|plot|verify) ")
    lines = [line for line in lines if ours.search(line)]
    assert len(lines) >= 6
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    for line in lines:
        at = now if "--at" in line else "2026-01-31T22:00:00"
        ago = f"PT{round((datetime.now(UTC) - between).total_seconds())}S"  # the offsets exist, and it read them later
        shell.run(re.sub("2026-01-31T[0-9:]*", at, line).replace("/data", str(tmp_path)).replace("PT2H", ago))
    assert {"billing.svg", "night.png"} <= {file.name for file in tmp_path.iterdir()}
