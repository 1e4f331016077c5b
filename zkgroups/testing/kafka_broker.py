"""A Kafka broker on a loopback port: a current release alone, or an old release with ZooKeeper.

    with KafkaBroker() as kafka:
        kafka.create_topic("orders", partitions=3)

    with ZooKeeperServer() as zookeeper, KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka") as kafka:
        ...

The jars are downloaded from Maven Central on first use: see `java.py`. Tested with 4.3.1 and 1.1.1. The methods of
all servers, such as `kill` and `suspend`, are in `local_server.py`.

`start` returns when groups can be read and written. Without this wait, the first request for a group makes the broker
create its internal topic, and may never be answered.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..exceptions import InvalidOptionError, MissingDependencyError, ServerStartError
from .child_process import ChildProcess
from .class_archives import archive_options
from .java import fetch, find_java, properties, quoted
from .local_server import LocalServer
from .zookeeper_server import ZooKeeperServer

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient


# Releases of Kafka, and their jars.


RELEASE = "4.3.1"
"""The default release."""

_LOGGER = "org.slf4j:slf4j-simple:1.7.36"


def check_release(release: str, zookeeper: str | None) -> None:
    """Raise an error if the release is unknown, or does not work with or without a ZooKeeper."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of Kafka, such as 4.3.1")
    if zookeeper is None and _numbers(release) < (3, 3):
        raise InvalidOptionError("release", release, "releases before 3.3 need a ZooKeeper: give zookeeper")
    if zookeeper is not None and _numbers(release) >= (4,):
        raise InvalidOptionError("release", release, "releases since 4.0 cannot use a ZooKeeper: leave out zookeeper")


def release_jars(release: str) -> tuple[Path, ...]:
    """Return the class path of a broker of this release, downloaded on first use."""
    scala = "2.11" if _numbers(release) < (2,) else "2.13"
    return fetch(f"org.apache.kafka:kafka_{scala}:{release}", _LOGGER)


def download(release: str, folder: Path) -> ChildProcess:
    """Start a process that downloads the jars of this release. It ends at once if nothing is missing."""
    code = f"from {__name__} import release_jars; release_jars({release!r})"
    return ChildProcess([sys.executable, "-c", code], log=folder / "download.log")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


# The requests to a broker that it needs for its start and for its topics.


# In seconds. A starting broker may not answer a request, so it is sent again.
_PATIENCE = 2.0
_POLL = 0.05
_READY_GROUP = "zkgroups-is-the-coordinator-ready"


def check_client() -> None:
    """Raise an error if there is no client for Kafka."""
    try:
        import confluent_kafka.admin  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "a broker needs confluent-kafka; from the checkout: pip install '.[consumer]'"
        ) from error


def admin_client(address: str) -> AdminClient:
    """Return an admin client that does not log failed connections."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "reconnect.backoff.max.ms": 200}, logger=silent_logger())


def consumer(address: str, group: str, topic: str) -> Consumer:
    """Return a consumer of a group that commits nothing, and notices a rebalance quickly."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": address, "group.id": group, "client.id": "librdkafka"}
    settings |= {"enable.auto.commit": "false", "heartbeat.interval.ms": "500"}
    found = Consumer(settings, logger=silent_logger())
    found.subscribe([topic])
    return found


def silent_logger() -> logging.Logger:
    """Return a logger that writes nothing."""
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    return logger


def serves(admin: AdminClient) -> bool:
    """Return True if the broker knows its topics and answers requests about groups.

    It does not ask for the offsets of a group: librdkafka aborts the process if the broker is not a coordinator yet.
    """
    from confluent_kafka import KafkaException

    try:
        admin.list_topics(timeout=_PATIENCE)
        admin.describe_consumer_groups([_READY_GROUP], request_timeout=_PATIENCE)[_READY_GROUP].result()
    except KafkaException:
        return False
    return True


