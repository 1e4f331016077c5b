"""Open the registry of the global options.

Secrets come from a file, the environment or a prompt, never from the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import Registry
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.exceptions import RefusedError, UnreachableError
from zkgroups.zookeeper.connection_options import PASSWORD_VARIABLE, ConnectionOptions

from .options import Options

if TYPE_CHECKING:
    from zkgroups.core.layouts.layout import Layout


@contextmanager
def connected(
    options: Options, *, writes: bool = False, creates: bool = False, layout: Layout = LEGACY
) -> Iterator[Registry]:
    """Connect to the registry of the options. With `--read-only`, refuse a command that `writes`.

    A chroot without groups and brokers is probably a mistake, so it is an error, except for a command that `creates` a
    group: it may be the first one. With another layout, its root must exist.
    """
    if writes:
        refuse_read_only(options)
    with open_registry(options) as registry:
        if not creates:
            registry.require_root(layout)
        yield registry


def refuse_read_only(options: Options) -> None:
    """Raise an error if `--read-only` was given."""
    if options.read_only:
        raise RefusedError("this command writes, but --read-only was given: leave it out to write")


UNREACHABLE_TIMEOUT: Final = 1.0
"""Without --timeout, connecting to unreachable hosts fails after this many seconds, which allows several attempts."""


def open_registry(options: Options, *, may_prompt: bool = True) -> Registry:
    """Connect. The caller closes the registry. With `may_prompt`, prompt for a missing password on a terminal."""
    will_wait = "timeout" in options.given
    try:
        return _connection_options(options, may_prompt=may_prompt).connect(
            unreachable_timeout=None if will_wait else UNREACHABLE_TIMEOUT
        )
    except UnreachableError as error:
        error.add_note("use --timeout SECONDS to wait for a server that is starting")
        raise


def address(options: Options) -> str:
    """Return the address of ZooKeeper."""
    if options.zookeeper is None:
        raise click.UsageError(
            "the address of ZooKeeper is missing: give -z HOST:PORT/CHROOT, or set ZKGROUPS_ZOOKEEPER",
            click.get_current_context(),
        )
    return options.zookeeper


def for_workers(options: Options) -> dict[str, Any]:
    """Return the connection options for Spark's workers. They name the sources of secrets, but contain no secret."""
    return asdict(_connection_options(options))


class _CommandLineOptions(ConnectionOptions):
    """Connection options whose errors name the options of the command line."""

    __slots__ = ()

    @classmethod
    def option(cls, name: str) -> str:
        """Return the name of an option."""
        return "--no-tls-hostname-check" if name == "tls_hostname_check" else f"--{name.replace('_', '-')}"


def _connection_options(options: Options, *, may_prompt: bool = True) -> ConnectionOptions:
    """Return the options of the connection. A prompted password is stored in the environment, as if given there."""
    found = _CommandLineOptions(
        zookeeper=address(options),
        timeout=options.timeout,
        session_timeout=options.session_timeout,
        read_only=options.read_only,
        digest_user=options.digest_user,
        sasl_user=options.sasl_user,
        password_file=_absolute(options.password_file),
        tls=options.tls,
        tls_ca=_absolute(options.tls_ca),
        tls_cert=_absolute(options.tls_cert),
        tls_key=_absolute(options.tls_key),
        tls_key_password_file=_absolute(options.tls_key_password_file),
        tls_hostname_check=not options.no_tls_hostname_check,
    )
    has_password = found.password_file is not None or PASSWORD_VARIABLE in os.environ
    if found.user is not None and not has_password and may_prompt and sys.stdin is not None and sys.stdin.isatty():
        os.environ[PASSWORD_VARIABLE] = click.prompt(f"Password of {found.user}", hide_input=True, err=True)
    return found


def _absolute(file: Path | None) -> str | None:
    """Return an absolute path, because workers have another working directory."""
    return None if file is None else str(file.absolute())
