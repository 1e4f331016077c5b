"""A ZooKeeper as the source of groups: how to connect, what to choose, its position. Values for other processes."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.layout import Layout
from ..core.layouts.legacy import LEGACY
from ..core.selection import Selection, check_expression
from ..core.znodes.paths import CONSUMERS
from ..deadline import Deadline
from ..exceptions import InvalidInputError, InvalidOptionError, NoPermissionError, NotConnectedError
from ..secret_file import read_secret_file
from .registry import Registry
from .session.connection import MAX_SESSION_TIMEOUT, check_hosts
from .session.session import context_of

if TYPE_CHECKING:
    from .session.security import Digest, Sasl, Tls


# The options of a connection as a value without secrets, which can be sent to another process.
#
# Files and environment variables with secrets are read when a connection is opened. So a secret never appears in a
# plan, a log or a pickled task.


PASSWORD_VARIABLE = "ZKGROUPS_PASSWORD"  # noqa: S105 -- a name
TLS_KEY_PASSWORD_VARIABLE = "ZKGROUPS_TLS_KEY_PASSWORD"  # noqa: S105 -- a name
SECRET_VARIABLES = (PASSWORD_VARIABLE, TLS_KEY_PASSWORD_VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The address, timeouts, user and TLS files of a connection. Relative paths are relative to the reading process."""

    zookeeper: str = ""
    timeout: float = 15.0
    session_timeout: float = 30.0
    read_only: bool = False
    digest_user: str | None = None
    sasl_user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password_file: str | None = None
    tls_hostname_check: bool = True

    def __post_init__(self) -> None:
        self._check_address()
        Deadline.after("timeout", self.timeout)
        if not 0 < self.session_timeout <= MAX_SESSION_TIMEOUT:
            reason = f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} seconds"
            raise InvalidOptionError(self.option("session_timeout"), self.session_timeout, reason)
        digest_user, sasl_user = self.option("digest_user"), self.option("sasl_user")
        if self.digest_user is not None and self.sasl_user is not None:
            raise InvalidOptionError(sasl_user, self.sasl_user, f"{digest_user} is set, too: set only one of them")
        if self.password_file is not None and self.digest_user is None and self.sasl_user is None:
            reason = f"it needs a {digest_user} or a {sasl_user}"
            raise InvalidOptionError(self.option("password_file"), self.password_file, reason)
        for name in ("tls_ca", "tls_cert", "tls_key", "tls_key_password_file"):
            if getattr(self, name) is not None and not self.tls:
                raise InvalidOptionError(self.option(name), getattr(self, name), f"it needs {self.option('tls')}")
        if not (self.tls_hostname_check or self.tls):
            raise InvalidOptionError(self.option("tls_hostname_check"), ..., f"it needs {self.option('tls')}")

    def _check_address(self) -> None:
        check_hosts(self.zookeeper)

    @classmethod
    def option(cls, name: str) -> str:
        """Return the name of a field as users know it, for error messages."""
        return name

    @property
    def connection(self) -> ConnectionOptions:
        """Only the options of the connection, for workers."""
        return ConnectionOptions(**{each.name: getattr(self, each.name) for each in fields(ConnectionOptions)})

    @property
    def user(self) -> str | None:
        """The user to authenticate as, with either scheme."""
        return self.sasl_user if self.digest_user is None else self.digest_user

    def connect(self, *, unreachable_timeout: float | None = None) -> Registry:
        """Read the secrets, and open a session to ZooKeeper."""
        return Registry.connect(
            self.zookeeper,
            session_timeout=self.session_timeout,
            timeout=self.timeout,
            unreachable_timeout=unreachable_timeout,
            auth=self._auth(),
            tls=self._tls(),
            read_only=self.read_only,
        )

    def _auth(self) -> list[Digest | Sasl]:
        if (user := self.user) is None:
            return []
        from .session.security import Digest, Sasl

        option = self.option("password_file")
        password = _secret(option, self.password_file, PASSWORD_VARIABLE)
        if password is None:
            raise InvalidInputError(f"user {user!r} needs a password: give {option}, or set {PASSWORD_VARIABLE}")
        return [Sasl(user, password) if self.digest_user is None else Digest(user, password)]

    def _tls(self) -> Tls | None:
        if not self.tls:
            return None
        from .session.security import Tls

        option = self.option("tls_key_password_file")
        return Tls(
            ca=self.tls_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            key_password=_secret(option, self.tls_key_password_file, TLS_KEY_PASSWORD_VARIABLE),
            verify_hostname=self.tls_hostname_check,
        )


