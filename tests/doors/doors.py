"""An ensemble with three logins. Its groups are only for clients that have logged in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import trustme
from kazoo.client import KazooClient

from tests.testing.test_zookeeper_server import certificate
from zkgroups import Acl, AclPolicy, Digest, Registry, Sasl, Tls
from zkgroups.testing import ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.testing import zookeeper_server as server_side

USER = "alice"
SECRET = 'planted: \\ "sesame"'
LOGINS = ("digest", "sasl", "tls")
ONLY_LOGGED_IN = AclPolicy(*[[Acl("auth", "")]] * 3)
"""New nodes are only for the user that creates them."""
LONGEST = 60.0


class Doors:
    """Three servers, and the options of a client for each login."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        self._client = certificate(authority, "alice@example.org", folder / "client.pem")
        server = certificate(authority, "127.0.0.1", folder / "server.pem")
        self.password_file = folder / "password"
        self.password_file.write_text(SECRET)
        self._stack = ExitStack()
        self._ensemble = ZooKeeperEnsemble(
            tls=server_side.Tls(Path(server), folder / "ca.pem"),
            sasl=server_side.Sasl({USER: SECRET}),
            config={"authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider"},
        )

    @property
    def nodes(self) -> tuple[ZooKeeperServer, ...]:
        return self._ensemble.nodes

    @property
    def plain_address(self) -> str:
        """The address for clients that do not log in."""
        return self._ensemble.address

    def addresses(self, login: str) -> list[str]:
        """The address of each server for clients with this login."""
        return [node.secure_address if login == "tls" else node.address for node in self.nodes]

    def restart(self, node: ZooKeeperServer) -> None:
        """Restart a server, and wait until it has a leader or is one."""
        node.restart(timeout=LONGEST)
        self._ensemble.leader(timeout=LONGEST)

    def connect(self, login: str, hosts: str = "", **more: Any) -> Registry:
        """Connect with this login."""
        options: dict[str, Any] = {
            "digest": {"auth": [Digest(USER, SECRET)]},
            "sasl": {"auth": [Sasl(USER, SECRET)]},
            "tls": {"tls": Tls(ca=self._folder / "ca.pem", certificate=self._client)},
        }[login]
        hosts = hosts or ",".join(self.addresses(login))
        return Registry.connect(hosts, acl=ONLY_LOGGED_IN, timeout=LONGEST, **options, **more)

    @contextmanager
    def stranger(self) -> Iterator[Any]:
        """A client that has not logged in."""
        client = KazooClient(self.plain_address, timeout=LONGEST, command_retry={"max_tries": -1})
        client.start(LONGEST)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def source(self, login: str) -> dict[str, Any]:
        """Return the options of a `ZooKeeperSource` with this login."""
        files = {"tls_ca": str(self._folder / "ca.pem"), "tls_cert": self._client}
        options: dict[str, Any] = {
            "digest": {"digest_user": USER, "password_file": str(self.password_file)},
            "sasl": {"sasl_user": USER, "password_file": str(self.password_file)},
            "tls": {"tls": True, **files},
        }[login]
        return {"zookeeper": ",".join(self.addresses(login)), "timeout": LONGEST, **options}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._ensemble)
        with self.stranger() as client:
            client.ensure_path("/consumers")
            client.ensure_path("/brokers/topics")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
