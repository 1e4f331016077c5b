"""Session files, and processes that keep their session in one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zkgroups import Registry, SessionCredentials, TopicPartition

P0 = TopicPartition("orders", 0)


def kept(file: Path) -> Any:
    """The session in the file."""
    return json.loads(file.read_bytes())


def kept_session(file: Path) -> int | None:
    text = kept(file)["session"]
    return None if text is None else SessionCredentials.load(text).session_id


def claimed(registry: Registry) -> int | None:
    """Register and claim. Return the session of the claim."""
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    me.claim(P0)
    return registry.session_id


def holder(raw: Any) -> int:
    return int(raw.get("/consumers/billing/owners/orders/0")[1].ephemeralOwner)


HOLDER = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Registry, TopicPartition
registry = Registry.connect(sys.argv[1], session_file=sys.argv[2], session_timeout=20.0)
me = registry.group("billing").instance("me")
me.register(["orders"])
claim = me.claim(TopicPartition("orders", 0))
print(registry.session_id, flush=True)
"""
WAIT = "sys.stdin.read()\n"


@contextmanager
def process(code: str, hosts: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a claim, which is killed after the test."""
    with subprocess.Popen(
        [sys.executable, "-c", code, hosts, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()
