"""The command: it refuses to be open by accident, ends with a sentence, and knows the past from a folder."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import trustme

from zkgroups import Registry, TopicPartition
from zkgroups.core.health.verdicts import Status
from zkgroups.serve.picture.build_group import Rules
from zkgroups.serve.sweep.cluster_state import ClusterState
from zkgroups.serve.sweep.prime import prime
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.testing.ports import reserve

from ..cli.running import COMMAND, environment, run
from .conftest import Sweep
from .test_sweeps import until_group

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)


@contextmanager
def served(hosts: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command, and yield its address and its process."""
    port = reserve()
    command = [COMMAND, "-z", hosts, "serve", "--listen", f"127.0.0.1:{port.number}", *options]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()
            process.wait(30)
            port.release()


def body(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture
def billing(registry: Registry) -> None:
    registry.group("billing").offsets.set(P0, 5)


@pytest.mark.parametrize(
    "options",
    [("--listen", "0.0.0.0:9308"), ("--listen", "[::]:9308"), ("--listen", "zk1.example:9308")],
)
def test_an_address_of_a_network_needs_a_login(zookeeper_hosts: str, billing: None, options: tuple[str, ...]) -> None:
    refused = run("-z", zookeeper_hosts, "serve", *options)
    assert refused.code == 4
    assert "everybody who can reach" in refused.err
    assert "--users-file" in refused.err


def test_with_users_only_they_see_the_groups(zookeeper_hosts: str, billing: None, tmp_path: Path) -> None:
    users, token = tmp_path / "users", tmp_path / "token"
    users.write_text("# on call\nanna:s:ecret\n\n")
    token.write_text("t0ken\n")
    with served(zookeeper_hosts, "--users-file", str(users), "--token-file", str(token)) as (url, process):
        assert body(f"{url}/healthz") == "ok\n"
        with pytest.raises(OSError, match="401"):
            body(f"{url}/metrics")
        assert "zkgroups_up" in body(f"{url}/metrics", Authorization="Bearer t0ken")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


@pytest.mark.parametrize(
    ("content", "said"), [("anna", "line 1 is not NAME:PASSWORD"), ("# nobody\n", "it has no users"), (":x", "line 1")]
)
def test_a_users_file_must_have_users(zookeeper_hosts: str, tmp_path: Path, content: str, said: str) -> None:
    users = tmp_path / "users"
    users.write_text(content)
    refused = run("-z", zookeeper_hosts, "serve", "--users-file", str(users))
    assert refused.code == 2
    assert said in refused.err


def test_an_empty_token_is_refused(zookeeper_hosts: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(" \n")
    assert run("-z", zookeeper_hosts, "serve", "--token-file", str(token)).code == 2


@pytest.mark.parametrize("option", ["--users-file", "--token-file"])
@pytest.mark.parametrize(
    ("content", "said"),
    [("anna:schön\n".encode("latin-1"), "it is not UTF-8 at byte 8"), (None, "No such file or directory")],
)
def test_a_login_file_that_cannot_be_read_is_named(
    tmp_path: Path, option: str, content: bytes | None, said: str
) -> None:
    file = tmp_path / "login"
    if content is not None:
        file.write_bytes(content)
    refused = run("-z", "127.0.0.1:1", "serve", option, str(file))
    assert refused.code == 2
    assert f"Invalid value for {option}: {file} cannot be read: {said}" in refused.err


def test_a_file_for_tls_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    cert, junk, missing = tmp_path / "cert.pem", tmp_path / "junk.pem", tmp_path / "missing.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(cert))
    junk.write_text("junk")
    listening = ("-z", "127.0.0.1:1", "serve", "--listen-cert")
    for arguments, option, file in [
        ((missing,), "--listen-cert", missing),
        ((cert, "--listen-key", missing), "--listen-key", missing),
        ((cert, "--listen-client-ca", missing), "--listen-client-ca", missing),
        ((cert, "--listen-client-ca", junk), "--listen-client-ca", junk),
        ((junk,), "--listen-cert", junk),
        ((cert, "--listen-key", junk), "--listen-cert or --listen-key", f"{cert} or {junk}"),
    ]:
        refused = run(*listening, *arguments)
        assert refused.code == 2
        assert f"Invalid value for {option}: {file} cannot be read: " in refused.err
        assert ("No such file or directory" in refused.err) == ("missing" in refused.err)


def test_a_taken_port_and_a_bad_interval_are_sentences(zookeeper_hosts: str, billing: None) -> None:
    with served(zookeeper_hosts) as (url, _process):
        taken = run("-z", zookeeper_hosts, "serve", "--listen", url.removeprefix("http://"))
    assert taken.code == 2
    assert "Address already in use" in taken.err
    assert run("-z", zookeeper_hosts, "serve", "--every", "0.1").code == 2


def test_an_empty_chroot_is_probably_wrong(zookeeper_hosts: str) -> None:
    ended = run("-z", zookeeper_hosts, "serve")
    assert ended.code == 3
    assert "contains neither" in ended.err


def test_without_zookeeper_it_starts_and_says_so() -> None:
    with served("127.0.0.1:1/kafka", "--timeout", "2") as (url, process):
        assert body(f"{url}/healthz") == "ok\n"
        with pytest.raises(HTTPError) as refused:
            body(f"{url}/readyz")
        assert (refused.value.code, refused.value.read()) == (503, b"not ready: ZooKeeper does not answer\n")
        page = body(f"{url}/")
        assert "could not connect to 127.0.0.1:1" in page
        assert "The groups are unknown until ZooKeeper answers." in page
        assert 'zkgroups_up{source="zookeeper"} 0' in body(f"{url}/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def test_ctrl_c_ends_it_with_its_streams(zookeeper_hosts: str, billing: None) -> None:
    with served(zookeeper_hosts) as (url, process), urlopen(f"{url}/events", timeout=30) as stream:
        assert stream.readline() == b"retry: 1000\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "zkgroups: interrupted"


# The past


def test_snapshots_tell_the_past(registry: Registry, zookeeper_hosts: str, tmp_path: Path, sweeping: Sweep) -> None:
    """An offset that went back after the last snapshot is a rewind at the first sweep, or at least a known one."""
    offsets = registry.group("billing").offsets
    offsets.set(P0, 500)
    take_snapshot(str(tmp_path), zookeeper_hosts)
    offsets.reset({P0: 20})
    state = ClusterState(Rules())
    assert prime(state, str(tmp_path)) == 1
    record = state.past["billing"].records[P0]
    assert (record.commit.offset, record.commit.version) == (500, 0)
    sweeper = sweeping()
    assert until_group(sweeper, "billing").partitions[0].offset == 20


def test_with_history_a_rewind_is_known_at_the_first_sweep(
    registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    from zkgroups.core.kafka_values import OffsetRange
    from zkgroups.core.times import to_ms
    from zkgroups.serve.sweep.cluster_state import ReadGroup
    from zkgroups.zookeeper.reading import group_reader
    from zkgroups.zookeeper.session.registry_context import context_of

    offsets = registry.group("billing").offsets
    offsets.set(P0, 500)
    take_snapshot(str(tmp_path), zookeeper_hosts)
    offsets.reset({P0: 20})
    state = ClusterState(Rules())
    prime(state, str(tmp_path))
    found = [ReadGroup.of(view) for view in group_reader.read_groups(context_of(registry), ["billing"])]
    now_ms = to_ms(found[0].view.offsets[0].committed_at) + 1000
    state.ends.update({P0: OffsetRange(0, 600)}, now_ms)
    state.replace_all(found, None, now_ms)
    assert state.groups["billing"].verdict.status is Status.REWIND


def test_a_folder_without_snapshots_is_an_error(zookeeper_hosts: str, billing: None, tmp_path: Path) -> None:
    missing = run("-z", zookeeper_hosts, "serve", "--history", str(tmp_path / "nothing"))
    assert missing.code == 3


def test_the_command_answers_at_once_after_its_start(zookeeper_hosts: str, billing: None) -> None:
    with served(zookeeper_hosts, "--cluster", "prod") as (url, _process):
        deadline = time.monotonic() + 30
        while "billing" not in body(f"{url}/api/v1/groups"):
            assert time.monotonic() < deadline
        assert 'kafka_consumergroup_current_offset{consumergroup="billing",topic="orders",partition="0"} 5' in body(
            f"{url}/metrics"
        )
        assert "<title>billing – zkgroups</title>" in body(f"{url}/groups/billing")
