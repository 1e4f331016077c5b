"""Who may use `zkgroups serve`: read users and the token from files, and refuse to be open to a network by accident."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zkgroups.exceptions import RefusedError
from zkgroups.secret_file import read_secret_file

if TYPE_CHECKING:
    from zkgroups.serve.web.access import Access


def access_of(users_file: Path | None, token_file: Path | None, host_names: Iterable[str]) -> Access:
    """Read the files."""
    from zkgroups.serve.web.access import Access

    names = frozenset(name.lower().rstrip(".") for name in host_names)
    return Access(_users(users_file), _token(token_file), names)


def _users(file: Path | None) -> dict[str, str]:
    """Read NAME:PASSWORD lines. Empty lines and lines that begin with # are ignored."""
    if file is None:
        return {}
    users = {}
    for number, line in enumerate(_text("--users-file", file).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise click.BadParameter(f"line {number} is not NAME:PASSWORD", param_hint="--users-file")
        users[name] = password
    if not users:
        raise click.BadParameter("it has no users", param_hint="--users-file")
    return users


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    token = _text("--token-file", file).strip()
    if not token:
        raise click.BadParameter("the file is empty", param_hint="--token-file")
    return token


def _text(option: str, file: Path) -> str:
    try:
        return read_secret_file(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise click.BadParameter(f"{file} cannot be read: {reason}", param_hint=option) from error


def check_exposure(host: str, access: Access, *, has_client_ca: bool, told: bool) -> None:
    """Raise an error if everybody in a network could see all groups."""
    from zkgroups.serve.web.access import is_loopback

    if is_loopback(host) or not access.is_open or has_client_ca or told:
        return
    raise RefusedError(
        f"everybody who can reach {host} would see all groups: give --users-file, --token-file or --listen-client-ca, "
        "or allow that with --no-login"
    )
