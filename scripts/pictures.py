"""Draw the output of commands on a terminal, for the README and the guides: `make docs`.

    python scripts/pictures.py [NAME ...]

Each picture is the real output of a real command on a real server, as SVG, readable on a light and a dark page.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from zkgroups import Registry, TopicPartition
from zkgroups.spark import take_snapshot
from zkgroups.spark.session import own_session
from zkgroups.testing import ZooKeeperServer

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
COLUMNS: Final = 132

PICTURES: Final = {
    "describe": "zkgroups groups describe billing",
    "doctor": "zkgroups doctor",
    "demo": "zkgroups demo",
    "diff": "zkgroups snapshots diff {history}",
}
PLOT: Final = "plot"
"""The picture that `zkgroups snapshots plot` draws."""

SNAPSHOTS: Final = 30
SHOWN_FOLDER: Final = "/data/groups"
"""The folder that the pictures show instead of the temporary one."""

GONE: Final = re.compile(r"[^\n]*\n(?:\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K")
"""A line of output that was overwritten by the next one."""

# Without rich's own web font: a picture must not load anything.
SVG: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


@contextmanager
def scene() -> Iterator[str]:
    """Start a server with a healthy group and some with problems. Return its address."""
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        kazoo = KazooClient(server.address)
        kazoo.start()
        stack.callback(kazoo.stop)
        for topic, partitions in {"orders": 4, "payments": 2}.items():
            listed = ",".join(f'"{number}":[1]' for number in range(partitions))
            kazoo.create(
                f"/brokers/topics/{topic}", f'{{"version":1,"partitions":{{{listed}}}}}'.encode(), makepath=True
            )
        registry = stack.enter_context(Registry.connect(server.address))
        billing = registry.group("billing")
        for name, partitions in {"anna": (0, 1), "ben": (2,)}.items():
            instance = stack.enter_context(billing.instance(name))
            instance.register(["orders"])
            held = [TopicPartition("orders", number) for number in partitions]
            instance.claim_many(held).commit({at: 1200 + 7 * at.partition for at in held})
        _add_problems(kazoo)
        yield server.address


def _add_problems(kazoo: KazooClient) -> None:
    kazoo.create("/consumers/audit/ids/old-1", b"payments", makepath=True)
    kazoo.create("/consumers/audit/offsets/payments/0", b"1 000", makepath=True)
    kazoo.create("/consumers/audit/offsets/refunds/0", b"17", makepath=True)
    kazoo.create("/consumers/billing/owners/orders/3", b"carl", makepath=True, ephemeral=True)
    kazoo.ensure_path("/consumers/litter/ids")


def write_history(folder: Path) -> str:
    """Take snapshots of groups: one group stalls, another is recreated. Return the address of the server."""
    paces = {"billing": (7, 11, 5), "invoices": (9, 4), "reports": (3,)}
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry, own_session() as spark:
        for group in paces:
            registry.group(group).create()
        for number in range(SNAPSHOTS):
            for group, its in paces.items():
                reached = min(number, SNAPSHOTS // 2) if group == "invoices" else number
                offsets = {TopicPartition("orders", at): 1000 + pace * reached for at, pace in enumerate(its)}
                registry.group(group).offsets.set_many(offsets)
            if number == SNAPSHOTS - 1:
                registry.group("reports").offsets.reset({TopicPartition("orders", 0): 1000})
            take_snapshot(spark, str(folder), server.address)
        return server.address


def zkgroups(command: str) -> list[str]:
    """Return the arguments to run a command."""
    return [str(Path(sys.executable).with_name("zkgroups")), *shlex.split(command)[1:]]


def shown(command: str, hosts: str) -> str:
    """Return the output of a command on a terminal."""
    screen, keyboard = pty.openpty()
    termios.tcsetwinsize(keyboard, (60, COLUMNS))
    env = {**os.environ, "TERM": "xterm-256color", "ZKGROUPS_ZOOKEEPER": hosts, "ZKGROUPS_CONFIG": os.devnull}
    with subprocess.Popen(zkgroups(command), env=env, stdin=keyboard, stdout=keyboard, stderr=keyboard):
        os.close(keyboard)
        said = b"".join(iter(lambda: _read(screen), b""))
    os.close(screen)
    return said.decode().replace("\r\n", "\n")


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # nobody has the terminal open any more
        return b""


def draw(name: str, command: str, said: str) -> None:
    """Write the picture, without the progress bars that the command has erased."""
    lines = [line.rpartition("\x1b[2K")[2] for line in GONE.sub("", said).split("\n")]
    text = Text.from_ansi("\n".join([f"$ {command}", *lines]).rstrip())
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(text)
    svg = console.export_svg(title="", theme=MONOKAI, code_format=SVG, unique_id=name)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(re.sub(r"[ \t]+\n", "\n", svg))


def main() -> None:
    wanted = sys.argv[1:] or [*PICTURES, PLOT]
    with scene() as hosts, tempfile.TemporaryDirectory() as folder:
        history, server = Path(folder, "groups"), hosts
        if {"diff", PLOT} & set(wanted):
            server = write_history(history)
        for name in wanted:
            if name == PLOT:
                command = f"zkgroups snapshots plot {history} invoices {FOLDER / 'plot.svg'}"
                subprocess.run(zkgroups(command), check=True)
            else:
                said = shown(PICTURES[name].format(history=history), hosts)
                said = said.replace(str(history), SHOWN_FOLDER).replace(server, "zk1:2181")
                draw(name, PICTURES[name].format(history=SHOWN_FOLDER), said)


if __name__ == "__main__":
    main()
