"""Measure how long the command takes to start, including its imports.

    python -m benchmarks.startup [--rounds 20]

`zkgroups --help` is compared with a Python that only imports click, and `zkgroups groups list` with a kazoo script that
does the same: connect, list the groups, disconnect.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import in_turn, ratios, result, table
from benchmarks._processes import process
from zkgroups import Registry
from zkgroups.testing import ZooKeeperServer

GROUPS = 20
LIST = """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start()
print(*client.get_children("/consumers"), sep="\\n")
client.stop()
client.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    command = str(Path(sys.executable).with_name("zkgroups"))
    with ZooKeeperServer() as server:
        with Registry.connect(server.address) as registry:
            for number in range(GROUPS):
                registry.group(f"group-{number}").create()
        contenders = {
            "import click": process(sys.executable, "-c", "import click"),
            "zkgroups --help": process(command, "--help"),
            "kazoo": process(sys.executable, "-c", LIST, server.address),
            "zkgroups groups list": process(command, "-z", server.address, "groups", "list"),
        }
        medians = in_turn(contenders, rounds=rounds)
    table("a process", medians)
    help_ratios = ratios(medians["import click"], medians["zkgroups --help"])
    list_ratios = ratios(medians["kazoo"], medians["zkgroups groups list"])
    result(
        "startup",
        help_time_vs_import_click=help_ratios["seconds"],
        help_cpu_time_vs_import_click=help_ratios["CPU seconds"],
        list_time_vs_kazoo=list_ratios["seconds"],
        list_cpu_time_vs_kazoo=list_ratios["CPU seconds"],
    )


if __name__ == "__main__":
    main()
