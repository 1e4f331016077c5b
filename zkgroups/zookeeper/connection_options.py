"""The options of a connection as a value without secrets, which can be sent to another process.

Files and environment variables with secrets are read when a connection is opened. So a secret never appears in a plan,
a log or a pickled task.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..deadline import Deadline
from ..exceptions import InvalidOptionError
from ..secret_file import read_secret_file
from .registry import Registry
from .session.options import MAX_SESSION_TIMEOUT, check_hosts

if TYPE_CHECKING:
    from .session.security import Digest, Sasl, Tls

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
            reason = f"the user {user!r} needs a password: set {option} or the environment variable {PASSWORD_VARIABLE}"
            raise InvalidOptionError(option, None, reason)
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
