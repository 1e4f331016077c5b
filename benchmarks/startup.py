"""How soon the command is there: `zkgroups --help` against a Python that does nothing but import click.

    python -m benchmarks.startup [--rounds 20]

And a command that talks to ZooKeeper, against a Python that imports kazoo, connects and does the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import Times, in_turn, ratios, result, table
from zkgroups.testing import ZooKeeperServer

LIST = """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start()
print(*client.get_children("/"), sep="\\n")
client.stop()
client.close()
"""


def process(*command: str) -> Callable[[int], Times]:
    """A whole process, from start to end."""

    def run(_round: int) -> Times:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return {"seconds": time.perf_counter() - began}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    command = str(Path(sys.executable).with_name("zkgroups"))
    with ZooKeeperServer() as server:
        contenders = {
            "import click": process(sys.executable, "-c", "import click"),
            "zkgroups --help": process(command, "--help"),
            "kazoo": process(sys.executable, "-c", LIST, server.address),
            "zkgroups groups list": process(command, "-z", server.address, "groups", "list"),
        }
        medians = in_turn(contenders, rounds=rounds)
    table("a process", medians)
    result(
        "startup",
        help_time_vs_import_click=ratios(medians["import click"], medians["zkgroups --help"])["seconds"],
        list_time_vs_kazoo=ratios(medians["kazoo"], medians["zkgroups groups list"])["seconds"],
    )


if __name__ == "__main__":
    main()