def answers(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Return True if each partition answers. A known partition may have a leader that does not know it yet."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    try:
        for answer in admin.list_offsets(asked, request_timeout=_PATIENCE).values():
            answer.result()
    except KafkaException:
        return False
    return True


def wait_until_forgotten(zookeeper: str, node: str, timeout: float) -> None:
    """Wait until the session of a killed broker has expired. Its successor cannot register before that."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    hosts, slash, chroot = zookeeper.partition("/")
    registered = f"{slash}{chroot.rstrip('/')}/brokers/ids/{node}"  # a missing chroot causes a warning
    client = KazooClient(hosts)
    deadline = time.monotonic() + timeout
    try:
        client.start(timeout=timeout)
        while client.exists(registered) and time.monotonic() < deadline:
            time.sleep(_POLL)
    except KazooTimeoutError as error:
        raise ServerStartError(f"no ZooKeeper answers at {zookeeper}") from error
    finally:
        client.stop()
        client.close()


# The text of a broker's server.properties.


NODE: Final = "1"
"""The broker's id, unless the configuration says otherwise."""
PLAINTEXT: Final = "PLAINTEXT"
CONTROLLER: Final = "CONTROLLER"
SASL: Final = "SASL"

# One replica, few partitions in internal topics, no delays, little memory.
_SMALL: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    # Tests write messages with old times. The brokers would delete them after some minutes.
    "log.retention.ms": "-1",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "65536",
}
_SESSION_MS = "8000"
"""A killed broker stays registered this long. A machine may stand still for almost as long."""


def server_properties(
    *,
    data_dir: Path,
    listeners: Mapping[str, str],
    zookeeper: str | None,
    users: Mapping[str, str],
    extra: Mapping[str, str],
) -> str:
    """Return the text of server.properties. `listeners` has an address for each name; lines of `extra` come last."""
    names = [PLAINTEXT, *([] if zookeeper else [CONTROLLER]), *([SASL] if users else [])]
    used = {name: listeners[name] for name in names}
    mode = _with_zookeeper(zookeeper) if zookeeper else _without_zookeeper(listeners[CONTROLLER])
    lines = _SMALL | {"log.dirs": str(data_dir / "data")} | mode | _listening(used) | _sasl(users)
    return properties(lines | dict(extra))


def _with_zookeeper(zookeeper: str) -> dict[str, str]:
    return {"zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": _SESSION_MS, "broker.id": NODE}


def _without_zookeeper(controller: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": NODE,
        "broker.session.timeout.ms": _SESSION_MS,
        "broker.heartbeat.interval.ms": "1000",
        # Otherwise an idle broker writes two empty records per second, a third of its CPU time.
        "metadata.max.idle.interval.ms": "0",
        "controller.quorum.voters": f"{NODE}@{controller}",
        "controller.listener.names": CONTROLLER,
    }


