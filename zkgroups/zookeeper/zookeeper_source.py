"""The groups and topics of a ZooKeeper, chosen by expressions, as a value that can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..core.layouts.layout import Layout
from ..core.layouts.legacy import LEGACY
from ..core.layouts.parse_layout import parse_layout
from ..core.selection import Selection, check_expression
from ..input_errors import InvalidOptionError
from .connection_options import ConnectionOptions
from .registry import Registry
from .session.options import check_hosts

MAX_PARALLELISM: Final = 1024


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
        parse_layout(self.layout)
        for option, expression in (("groups", self.groups), ("topics", self.topics)):
            check_expression(option, expression)
        if self.parallelism is not None and not 1 <= self.parallelism <= MAX_PARALLELISM:
            raise InvalidOptionError("parallelism", self.parallelism, f"it must be from 1 to {MAX_PARALLELISM}")

    @property
    def parsed_layout(self) -> Layout:
        """The layout that the text describes."""
        return parse_layout(self.layout)

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
