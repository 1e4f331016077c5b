"""The command: it refuses to be open by accident, ends with a sentence, and knows the past from a folder.

And the files in `deploy/` and `compose.yaml` start it with valid options, and probe addresses that exist.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click
import pytest
import trustme
import yaml
from zkgroups_cli.main import root
from zkgroups_cli.serve.serve import access_of
from zkgroups_cli.shared.options import Options

from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.health import Status
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import to_ms
from zkgroups.serve.picture.build_group import Rules
from zkgroups.serve.settings import MetricSettings
from zkgroups.serve.sweeper import ClusterState, Publisher, ReadGroup, prime
from zkgroups.serve.web.access import Access
from zkgroups.serve.web.app import App
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.testing.local_server import reserve
from zkgroups.zookeeper.reading import group_reader
from zkgroups.zookeeper.session.session import context_of

from ..cli.running import COMMAND, environment, run
from .pictures import mixed

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


def test_an_address_of_a_network_needs_a_login() -> None:
    """`test_server.py` shows which addresses these are."""
    refused = run("-z", "127.0.0.1:1", "serve", "--listen", "0.0.0.0:9308")
    assert refused.code == 4
    assert "everybody who can reach" in refused.err
    assert "--users-file" in refused.err


def test_a_login_file_must_be_readable_and_have_users_or_a_token(tmp_path: Path) -> None:
    login, token, latin = tmp_path / "login", tmp_path / "token", "anna:schön\n".encode("latin-1")
    login.write_text("# on call\nanna:s:ecret\n\n")
    token.write_text("t0ken\n")
    assert access_of(login, token, ["Web."]) == Access({"anna": "s:ecret"}, "t0ken", frozenset({"web"}))
    for option, content, said in (
        ("--users-file", b"anna", "line 1 is not NAME:PASSWORD"),
        ("--users-file", b"# nobody\n", "it has no users"),
        ("--users-file", b":x", "line 1"),
        ("--token-file", b" \n", ""),
        ("--users-file", latin, f"--users-file: {login} cannot be read: it is not UTF-8 at byte 8"),
        ("--token-file", None, f"--token-file: {login} cannot be read: No such file or directory"),
    ):
        login.unlink(missing_ok=True)
        if content is not None:
            login.write_bytes(content)
        refused = run("-z", "127.0.0.1:1", "serve", option, str(login))
        assert refused.code == 2
        assert said in refused.err


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


def test_snapshots_tell_the_past_so_that_a_rewind_is_known_at_the_first_sweep(
    registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    offsets = registry.group("billing").offsets
    offsets.set(P0, 500)
    take_snapshot(str(tmp_path), zookeeper_hosts)
    offsets.reset({P0: 20})
    state = ClusterState(Rules())
    assert prime(state, str(tmp_path)) == 1
    record = state.past["billing"].records[P0]
    assert (record.commit.offset, record.commit.version) == (500, 0)

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
        assert eventually(lambda: "billing" in body(f"{url}/api/v1/groups"))
        assert 'kafka_consumergroup_current_offset{consumergroup="billing",topic="orders",partition="0"} 5' in body(
            f"{url}/metrics"
        )
        assert "<title>billing – zkgroups</title>" in body(f"{url}/groups/billing")


# The files of deployments

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


def kubernetes() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "zkgroups-serve.yaml").read_text()))


def container_words() -> list[str]:
    """The words as Kubernetes passes them: it replaces $(NAMESPACE)."""
    [container] = kubernetes()[0]["spec"]["template"]["spec"]["containers"]
    assert {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}} in container["env"]
    return [word.replace("$(NAMESPACE)", "default") for word in container["args"]]


def command_lines() -> dict[str, list[str]]:
    """The words after `zkgroups serve` in each file."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["serve"]["command"]
    unit = (DEPLOY / "systemd" / "zkgroups-serve.service").read_text()
    [started] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    [more] = re.findall(r"^#   SERVE_OPTIONS=(.*)$", unit, re.MULTILINE)
    found = {
        "compose": shlex.split(compose),
        "systemd": shlex.split(started.replace("$SERVE_OPTIONS", more)),
        "kubernetes": container_words(),
    }
    return {name: words[words.index("serve") + 1 :] for name, words in found.items()}


def test_the_command_lines_have_valid_options() -> None:
    command = root.get_command(click.Context(root), "serve")
    assert command is not None
    for every in command_lines().values():
        words = [word for word in every if "-file=" not in word]  # secrets are not there
        context = command.make_context("serve", words, obj=Options())
        assert context.params["listen"].endswith(":9308")
        is_local = context.params["listen"].startswith("127.")
        assert is_local or context.params["no_login"] or "--token-file=/etc/zkgroups/token" in every


def test_the_probes_ask_for_addresses_that_exist() -> None:
    routes = {route.path for route in App(Publisher(mixed()), MetricSettings(), Access())._routes()}
    [container] = kubernetes()[0]["spec"]["template"]["spec"]["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness", "startup")}
    assert probes == {"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"}
    assert set(probes.values()) <= routes


def test_the_service_in_kubernetes_has_the_names_that_its_clients_use() -> None:
    _, service = kubernetes()
    known = {word.removeprefix("--host-name=") for word in container_words() if word.startswith("--host-name=")}
    name = service["metadata"]["name"]
    for host in (name, f"{name}.default", f"{name}.default.svc", f"{name}.default.svc.cluster.local"):
        assert Access(host_names=frozenset(known)).decide("/", host, "").name == "ALLOWED"


def test_prometheus_scrapes_a_name_that_the_server_accepts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [[target]] = [each["targets"] for job in config["scrape_configs"] for each in job["static_configs"]]
    words = command_lines()["compose"]
    assert target == f"{words[words.index('--host-name') + 1]}:9308"
