"""The files in `deploy/` and `compose.yaml` start the command with valid options, and probe addresses that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from zkgroups_cli.main import root
from zkgroups_cli.shared.options import Options

from zkgroups.serve.settings import MetricSettings
from zkgroups.serve.sweep.publisher import Publisher
from zkgroups.serve.web.access import Access
from zkgroups.serve.web.app import App

from .pictures import mixed

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


def kubernetes() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "zkgroups-serve.yaml").read_text()))


def command_lines() -> dict[str, list[str]]:
    """The words after `zkgroups serve` in each file."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["serve"]["command"]
    unit = (DEPLOY / "systemd" / "zkgroups-serve.service").read_text()
    [started] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    [more] = re.findall(r"^#   SERVE_OPTIONS=(.*)$", unit, re.MULTILINE)
    [container] = kubernetes()[0]["spec"]["template"]["spec"]["containers"]
    found = {
        "compose": shlex.split(compose),
        "systemd": shlex.split(started.replace("$SERVE_OPTIONS", more)),
        "kubernetes": container["args"],
    }
    return {name: words[words.index("serve") + 1 :] for name, words in found.items()}


@pytest.mark.parametrize("name", ["compose", "systemd", "kubernetes"])
def test_the_command_line_has_valid_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = root.get_command(click.Context(root), "serve")
    assert command is not None
    words = [word for word in command_lines()[name] if "-file=" not in word]  # secrets are not there
    context = command.make_context("serve", words, obj=Options())
    assert context.params["listen"].endswith(":9308")
    is_local = context.params["listen"].startswith("127.")
    assert is_local or context.params["no_login"] or "--token-file=/etc/zkgroups/token" in command_lines()[name]


def test_the_probes_ask_for_addresses_that_exist() -> None:
    routes = {route.path for route in App(Publisher(mixed()), MetricSettings(), Access())._routes()}
    [container] = kubernetes()[0]["spec"]["template"]["spec"]["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness", "startup")}
    assert probes == {"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"}
    assert set(probes.values()) <= routes


def test_prometheus_scrapes_a_name_that_the_server_accepts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [[target]] = [each["targets"] for job in config["scrape_configs"] for each in job["static_configs"]]
    words = command_lines()["compose"]
    assert target == f"{words[words.index('--host-name') + 1]}:9308"
