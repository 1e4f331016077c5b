"""Who may do what: logins, TLS, access control lists, and the password of a session."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from ...core.session_lifetime import session_hex
from ...deadline import Deadline
from ...exceptions import InvalidOptionError, MissingDependencyError, NotConnectedError
from ..kazoo_compat.closing import close_client
from ..kazoo_compat.connecting import second_client
from .session import KazooAcls, Session

# The access control lists of new nodes, one for each kind of node.


_LETTERS: Final = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an access control list.

    - `scheme`, `id`: the users, as in ZooKeeper: ("world", "anyone"), ("sasl", "alice"), ("ip", "10.0.0.0/8"), ...
    - `permissions`: letters of `cdrwa`: create, delete, read, write, admin.

    >>> Acl.digest("alice", "secret", "cdrw").permissions
    'cdrw'
    """

    scheme: str
    id: str
    permissions: str = "cdrwa"

    def __post_init__(self) -> None:
        if not self.permissions or not set(self.permissions) <= _LETTERS.keys():
            raise InvalidOptionError("permissions", self.permissions, "it must consist of the letters cdrwa")

    @classmethod
    def digest(cls, user: str, password: str, permissions: str = "cdrwa") -> Acl:
        """Return an entry for the user with this name and password. ZooKeeper stores a hash of both."""
        return cls("digest", make_digest_acl_credential(user, password), permissions)


WORLD: Final = (Acl("world", "anyone"),)


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """The access control lists of new nodes, for `Registry.connect(acl=...)`.

    - `directories`: for the directories of a group.
    - `ephemerals`: for registrations and owners.
    - `offsets`: for committed offsets.

    All are open by default, as those of the old clients. The right to delete a node is a permission on its parent. ACLs
    do not protect an ephemeral node: any client that can connect can end its session.
    """

    directories: Sequence[Acl] = WORLD
    ephemerals: Sequence[Acl] = WORLD
    offsets: Sequence[Acl] = WORLD


def kazoo_acls(policy: AclPolicy) -> KazooAcls:
    """Return a policy in the form that kazoo accepts."""
    return KazooAcls(_to_kazoo(policy.directories), _to_kazoo(policy.ephemerals), _to_kazoo(policy.offsets))


def _to_kazoo(entries: Sequence[Acl]) -> tuple[Any, ...]:
    return tuple(ACL(sum(_LETTERS[p] for p in set(entry.permissions)), Id(entry.scheme, entry.id)) for entry in entries)


# Logins and TLS: the values that users pass, and kazoo's options for them.


@dataclass(frozen=True, slots=True)
class Digest:
    """A user and password for ACLs of ZooKeeper's `digest` scheme, for `Registry.connect(auth=[...])`."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidOptionError("user", self.user, "it must be a name without a colon")


@dataclass(frozen=True, slots=True)
class Sasl:
    """A user and password for SASL DIGEST-MD5, for `Registry.connect(auth=[...])`. Needs the extra `zkgroups[sasl]`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS, for `Registry.connect(tls=...)`.

    - `ca`: the certificates of the authorities to trust; by default those of the system.
    - `certificate`, `key`: the client's certificate and its key, if the server requires one. One file may contain both.
    - `key_password`: the password of the key.
    - `verify_hostname`: False to skip the check of the server's host name.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True


def kazoo_options(auth: Sequence[Digest | Sasl], tls: Tls | None) -> dict[str, Any]:
    """Return kazoo's options for these logins and for TLS."""
    digests = [("digest", f"{entry.user}:{entry.password}") for entry in auth if isinstance(entry, Digest)]
    return {"auth_data": digests, "sasl_options": _sasl_options(auth), **_tls_options(tls)}


def _sasl_options(auth: Sequence[Digest | Sasl]) -> dict[str, str] | None:
    entries = [entry for entry in auth if isinstance(entry, Sasl)]
    if not entries:
        return None
    if len(entries) > 1:
        raise InvalidOptionError("auth", entries, "a connection can have only one SASL identity")
    if importlib.util.find_spec("puresasl") is None:
        raise MissingDependencyError("SASL requires pure-sasl; from the checkout: pip install '.[sasl]'")
    return {"mechanism": "DIGEST-MD5", "username": entries[0].user, "password": entries[0].password}


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    """Return options with files that exist and can be used."""
    if tls is None:
        return {}
    for option, file in (("tls ca", tls.ca), ("tls certificate", tls.certificate), ("tls key", tls.key)):
        if file is not None and not Path(file).is_file():
            raise InvalidOptionError(option, str(file), "the file does not exist")
    if tls.key is not None and tls.certificate is None:
        raise InvalidOptionError("tls key", str(tls.key), "it needs the certificate it belongs to")
    _check_readable(tls)
    return {
        "use_ssl": True,
        "ca": None if tls.ca is None else str(tls.ca),
        "certfile": None if tls.certificate is None else str(tls.certificate),
        # kazoo silently ignores a certificate without a key file; one file may contain both
        "keyfile": None if tls.certificate is None else str(tls.key or tls.certificate),
        "keyfile_password": tls.key_password or "",  # for None, OpenSSL would ask at the terminal
        "check_hostname": tls.verify_hostname,
    }


def _check_readable(tls: Tls) -> None:
    """Raise `InvalidOptionError` for unusable files. kazoo would try them again until the timeout."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    option, file = "tls ca", tls.ca
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        option, file = "tls certificate", tls.certificate
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=tls.key_password or "")
    except OSError as error:  # includes every SSLError
        raise InvalidOptionError(option, str(file), f"it cannot be used: {error.strerror or error}") from error


# The credentials of a session, by which a process can end its own earlier session after a crash.


_PASSWORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """The `session_id` and `password` of a ZooKeeper session: see `Registry.credentials`.

    Any client that has them can resume or end the session, so keep them secret.
    """

    session_id: int
    password: bytes = field(repr=False)

    def dump(self) -> str:
        """Return one line of text. Keep it in a file that only its owner can read.

        >>> SessionCredentials.load(SessionCredentials(17, bytes(16)).dump()).session_id
        17
        """
        return f"{self.session_id:#x}:{self.password.hex()}"

    @classmethod
    def load(cls, text: str) -> Self:
        """Return the credentials from the text that `dump` returned."""
        session_id, _, password = text.strip().partition(":")
        try:
            credentials = cls(int(session_id, 16), bytes.fromhex(password))
        except ValueError as error:
            raise InvalidOptionError("session", text, "it must be a result of SessionCredentials.dump()") from error
        if len(credentials.password) != _PASSWORD_BYTES or not -(2**63) <= credentials.session_id < 2**63:
            raise InvalidOptionError("session", text, "it must be a result of SessionCredentials.dump()")
        return credentials


def end_session(client: Any, earlier: SessionCredentials, timeout: float) -> bool:
    """End an earlier session, with its ephemerals. Return False if it had expired already.

    A second connection resumes the session and closes it. If the session has expired or the password is wrong, the
    server grants the second connection a new session, and only that one is closed.
    """
    second = second_client(client, timeout, client_id=(earlier.session_id, earlier.password))
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(Deadline(timeout)):
            raise NotConnectedError(
                f"could not connect to {session.servers} within {timeout:g} s; "
                f"session {session_hex(earlier.session_id)} was not ended"
            )
        return session.id == earlier.session_id
    finally:
        close_client(second)
