"""A Kafka broker on a loopback port: a current release alone, or an old release with ZooKeeper.

    with KafkaBroker() as kafka:
        kafka.create_topic("orders", partitions=3)

    with ZooKeeperServer() as zookeeper, KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka") as kafka:
        ...

The jars are downloaded from Maven Central on first use: see `maven.py`. Tested with 4.3.1 and 1.1.1. The methods of
all servers, such as `kill` and `suspend`, are in `local_server.py`.

`start` returns when groups can be read and written. Without this wait, the first request for a group makes the broker
create its internal topic, and may never be answered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from zkgroups.exceptions import ServerStartError

from .child_process import ChildProcess
from .class_archives import archive_options
from .java import find_java
from .kafka_client import admin_client, answers, check_client, serves, silent_logger, wait_until_forgotten
from .kafka_configuration import CONTROLLER, NODE, PLAINTEXT, SASL, server_properties
from .kafka_releases import RELEASE, check_release, release_jars
from .local_server import LocalServer
from .zookeeper_server import ZooKeeperServer

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
