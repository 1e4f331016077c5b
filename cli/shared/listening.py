"""Options of commands that listen: the address, the certificate, and the number of open files."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import ssl
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .messages import say
from .options import Format, Options
from .output import Column, Output, Table
from .parameter_types import FilePath, Parsed, combined
from .signals import record_signals_in_loop

if TYPE_CHECKING:
    from zkgroups.kafka.wire.errors import Address

_OTHER_FILES: Final = 100
_FILE: Final[dict[str, Any]] = {"type": FilePath(path_type=Path), "metavar": "FILE"}

tls_options: Final = combined(
    click.option("--listen-cert", **_FILE, help="Let clients connect with TLS: the certificate of this server (PEM)."),
    click.option("--listen-key", **_FILE, help="The key of the certificate (PEM), if it is in another file."),
    click.option("--listen-client-ca", **_FILE, help="Only accept clients with a certificate of this authority (PEM)."),
)
"""The values are for `listening_tls`."""


class HostName(Parsed):
    """The name or the IP address of a host, without a port: `gateway.example.com`, `::1` or `[::1]`."""

    name = "host"

    def parse(self, text: str) -> str:
        """Return the host."""
        host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        with suppress(ValueError):
            if not ipaddress.ip_address(host).is_unspecified:
                return host
        if host != text or not re.fullmatch(r"[\w.-]*[^\W\d][\w.-]*", host):
            raise ValueError(f"{text!r} is not the name of a host, without a port, like gateway.example.com")
        return host


def one_address(text: str) -> Address:
    """Return the address to listen on."""
    from zkgroups.exceptions import InvalidOptionError
    from zkgroups.kafka.wire.errors import addresses

    with suppress(InvalidOptionError):
        found = addresses(text)
        if len(found) == 1 and text.strip().endswith(f":{found[0].port}"):
            return found[0]
    raise click.BadParameter(f"{text!r} is not one address, like 0.0.0.0:19092", param_hint="--listen")


def listening_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of the listeners; None without a certificate."""
    if cert is None:
        if key is not None or client_ca is not None:
            raise click.BadParameter("it needs --listen-cert", param_hint="--listen-key or --listen-client-ca")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _named({"--listen-cert": cert} | ({} if key is None else {"--listen-key": key})):
        context.load_cert_chain(cert, key, password="")
    if client_ca is not None:
        with _named({"--listen-client-ca": client_ca}):
            context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def _named(files: dict[str, Path]) -> Iterator[None]:
    """Name the options and the files in an error, because OpenSSL does not."""
    try:
        yield
    except (OSError, ValueError) as error:  # an `ssl.SSLError` is an OSError, too
        closed = {option: file for option, file in files.items() if not os.access(file, os.R_OK)}
        named = closed or files
        raise click.BadParameter(
            f"{' or '.join(map(str, named.values()))} cannot be read: {getattr(error, 'strerror', None) or error}",
            param_hint=" or ".join(named),
        ) from error


def file_limit(wanted: int) -> None:
    """Raise the limit of open files of this process, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def run_until_signal(
    options: Options, opened: AbstractAsyncContextManager[str], address: str, name: str, running: str
) -> Sequence[int]:
    """Open a server, print its address as the row of a table, and run until a signal arrives. Return its number."""
    from zkgroups.exceptions import InvalidOptionError

    recorded, signalled = record_signals_in_loop()
    async with AsyncExitStack() as stack:
        try:
            shown = await stack.enter_async_context(opened)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise InvalidOptionError(
                "listen", address, f"cannot listen there: {reason}; choose another address"
            ) from error
        table = Table(name, key="address", columns=(Column("ADDRESS", "address"),))
        Output(options, default=Format.NAME).write(table, [{"address": shown}])
        say(options, running)
        await signalled.wait()
    return recorded
