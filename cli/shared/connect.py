"""Open the registry of the global options.

Secrets come from a file, the environment or a prompt, never from the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import Registry
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.deadline import uptime
from zkgroups.exceptions import (
    AccessError,
    GroupNotFoundError,
    InvalidInputError,
    NoPermissionError,
    RefusedError,
    UnreachableError,
    ZkgroupsException,
)
from zkgroups.zookeeper.zookeeper_source import PASSWORD_VARIABLE, ConnectionOptions

from .errors import REGISTRY, Tally, add_hint, sentence
from .options import Options
from .parameter_types import usage_error

if TYPE_CHECKING:
    from zkgroups.core.layouts.layout import Layout
    from zkgroups.kafka import Brokers


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
        context = click.get_current_context(silent=True)
        if context is not None:
            context.meta[REGISTRY] = partial(registry.groups, layout)
        try:
            yield registry
        except (GroupNotFoundError, NoPermissionError) as error:
            add_hint(error)
            raise


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
        error.add_note("use --timeout DURATION to wait for a server that is starting")
        raise


def address(options: Options) -> str:
    """Return the address of ZooKeeper."""
    if options.zookeeper is None:
        raise usage_error("the address of ZooKeeper is missing: give -z HOST:PORT/CHROOT, or set ZKGROUPS_ZOOKEEPER")
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


# Connect to the Kafka brokers of the global options, and go on without them where ZooKeeper has something to show.


_PAUSE: Final = 10.0
"""In seconds: how long brokers that did not answer are not asked again."""
LAG_UNKNOWN: Final = "log ends and lag are unknown"
"""The beginning of the message without brokers."""


@contextmanager
def brokers(options: Options, *, what_for: str = "this", patient: bool = False) -> Iterator[Brokers]:
    """Connect to the brokers of the options. Without any, the error says that `what_for` needs them.

    Unless `--timeout` is given, brokers that refuse connections are not waited for. A long command is `patient`.
    """
    if options.bootstrap_server is None:
        raise missing_brokers(what_for)
    from zkgroups.kafka import Brokers, read_properties

    properties = read_properties(options.command_config) if options.command_config else {}
    limit = None if patient or "timeout" in options.given else UNREACHABLE_TIMEOUT
    with Brokers.connect(
        options.bootstrap_server, properties=properties, timeout=options.timeout, unreachable_timeout=limit
    ) as found:
        try:
            yield found
        except UnreachableError as error:
            if not getattr(error, "__notes__", None):  # one about ZooKeeper has a note
                error.add_note("use --timeout DURATION to wait for brokers that are starting")
            raise


@contextmanager
def connected_with_topics(
    options: Options, *, writes: bool = False, report: Callable[[str], object] = lambda _error: None
) -> Iterator[Registry]:
    """Connect to the registry for a command that needs the partitions of topics: see `find_topics`.

    `report` gets the error if no broker answers, for a command that asks them nothing else.
    """
    with connected(options, writes=writes) as registry, ExitStack() as stack:
        if options.bootstrap_server is not None:
            find_topics(registry, stack.enter_context(brokers(options)), report)
        yield registry


def find_topics(registry: Registry, found: Brokers, report: Callable[[str], object] = lambda _error: None) -> None:
    """If no broker is registered in ZooKeeper, ask these for topics: brokers in KRaft mode are not registered."""
    with suppress(AccessError):
        if not registry.brokers():
            registry.read_topics_from(_TopicsOfBrokers(found, report))


class _TopicsOfBrokers:
    """Asks brokers for topics. While they do not answer, it returns what they answered before, or ZooKeeper is read."""

    def __init__(self, found: Brokers, report: Callable[[str], object]) -> None:
        self._brokers = found
        self._report = report
        self._known: dict[str, Collection[int] | None] | None = None
        self._failed_at: float | None = None

    def __call__(self, topics: Collection[str] | None) -> Mapping[str, Collection[int] | None] | None:
        if topics is not None and not topics:
            return None if self._known is None and self._failed_at is not None else {}
        if self._failed_at is None or uptime() > self._failed_at + _PAUSE:
            try:
                found = self._ask(topics)
            except ZkgroupsException as error:
                if self._failed_at is None:
                    self._report(f"partitions are unknown or out of date: {sentence(error)}")
                self._failed_at = uptime()
            else:
                self._failed_at = None
                self._known = (self._known or {}) | found
                return found
        known = self._known
        return None if known is None else {name: known[name] for name in (topics or known) if name in known}

    def _ask(self, topics: Collection[str] | None) -> dict[str, Collection[int] | None]:
        partitions = self._brokers.partitions(topics)
        hidden = self._brokers.hidden_topics(set(topics or ()) - partitions.keys())
        return {**partitions, **dict.fromkeys(hidden)}


def brokers_for_workers(options: Options) -> dict[str, Any]:
    """Return the brokers of the options, if any, as options of a table. They contain no secret."""
    if options.bootstrap_server is None:
        return {}
    file = options.command_config
    config = {} if file is None else {"command_config": str(file.absolute())}
    return {"bootstrap_servers": options.bootstrap_server, **config}


@contextmanager
def reported_as(missing: str, tally: Tally) -> Iterator[None]:
    """Ask the brokers in this block. If they do not answer, report what is `missing`, and count a failed step.

    The command goes on, and shows what ZooKeeper holds. Only a wrong option ends it.
    """
    try:
        yield
    except InvalidInputError:
        raise
    except ZkgroupsException as error:
        tally.missed(error, f"{missing}: {sentence(error)}")


def missing_brokers(what_for: str, *, other: str | None = None) -> click.UsageError:
    """Return the error for a command line without brokers. `other` is an option with which it needs none."""
    return usage_error(
        f"{what_for} needs the Kafka brokers: give -b HOST:PORT, or {other or 'set ZKGROUPS_BOOTSTRAP_SERVER'}"
    )
