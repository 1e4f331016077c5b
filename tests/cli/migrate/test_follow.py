"""`zkgroups migrate follow`: it ends with the last member, or by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from zkgroups import Registry, TopicPartition
from zkgroups.kafka import Brokers

from ..kept_spark import Kept
from .moving import Migrate, native


def test_following_ends_when_the_last_member_has_left(
    migrate: Migrate, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    name, at = f"followed-{uuid4().hex[:8]}", TopicPartition(topic, 0)
    with registry.group(name).instance("anna") as anna, ThreadPoolExecutor() as pool:
        anna.register([topic])
        claim = anna.claim(at)
        claim.commit(3)
        assert migrate("plan", tmp_path / "plan").code == 4
        looked = migrate("follow", tmp_path / "plan", "-o", "json")
        assert (looked.code, native(brokers, name)) == (0, {})
        assert looked.json["groups"][0]["state"] == "following"

        following = pool.submit(migrate, "follow", tmp_path / "plan", "--every", "0.1", "--execute", "-o", "json")
        for offset in (3, 7):
            claim.commit(offset)
            wait_for(following, lambda offset=offset: native(brokers, name) == {0: offset})
        claim.commit(9)
        anna.deregister()
        done = following.result(60)
    assert done.code == 0, done.err
    assert [(row["state"], row["behind"]) for row in done.json["groups"]] == [("done", 0)]
    assert f"{name}: following: all members have left" in done.err
    assert f"{name}: done" in done.err
    assert native(brokers, name) == {0: 9}


def test_ctrl_c_ends_following_and_keeps_the_written_offsets(
    migrate: Migrate, kept: Kept, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    name = f"left-{uuid4().hex[:8]}"
    with registry.group(name).instance("anna") as anna, ThreadPoolExecutor() as pool:
        anna.register([topic])
        anna.claim(TopicPartition(topic, 0)).commit(3)
        assert migrate("plan", tmp_path / "plan").code == 4
        following = pool.submit(migrate, "follow", tmp_path / "plan", "--every", "100", "--execute")
        wait_for(following, lambda: native(brokers, name) == {0: 3})
        kept.signal(signal.SIGINT)
        ended = following.result(30)
    assert ended.code == 130
    assert ended.lines[1].split()[:3] == [name, name, "following"]


def wait_for(running: Any, holds: Callable[[], bool]) -> None:
    while not holds():
        assert not running.done(), running.result()