def _listening(addresses: Mapping[str, str]) -> dict[str, str]:
    protocols = {name: "SASL_PLAINTEXT" if name == SASL else "PLAINTEXT" for name in addresses}
    where = {name: f"{name}://{address}" for name, address in addresses.items()}
    return {
        "listeners": ",".join(where.values()),
        "advertised.listeners": ",".join(at for name, at in where.items() if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": PLAINTEXT,
    }


def _sasl(users: Mapping[str, str]) -> dict[str, str]:
    if not users:
        return {}
    entries = "".join(f" user_{name}={quoted(password)}" for name, password in users.items())
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required{entries};"
    return {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": login}


_MAIN_CLASS = "kafka.Kafka"
_CONFIGURATION = "server.properties"
_FORMAT_CLASS = "kafka.tools.StorageTool"
# Halves the start-up time; the heap grows this large only for many partitions.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_CLUSTER_ID = "emtncm91cHMtdGVzdGluZw"  # a UUID, as Kafka writes one
_LONGEST = 60.0


class KafkaBroker(LocalServer):
    """
    A cluster of one broker. With ZooKeeper, brokers with another `broker.id` in their `config` can join it.

    Releases before 3.3 need a ZooKeeper, `host:port/chroot`, and those since 4.0 take none. With `users`, a name and
    a password for each, `sasl_address` is a second address with SASL/PLAIN. `config` adds lines to
    server.properties and overrides the defaults.
    """

    _POLL = 0.05
    _STOP_TIMEOUT = 30.0

    def __init__(
        self,
        *,
        release: str = RELEASE,
        zookeeper: str | None = None,
        users: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        check_release(release, zookeeper)
        super().__init__([PLAINTEXT, CONTROLLER, SASL])
        self._release = release
        self._zookeeper = zookeeper
        self._users = dict(users or {})
        self._config = dict(config or {})

    @property
    def address(self) -> str:
        """The address for clients: `host:port`."""
        return self._address(PLAINTEXT)

    @property
    def sasl_address(self) -> str:
        """The address for clients that log in: `host:port`."""
        return self._address(SASL)

    @property
    def zookeeper(self) -> str:
        """The ZooKeeper address of the broker."""
        if self._zookeeper is None:
            raise RuntimeError("this broker needs no ZooKeeper")
        return self._zookeeper

    @property
    def release(self) -> str:
        """The release of Kafka."""
        return self._release

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until all its partitions answer."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = admin_client(self.address)
        admin.create_topics([topic], request_timeout=_LONGEST)[name].result()
        self._wait_until(lambda: answers(admin, name, partitions), f"serve {name!r}", _LONGEST)

    def write(self, topic: str, partition: int, messages: int) -> None:
        """Append this many messages to a partition."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address}, logger=silent_logger())
        for number in range(messages):
            producer.produce(topic, str(number).encode(), partition=partition)
        if left := producer.flush(_LONGEST):
            raise RuntimeError(
                f"{left} of {messages} messages were not written to {topic}/{partition} within {_LONGEST:g} s"
            )

    def _command(self) -> list[str]:
        check_client()
        return [*self._java(), _MAIN_CLASS, str(self._write_secret(_CONFIGURATION, self._properties()))]

    def _prepare(self, timeout: float) -> None:
        if self._zookeeper is not None:
            wait_until_forgotten(self._zookeeper, self._config.get("broker.id", NODE), timeout)
        elif not (self.data_dir / "data" / "meta.properties").exists():
            self._format(timeout)

    def _java(self) -> list[str]:
        java, jars = find_java(), release_jars(self._release)
        options = [*archive_options(java, jars, self._rehearse), *_JVM_OPTIONS, *_LOG_OPTIONS]
        return [str(java), *options, "-cp", os.pathsep.join(map(str, jars))]

    def _rehearse(self, option: str) -> None:
        """See `class_archives.py`."""
        with ExitStack() as stack:
            zookeeper = stack.enter_context(ZooKeeperServer()).address if self._zookeeper else None
            broker = stack.enter_context(_Rehearsal(option, release=self._release, zookeeper=zookeeper))
            broker.create_topic("rehearsal")
            broker.write("rehearsal", 0, 1)
            broker.stop()

    def _properties(self) -> str:
        return server_properties(
            data_dir=self.data_dir,
            listeners={name: self._address(name) for name in self._listeners},
            zookeeper=self._zookeeper,
            users=self._users,
            extra=self._overrides(),
        )

    def _overrides(self) -> Mapping[str, str]:
        """The lines of server.properties that override the defaults. The ports are reserved when this is called."""
        return self._config

    def _format(self, timeout: float) -> None:
        """Format the data folder of a broker without ZooKeeper."""
        configuration = str(self.data_dir / _CONFIGURATION)
        command = [*self._java(), _FORMAT_CLASS, "format", "-t", _CLUSTER_ID, "-c", configuration]
        with ChildProcess(command, log=self.data_dir / "format.log", scratch=self.data_dir) as process:
            if process.wait(timeout) != 0:
                raise ServerStartError(f"{self} could not format its folder; the log:\n{process.tail()}")

    def _probe(self) -> Callable[[], bool]:
        admin = admin_client(self.address)
        return lambda: serves(admin)

    def __repr__(self) -> str:
        return f"<KafkaBroker {self._release} {self.address if self._reserved else '(no port yet)'}>"


class _Rehearsal(KafkaBroker):
    """A broker that writes an archive of its classes while it stops."""

    _STOP_TIMEOUT = 60.0

    def __init__(self, option: str, *, release: str, zookeeper: str | None) -> None:
        super().__init__(release=release, zookeeper=zookeeper)
        self._option = option

    def _command(self) -> list[str]:
        java, *arguments = super()._command()
        return [java, self._option, *arguments]
