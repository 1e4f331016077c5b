"""Run the guides: the commands and programs of a README or of a file in docs/, in order.

A ```console block shows commands (lines that begin with `$ `, continued by `> `) and their output (`...` stands for
anything). A ```python block is a program; a ```text block right below it shows its output. A guide uses the names
`zk1:2181`, `kafka1:9092` and `/data`; a test replaces them by its own servers and folder. Only the commands in
NOT_RUN do not run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition

from ..cli.running import Ended

ROOT = Path(__file__).parent.parent.parent
GENERATED = {"docs/cli.md", "docs/coordinator.md", "docs/rebalance.md"}
GUIDES = sorted(
    path
    for path in ("README.md", *(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")))
    if path not in GENERATED
)

ON_ZOOKEEPER = ("docs/consumers.md", "docs/layouts.md", "docs/operations.md", "docs/python.md", "docs/shell.md")
"""Guides that `tests/docs/test_guides.py` runs."""
ON_BROKERS = ("docs/moving.md",)
"""Guides that `tests/docs/test_moving.py` runs."""
ON_SPARK = ("README.md", "docs/history.md", "docs/migration.md", "docs/spark.md", "docs/tutorial.md")
"""Guides that `tests/spark/test_guides.py` runs, with brokers."""

NOT_RUN = re.compile(
    r"(?s)(git clone|cd|make|pip install|docker compose|source|python playground\.py|.*pytest\b|.*--master spark:).*"
)
"""Commands that run this test, have their own tests, install something, or need a cluster, a container engine or a
terminal."""
FOREGROUND = "zkgroups zookeeper"
OTHER_PACKAGES = re.compile(r"import duckdb|\"spark\.sql\.catalog\.")
"""In programs that need packages of other projects. `tests/spark/test_guides.py` runs them."""
ON_OWN_SERVERS = ("docs/history.md", "docs/tutorial.md")
"""Guides of `ON_SPARK` with tests of their own."""
WITH_SPARK = re.compile(r"zkgroups (snapshot|snapshots|audit|migrate)\b|zkgroups .* --(from|to)-(snapshot|audit)\b")

ZOOKEEPER = re.compile(r"zk1:2181(,zk2:2181)?/kafka")
FOLDER = re.compile(r"(?<![\w./])(file:)?/(?:data|tmp/tutorial)\b")
VARYING = re.compile(
    r"0x[0-9a-f]+|\d{4}-\d\d-\d\dT[0-9:.]+Z|\d{8}T\d{6}\.\d{3}Z(-[0-9a-f]{8})?|127\.0\.0\.1:\d+|"
    r"\b\d+\.\d\b(?= s; |  )|(?<=as )\S+:[0-9a-f-]{36}\b"
)
"""Sessions, times, names of snapshots and plans, ports, and durations, which differ in each run."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a guide."""

    guide: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block, with the output that is shown below it."""
        parts = re.split(r"^\$ (.*(?:\n> .*)*)\n?", self.text, flags=re.MULTILINE)
        return [(command.replace("\n> ", "\n"), shown) for command, shown in zip(parts[1::2], parts[2::2], strict=True)]

    @property
    def runs(self) -> bool:
        """True if a test runs some part of it."""
        some = any(not NOT_RUN.fullmatch(command) for command, _ in self.commands)
        return self.language == "python" or (self.language == "console" and some)

    @property
    def needs_other_packages(self) -> bool:
        return self.language == "python" and OTHER_PACKAGES.search(self.text) is not None

    def __str__(self) -> str:
        return f"{self.guide}:{self.line}"


def read(guide: str) -> str:
    """The text of a guide."""
    return (ROOT / guide).read_text()


def blocks(guide: str) -> list[Block]:
    """The fenced blocks of a guide."""
    text = read(guide)
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(guide, text.count("\n", 0, each.start()) + 1, each[1], each[2]) for each in found]


def programs(guide: str) -> list[str]:
    return [block.text for block in blocks(guide) if block.language == "python"]


def environment() -> dict[str, str]:
    """The environment of a user who has just installed zkgroups."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZKGROUPS_")}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}


