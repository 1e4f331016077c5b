"""Convert the options of `zkgroups gateway` that set up its listeners."""

from __future__ import annotations

import re
import resource
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from zkgroups.gateway import GatewaySettings, NodePorts
    from zkgroups.gateway.protocol.node_ports import GatewayAddress
    from zkgroups.kafka.wire.address import Address

_PORTS: Final = 100
_OTHER_FILES: Final = 100
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 -- compared, never a default
"""Hosts that stand for all addresses of the machine."""


def one_address(text: str) -> Address:
    """Return the address to listen on."""
    from zkgroups.exceptions import InvalidOptionError
    from zkgroups.kafka.wire.address import addresses

    with suppress(InvalidOptionError):
        found = addresses(text)
        if len(found) == 1 and text.strip().endswith(f":{found[0].port}"):
            return found[0]
    raise click.BadParameter(f"{text!r} is not one address, like 0.0.0.0:19092", param_hint="--listen")


def port_range(text: str | None, listen: Address) -> NodePorts:
    """Return the ports of brokers."""
    from zkgroups.gateway import NodePorts

    if text is None:
        return NodePorts(listen.port + 1, listen.port + _PORTS)
    found = re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", text)
    if found is None:
        raise click.BadParameter("it must be a range of ports, like 19100-19199", param_hint="--broker-ports")
    ports = NodePorts(int(found[1]), int(found[2]))
    if ports.first <= listen.port <= ports.last:
        raise click.BadParameter("it must not contain the port of --listen", param_hint="--broker-ports")
    return ports


def reachable_address(settings: GatewaySettings) -> GatewayAddress:
    """Return the address to which other gateways send clients: advertised, or listened on, or this machine's."""
    from zkgroups.gateway.protocol.node_ports import GatewayAddress

    host = settings.advertised_host or settings.listen.host
    return GatewayAddress(socket.getfqdn() if host in _ANY else host, settings.ports)


def listening_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of the listeners; None without a certificate."""
    if cert is None:
        if key is not None or client_ca is not None:
            raise click.BadParameter("it needs --listen-cert", param_hint="--listen-key or --listen-client-ca")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, ValueError) as error:
        raise click.BadParameter(
            f"the certificate, its key or the authority cannot be read: {error}", param_hint="--listen-cert"
        ) from error
    return context


def file_limit(wanted: int) -> None:
    """Raise the limit of open files of this process, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
