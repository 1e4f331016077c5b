"""Open the registry of the global options.

Secrets come from a file, the environment or a prompt, never from the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import Registry
from zkgroups.exceptions import RefusedError, UnreachableError
from zkgroups.secret_file import read_secret_file

from .options import Options, secret_variable

if TYPE_CHECKING:
    from zkgroups import Digest, Sasl, Tls


@contextmanager
def connected(options: Options, *, writes: bool = False, creates: bool = False) -> Iterator[Registry]:
    """Connect to the registry of the options. With `--read-only`, refuse a command that `writes`.

    A chroot without groups and brokers is probably a mistake, so it is an error, except for a command that `creates` a
    group: it may be the first one.
    """
    if writes:
        refuse_read_only(options)
    with open_registry(options) as registry:
        if not creates:
            registry.require_root()
        yield registry


def refuse_read_only(options: Options) -> None:
    """Raise an error if `--read-only` was given."""
    if options.read_only:
        raise RefusedError("this command writes, but --read-only was given")


UNREACHABLE_TIMEOUT: Final = 1.0
"""Without --timeout, connecting to unreachable hosts fails after this many seconds, which allows several attempts."""


def open_registry(options: Options, *, may_prompt: bool = True) -> Registry:
    """Connect. The caller closes the registry. With `may_prompt`, prompt for a missing password on a terminal."""
    will_wait = "timeout" in options.given
    try:
        return Registry.connect(
            address(options),
            session_timeout=options.session_timeout,
            timeout=options.timeout,
            unreachable_timeout=None if will_wait else UNREACHABLE_TIMEOUT,
            auth=_auth(options, may_prompt=may_prompt),
            tls=_tls(options),
            read_only=options.read_only,
        )
    except UnreachableError as error:
        error.add_note("use --timeout SECONDS to wait for a server that is starting")
        raise


def address(options: Options) -> str:
    """Return the address of ZooKeeper."""
    if options.zookeeper is None:
        raise _usage("the address of ZooKeeper is missing: give -z HOST:PORT/CHROOT, or set ZKGROUPS_ZOOKEEPER")
    return options.zookeeper


def for_workers(options: Options) -> dict[str, Any]:
    """Return the connection options for Spark's workers. They name the sources of secrets, but contain no secret.

    A password from a prompt is passed on in the environment.
    """
    auth, tls = _auth(options), _tls(options)
    if auth and options.password_file is None:
        os.environ[secret_variable("password")] = auth[0].password
    return {
        "zookeeper": address(options),
        "timeout": options.timeout,
        "session_timeout": options.session_timeout,
        "read_only": options.read_only,
        "digest_user": options.digest_user,
        "sasl_user": options.sasl_user,
        "password_file": _absolute(options.password_file),
        "tls": tls is not None,
        "tls_ca": _absolute(options.tls_ca),
        "tls_cert": _absolute(options.tls_cert),
        "tls_key": _absolute(options.tls_key),
        "tls_key_password_file": _absolute(options.tls_key_password_file),
        "tls_hostname_check": not options.no_tls_hostname_check,
    }


def _absolute(file: Path | None) -> str | None:
    """Return an absolute path, because workers have another working directory."""
    return None if file is None else str(file.absolute())


def _auth(options: Options, *, may_prompt: bool = True) -> list[Digest | Sasl]:
    if options.digest_user is not None and options.sasl_user is not None:
        raise _usage("give --digest-user or --sasl-user, not both")
    if options.digest_user is not None:
        from zkgroups import Digest

        return [Digest(options.digest_user, _password(options, options.digest_user, may_prompt=may_prompt))]
    if options.sasl_user is not None:
        from zkgroups import Sasl

        return [Sasl(options.sasl_user, _password(options, options.sasl_user, may_prompt=may_prompt))]
    if options.password_file is not None:
        raise _usage("--password-file needs --digest-user or --sasl-user")
    return []


def _password(options: Options, user: str, *, may_prompt: bool) -> str:
    password = _secret("password", options.password_file)
    if password is not None:
        return password
    if not may_prompt or sys.stdin is None or not sys.stdin.isatty():
        raise _usage(f"the password of {user!r} is missing: --password-file FILE, or {secret_variable('password')}")
    answer: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return answer


def _tls(options: Options) -> Tls | None:
    if options.tls:
        from zkgroups import Tls

        return Tls(
            ca=options.tls_ca,
            certificate=options.tls_cert,
            key=options.tls_key,
            key_password=_secret("tls-key-password", options.tls_key_password_file),
            verify_hostname=not options.no_tls_hostname_check,
        )
    given = {
        "--tls-ca": options.tls_ca,
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
        "--tls-key-password-file": options.tls_key_password_file,
        "--no-tls-hostname-check": options.no_tls_hostname_check,
    }
    for option, value in given.items():
        if value:
            raise _usage(f"{option} needs --tls")
    return None


def _secret(name: str, file: Path | None) -> str | None:
    """Return the secret from the file, else from its environment variable; None if neither is given.

    Errors never show a part of the secret, and are not chained to errors that would show it in a traceback.
    """
    if file is None:
        secret = os.environ.get(secret_variable(name))
        if secret is not None and not _is_utf8(os.fsencode(secret)):
            raise _usage(f"{secret_variable(name)} is not UTF-8 text")
        return secret
    try:
        data = read_secret_file(file)
    except OSError as error:
        raise _usage(f"--{name}-file {file} cannot be read: {error.strerror}") from error
    if not _is_utf8(data):
        raise _usage(f"--{name}-file {file} is not UTF-8 text: save it as UTF-8")
    return data.decode().rstrip("\r\n")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())