@dataclass
class Runner:
    """Runs the blocks of one guide in `folder`, against real servers."""

    folder: Path
    zookeeper: str
    broker: str = "no-broker:9092"
    spark: Callable[..., Ended] | None = None
    """Runs a `zkgroups` command that needs Spark in this process, because starting another Spark takes too long."""
    skip: Callable[[Block], bool] = lambda _block: False
    env: dict[str, str] = field(default_factory=dict)

    def run(self, guide: str) -> None:
        """Run every block of a guide, one after the other."""
        self.env |= {"ZKGROUPS_CONFIG": str(self.folder / "contexts.ini")}
        found = blocks(guide)
        assert found, guide
        with contextlib.chdir(self.folder):
            for block, below in zip(found, [*found[1:], None], strict=True):
                if self.skip(block) or block.needs_other_packages:
                    continue
                if block.language == "console":
                    self._run_commands(block)
                elif block.language == "python":
                    self._run_program(block, below if below and below.language == "text" else None)

    def here(self, text: str) -> str:
        """Replace the addresses and the folder of the guide by those of this test."""
        text = ZOOKEEPER.sub(self.zookeeper, text).replace("kafka1:9092", self.broker)
        return re.sub(
            r"(?<![\w./])(file:)?/(data|tmp/tutorial)\b", lambda found: f"{found[1] or ''}{self.folder}", text
        )

    def _run_commands(self, block: Block) -> None:
        for command, shown in block.commands:
            if NOT_RUN.fullmatch(command):
                continue
            if exported := re.fullmatch(r"export (\w+)=(\S+)", command):
                self.env[exported[1]] = self.here(exported[2])
                continue
            code, printed = self._run_command(self.here(command))
            assert code == 0, f"{block}: {command} ended with {code}:\n{printed}"
            if shown.strip():
                assert_printed(self.here(shown), printed, f"{block}: {command}")

    def _run_command(self, command: str) -> tuple[int, str]:
        if self.spark is not None and WITH_SPARK.match(command):
            return self._run_with_spark(command)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=environment() | self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        return done.returncode, done.stdout

    def _run_with_spark(self, command: str) -> tuple[int, str]:
        """Also understands `|| echo "exit code $?"`, which shows that a command fails on purpose."""
        assert self.spark is not None
        command, _, fails = command.partition(" || ")
        ended = self.spark(*shlex.split(command)[1:], **self.env)
        printed = ended.err + ended.out
        return (0, f"{printed}exit code {ended.code}\n") if fails and ended.code else (ended.code, printed)

    def _run_program(self, block: Block, below: Block | None) -> None:
        program = self.here(block.text)
        if "pyspark" in program:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(program, str(block), "exec"), {"__name__": "__main__"})
            printed = out.getvalue()
        else:
            (self.folder / "program.py").write_text(program)
            done = subprocess.run(
                [sys.executable, "program.py"],
                env=environment() | self.env,
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.returncode == 0, f"{block}:\n{done.stderr}"
            printed = done.stdout
        if below is not None:
            assert_printed(self.here(below.text), printed, str(block))


def assert_printed(wanted: str, printed: str, where: str) -> None:
    """Compare without the values that differ in each run, and without the width of columns."""
    texts = [VARYING.sub("?", text) for text in (wanted, printed)]
    same = doctest.OutputChecker().check_output(*texts, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, f"{where} shows:\n{wanted}\nbut prints:\n{printed}"


@contextlib.contextmanager
def groups_shown(hosts: str, registry: Registry) -> Iterator[None]:
    """Create the groups of the guides: `billing` has two live members, and `invoices` has one offset."""
    with lasting_client(hosts) as client:
        client.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}', makepath=True)
    invoices, billing = registry.group("invoices"), registry.group("billing")
    invoices.create()
    invoices.offsets.set(TopicPartition("orders", 0), 1200)
    with billing.instance("anna") as anna, billing.instance("ben") as ben:
        anna.register(["orders"])
        ben.register(["orders"])
        for partition, offset in enumerate((1200, 900)):
            anna.claim(TopicPartition("orders", partition)).commit(offset)
        yield


def plant(hosts: str, nodes: Mapping[str, bytes]) -> None:
    """Create nodes like another client."""
    with lasting_client(hosts) as client:
        for path, data in nodes.items():
            client.create(path, data, makepath=True)
