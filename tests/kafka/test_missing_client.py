"""Without kafka-python, or with another package of its name, users are told what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from zkgroups.exceptions import MissingDependencyError
from zkgroups.kafka import Brokers
try:
    Brokers.connect("127.0.0.1:1")
except MissingDependencyError as error:
    print(error)
"""
OTHERS = {
    "missing": {"__init__.py": "raise ModuleNotFoundError(\"No module named 'kafka'\", name='kafka')"},
    "for an old Python": {"__init__.py": "def send(async): pass"},
    "with other modules": {
        "__init__.py": "",
        "protocol/__init__.py": "",
        "protocol/metadata.py": "MetadataRequest = []",
    },
    "a module": {"../kafka.py": ""},
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS.keys())
def test_another_package_named_kafka_is_not_mistaken_for_the_client(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / "kafka" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == (
        "this needs kafka-python 3.0.5 or newer, and no other package with a module named kafka: "
        "pip install 'zkgroups[kafka]'\n"
    )
