"""The options of the data source: read once, on the driver, into a value that holds no secret.

    table          offsets (the default), owners or members
    zookeeper      host:port,host:port/chroot; needed
    cluster        what the column `cluster` says; the hosts string, with its chroot, by default
    groups         a regular expression that the whole name of a group must match
    topics         the same for topics; of groups whose topics may not be listed, the row that says so is kept
    parallelism    how many tasks read, each with a session of its own; 4 by default
    timeout, sessionTimeout                        seconds, as for `Registry.connect`
    readOnly                                       true: a server that has lost its quorum will do, and may be behind
    digestUser or saslUser, passwordFile           who we are; without a file ZKGROUPS_PASSWORD
    tls, tlsCa, tlsCert, tlsKey,                   true, and files as PEM
    tlsKeyPasswordFile, tlsHostnameCheck           without a file ZKGROUPS_TLS_KEY_PASSWORD; false skips the check

Files and environment variables are read where the connection is opened, on the driver and on each worker. So secrets
are never part of a plan, and never in a log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from ..exceptions import InvalidOptionError
from ..zookeeper.connection import Digest, Sasl, Tls, check_hosts
from ..zookeeper.deadline import Deadline
from ..zookeeper.registry import Registry
from .tables import Table

DEFAULT_PARALLELISM: Final = 4
MAX_PARALLELISM: Final = 1024
PASSWORD: Final = "ZKGROUPS_PASSWORD"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked. The field names are those of the options, in Python's spelling."""

    zookeeper: str
    table: Table = Table.OFFSETS
    cluster: str = ""
    groups: str | None = None
    topics: str | None = None
    parallelism: int = DEFAULT_PARALLELISM
    timeout: float = 15.0
    session_timeout: float = 30.0
    digest_user: str | None = None
    sasl_user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password_file: str | None = None
    tls_hostname_check: bool = True
    read_only: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """From what Spark passes: names in any case, and text."""
        known = {field.name.replace("_", ""): field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for option, text in given.items():
            name = known.get(option.lower())
            if name is None:
                raise InvalidOptionError("option", option, _unknown(option))
            values[name] = _PARSERS.get(name, _text)(option, text)
        if "zookeeper" not in values:
            raise InvalidOptionError("zookeeper", None, "say where ZooKeeper is: host:port,host:port/chroot")
        options = cls(**values)
        options._check_identity()
        return options

    def _check_identity(self) -> None:
        if self.digest_user is not None and self.sasl_user is not None:
            raise InvalidOptionError("saslUser", self.sasl_user, "there is a digestUser, too; give one of them")
        for name in ("tls_ca", "tls_cert", "tls_key", "tls_key_password_file"):
            if getattr(self, name) is not None and not self.tls:
                raise InvalidOptionError(name.replace("_", ""), getattr(self, name), "it needs tls")

    @property
    def shown_cluster(self) -> str:
        """What the column `cluster` says."""
        return self.cluster or self.zookeeper

    def connect(self) -> Registry:
        """A session of its own, opened where the reading is done."""
        return Registry.connect(
            self.zookeeper,
            session_timeout=self.session_timeout,
            timeout=self.timeout,
            auth=self._auth(),
            tls=self._tls(),
            read_only=self.read_only,
        )

    def _auth(self) -> list[Digest | Sasl]:
        user = self.digest_user or self.sasl_user
        if user is None:
            return []
        password = _secret("password", self.password_file)
        if password is None:
            raise InvalidOptionError("passwordFile", None, f"the password of {user!r} is missing: that, or {PASSWORD}")
        return [Digest(user, password) if self.digest_user else Sasl(user, password)]

    def _tls(self) -> Tls | None:
        if not self.tls:
            return None
        return Tls(
            ca=self.tls_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            key_password=_secret("tls_key_password", self.tls_key_password_file),
            verify_hostname=self.tls_hostname_check,
        )


def _unknown(option: str) -> str:
    if "password" in option.lower():
        return "options are shown in plans and logs: put the password into a file, or into the environment"
    return "there is no such option; see zkgroups.spark.options"


def _text(option: str, text: str) -> str:
    if not text:
        raise InvalidOptionError(option, text, "it must not be empty")
    return text


def _hosts(_option: str, text: str) -> str:
    return check_hosts(text)


def _table(option: str, text: str) -> Table:
    try:
        return Table(text.lower())
    except ValueError as error:
        raise InvalidOptionError(option, text, f"it must be one of {', '.join(Table)}") from error


def _expression(option: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(option, text, f"it is no regular expression: {error}") from error
    return text


def _parallelism(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_PARALLELISM:
        raise InvalidOptionError(option, text, f"it must be a whole number from 1 to {MAX_PARALLELISM}")
    return int(text)


def _seconds(option: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise InvalidOptionError(option, text, "it must be a number of seconds") from error
    Deadline.after(option, seconds)
    return seconds


def _flag(option: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidOptionError(option, text, "it must be true or false")
    return text.lower() == "true"


_PARSERS: Final[Mapping[str, Callable[[str, str], object]]] = {
    "zookeeper": _hosts,
    "table": _table,
    "groups": _expression,
    "topics": _expression,
    "parallelism": _parallelism,
    "timeout": _seconds,
    "session_timeout": _seconds,
    "tls": _flag,
    "tls_hostname_check": _flag,
    "read_only": _flag,
}


def _secret(name: str, file: str | None) -> str | None:
    """What the file holds, else the environment variable of that name; None where there is neither."""
    if file is None:
        return os.environ.get(f"ZKGROUPS_{name.upper()}")
    try:
        return Path(file).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"{name} file", file, f"it cannot be read: {error}") from error