def _secret(option: str, file: str | None, variable: str) -> str | None:
    """Return the secret in the file, else in the environment variable; None if neither exists.

    Errors never show a part of the secret, and are not chained to errors that would show it in a traceback.
    """
    if file is None and variable not in os.environ:
        return None
    try:
        data = os.fsencode(os.environ[variable]) if file is None else read_secret_file(file)
    except OSError as error:
        raise InvalidOptionError(option, file, f"it cannot be read: {error.strerror}") from error
    try:
        return data.decode() if file is None else data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        name, value = (variable, ...) if file is None else (option, file)
        raise InvalidOptionError(name, value, "it is not UTF-8 text: save it as UTF-8") from None


# The groups and topics of a ZooKeeper, chosen by expressions, as a value that can be sent to another process.


MAX_PARALLELISM: Final = 1024


def _parsed(layout: str) -> Layout:
    """Parse a layout. Most commands do not need the parser, whose import takes long."""
    from ..core.layouts.template import parse_layout

    return parse_layout(layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSource(ConnectionOptions):
    """Where to read groups, and which.

    - `zookeeper`: host:port,host:port/chroot.
    - `groups`, `topics`: regular expressions that must match the whole name of a group, and of a topic. None for all.
    - `layout`: where the offsets are, as text: see `Registry.offsets`.
    - `parallelism`: the number of tasks that read, if Spark does the work.
    - `timeout`, `session_timeout`: in seconds, as for `Registry.connect`.
    - `read_only`: accept a server without quorum, whose data may be stale.
    - `digest_user` or `sasl_user`: the user to authenticate as. Without a `password_file`, the environment variable
      ZKGROUPS_PASSWORD has the password.
    - `tls`: use TLS, with the PEM files `tls_ca`, `tls_cert` and `tls_key`. Without a `tls_key_password_file`, the
      environment variable ZKGROUPS_TLS_KEY_PASSWORD has the password of the key.
    - `tls_hostname_check`: False to skip the check of the server's host name.

    Files and environment variables with secrets are read when a connection is opened.
    """

    groups: str | None = None
    topics: str | None = None
    parallelism: int | None = None
    layout: str = LEGACY.text

    def __post_init__(self) -> None:
        ConnectionOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        _parsed(self.layout)
        for option, expression in (("groups", self.groups), ("topics", self.topics)):
            check_expression(option, expression)
        if self.parallelism is not None and not 1 <= self.parallelism <= MAX_PARALLELISM:
            raise InvalidOptionError("parallelism", self.parallelism, f"it must be from 1 to {MAX_PARALLELISM}")

    @property
    def parsed_layout(self) -> Layout:
        """The layout that the text describes."""
        return _parsed(self.layout)

    def has_group(self, group: str) -> bool:
        """Return whether the group is selected."""
        return Selection(self.groups).has_group(group)

    def selected_groups(self, registry: Registry) -> list[str]:
        """Return the names of the selected groups in this ZooKeeper."""
        return list(filter(self.has_group, registry.groups(self.parsed_layout)))

    @property
    def shown_cluster(self) -> str:
        """The address, as plans and tables show it."""
        return check_hosts(self.zookeeper)


# Reading the position of an ensemble.


def ensemble_position(registry: Registry) -> EnsemblePosition:
    """Return the position of the server, after it has processed all earlier writes. Sends two small requests.

    Each answer contains the zxid of the server's last transaction. A server without a quorum may lag behind the others,
    or have processed transactions that are rolled back later.
    """
    registry.sync()
    if registry.server_is_read_only:
        raise NotConnectedError("the server has no quorum, so its last transaction is not reliable; try again later")
    context, client = context_of(registry), registry.client
    try:
        stat = context.session.call(lambda: client.exists_async(CONSUMERS), CONSUMERS, context.deadline())
    except NoPermissionError:
        stat = None
    created_zxid, created_ms = (0, 0) if stat is None else (stat.czxid, stat.ctime)
    return EnsemblePosition(int(client.last_zxid), int(created_zxid), int(created_ms))
