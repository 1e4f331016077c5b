"""`zkgroups groups describe --watch`: prints a group again whenever it changes, until Ctrl-C."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.testing import TcpProxy

from ..testing.waiting import eventually
from .running import Terminal, environment, run, started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
WATCH = ("groups", "describe", "billing", "--watch", "--interval", "0.1")
CLEAR = "\x1b[2J"


@pytest.fixture
def offsets(registry: Registry) -> Any:
    """A group with one offset."""
    found = registry.group("billing").offsets
    found.set(AT, 100)
    return found


@pytest.fixture
def address(zookeeper_hosts: str) -> dict[str, str]:
    return {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}


def documents(stream: Iterator[str]) -> Iterator[Any]:
    """The documents, one after the other, each when it is complete."""
    text = ""
    for line in stream:
        text += line
        if line == "}\n":
            yield json.loads(text)
            text = ""


def test_on_a_terminal_it_overwrites_the_last_description_and_ctrl_c_ends_it(
    offsets: Any, address: dict[str, str]
) -> None:
    with Terminal(*WATCH, env=address) as terminal:
        terminal.wait_for(" 100 ")
        offsets.set(AT, 200)
        terminal.wait_for(" 200 ")
        assert terminal.seen.count(CLEAR) == 2
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert ended.out.endswith("zkgroups: interrupted\n")
    assert "Traceback" not in ended.out


def test_in_a_pipe_it_writes_each_description_after_an_empty_line(offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH, env=address) as watch:
        assert watch.stdout is not None
        lines = iter(watch.stdout.readline, "")
        first = [next(lines) for _ in range(5)]
        offsets.set(AT, 200)
        second = [next(lines) for _ in range(6)]
        watch.send_signal(signal.SIGINT)
        assert (watch.wait(30), watch.stdout.read()) == (130, "")
    assert (first[0].split()[0], first[2], first[4].split()[2]) == ("GROUP", "\n", "100")
    assert (second[0], second[1], second[5].split()[2]) == ("\n", first[0], "200")


def test_json_is_one_document_for_each_change(offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH, "-o", "json", env=address) as watch:
        assert watch.stdout is not None
        found = documents(watch.stdout)
        assert next(found)["groups"][0]["partitions"][0]["offset"] == 100
        for offset in (200, 300):
            offsets.set(AT, offset)
            assert next(found)["groups"][0]["partitions"][0]["offset"] == offset
        watch.send_signal(signal.SIGTERM)
        assert (watch.wait(30), list(found)) == (143, [])


def test_nothing_is_written_while_nothing_changes(offsets: Any, zookeeper_hosts: str) -> None:
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy, started(*WATCH, "-z", f"{proxy.address}/{chroot}", "-o", "json") as watch:
        assert watch.stdout is not None
        found = documents(watch.stdout)
        next(found)
        looked = proxy.requests_by_type.total()
        # A read of the group takes less than ten.
        assert eventually(lambda: proxy.requests_by_type.total() > looked + 50)
        offsets.set(AT, 200)
        assert next(found)["groups"][0]["partitions"][0]["offset"] == 200


def test_it_ends_when_the_group_is_deleted(registry: Registry, offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH, "-o", "json", env=address) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        found = documents(watch.stdout)
        next(found)
        registry.group("billing").delete()
        assert watch.wait(30) == 3
        assert watch.stderr.read() == "zkgroups: group 'billing' does not exist: check the name and the address\n"


def test_a_closed_pipe_ends_it_at_once_even_if_nothing_changes(offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH[:-1], "3600", "-o", "jsonl", env=environment() | address) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(30) == 0


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
def test_an_invalid_interval_is_exit_code_2(seconds: str) -> None:
    ended = run("groups", "describe", "billing", "--watch", "--interval", seconds, "-z", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert "--interval" in ended.err


def test_a_closed_pipe_ends_it(offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH, "-o", "jsonl", env=environment() | address) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        watch.stdout.close()
        offsets.set(AT, 200)
        assert watch.wait(30) == 0
