"""A Kafka broker on a loopback port: a current release alone, or an old release with ZooKeeper.

    with KafkaBroker() as kafka:
        kafka.create_topic("orders", partitions=3)

    with ZooKeeperServer() as zookeeper, KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka") as kafka:
        ...

The jars are downloaded from Maven Central on first use: see `maven.py`. Tested with 4.3.1 and 1.1.1. A restarted broker
keeps its port and its data. Leaving the `with` block stops it and deletes its data.

`start` returns when groups can be read and written. Without this wait, the first request for a group makes the broker
create its internal topic, and may never be answered.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from zkgroups.exceptions import InvalidOptionError, MissingDependencyError, ServerStartError

from . import maven, ports
from .java import find_java
from .process import ChildProcess

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

RELEASE = "4.3.1"
"""Of a broker for which nothing else is said."""

_MAIN_CLASS = "kafka.Kafka"
_FORMAT_CLASS = "kafka.tools.StorageTool"
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"
# Half of the usual start-up time; the heap only takes what many partitions need.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_CLUSTER_ID = "emtncm91cHMtdGVzdGluZw"  # a UUID, as Kafka writes one
_NODE = "1"
_LISTENERS = ("PLAINTEXT", "CONTROLLER", "SASL")
_PORT_TAKEN = "Address already in use"
_PORT_ATTEMPTS = 5
_POLL = 0.05
# In seconds. A starting broker may not answer a request, so it is sent again.
_PATIENCE = 2.0
_LONGEST = 60.0
_READY_GROUP = "zkgroups-is-the-coordinator-ready"

T = TypeVar("T")


class KafkaBroker:
    """
    A cluster of one broker. With ZooKeeper, brokers with another `broker.id` in their `config` can join it.

    Releases before 3.3 need a ZooKeeper, `host:port/chroot`, and those since 4.0 take none. With `users`, a name and
    a password for each, `sasl_address` is a second address with SASL/PLAIN. `config` adds lines to
    server.properties and overrides the defaults.
    """

    def __init__(
        self,
        *,
        release: str = RELEASE,
        zookeeper: str | None = None,
        users: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        _check_release(release, zookeeper)
        self._release = release
        self._zookeeper = zookeeper
        self._users = dict(users or {})
        self._config = dict(config or {})
        self._data_dir: Path | None = None
        self._reserved: list[ports.ReservedPort] = []
        self._process: ChildProcess | None = None
        self._served = False
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        """The address for clients: `host:port`."""
        return self._listeners()["PLAINTEXT"]

    @property
    def sasl_address(self) -> str:
        """The address for clients that log in: `host:port`."""
        return self._listeners()["SASL"]

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

    @property
    def data_dir(self) -> Path:
        """The folder with the data, the configuration and the log."""
        return _started(self._data_dir)

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return _started(self._process).pid

    @property
    def running(self) -> bool:
        """True while the process exists, also when it is suspended."""
        return self._process is not None and self._process.running

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the broker's log."""
        return _started(self._process).tail(lines)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until all its partitions answer."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = _admin(self.address)
        admin.create_topics([topic], request_timeout=_LONGEST)[name].result()
        self._wait_until(lambda: _answers(admin, name, partitions), f"serve {name!r}", _LONGEST)

    def write(self, topic: str, partition: int, messages: int) -> None:
        """Append this many messages to a partition."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address}, logger=_silent())
        for number in range(messages):
            producer.produce(topic, str(number).encode(), partition=partition)
        if left := producer.flush(_LONGEST):
            raise RuntimeError(f"{left} of {messages} messages were not written to {topic}/{partition}")

    def start(self, *, timeout: float = 60.0) -> Self:
        """Start the server unless it runs, and wait until it serves."""
        try:
            self._start(timeout)
        except BaseException:
            self.kill()
            if not self._served:
                self.close()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker with SIGTERM."""
        if self._process is not None:
            self._process.stop(timeout=30.0)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def suspend(self) -> None:
        """Suspend it: it keeps its connections open but answers nothing."""
        _started(self._process).suspend()

    def resume(self) -> None:
        """Resume a suspended broker."""
        _started(self._process).resume()

    def close(self) -> None:
        """Stop the broker and delete its data."""
        # A forked child that leaves its copy of the `with` block must not stop the parent's broker.
        if os.getpid() != self._owner:
            return
        self.kill()
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None
        self._release_ports()

    def _start(self, timeout: float) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            self._launch(timeout)
            try:
                self._wait_until_serving(timeout)
                break
            except ServerStartError as error:
                # Clients may know the port now, so it must not change.
                if attempt + 1 == _PORT_ATTEMPTS or self._served or _PORT_TAKEN not in str(error):
                    raise
                self.kill()
                self._release_ports()

    def _launch(self, timeout: float) -> None:
        if self.running:
            return
        _check_client()
        jars = os.pathsep.join(map(str, _jars(self._release)))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars]
        self._make_places()
        properties = self._write_properties()
        if self._zookeeper is not None:
            _wait_until_forgotten(self._zookeeper, self._node, timeout)
        elif not (self.data_dir / "data" / "meta.properties").exists():
            self._format([*java, _FORMAT_CLASS, "format", "-t", _CLUSTER_ID, "-c", properties], timeout)
        log = self.data_dir / "server.log"
        self._process = ChildProcess([*java, _MAIN_CLASS, properties], log=log, scratch=self.data_dir)

    @property
    def _node(self) -> str:
        return self._config.get("broker.id", _NODE)

    def _make_places(self) -> None:
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="zkgroups-kafka-"))
        if not self._reserved:
            self._reserved = [ports.reserve() for _ in _LISTENERS]

    def _write_properties(self) -> str:
        path = self.data_dir / "server.properties"
        path.touch(mode=0o600)
        path.write_text(self._properties())
        return str(path)

    def _format(self, command: list[str], timeout: float) -> None:
        """Format the data folder of a broker without ZooKeeper."""
        with ChildProcess(command, log=self.data_dir / "format.log", scratch=self.data_dir) as process:
            if process.wait(timeout) != 0:
                raise ServerStartError(f"{self} could not lay out its folder; the log:\n{process.tail()}")

    def _wait_until_serving(self, timeout: float) -> None:
        admin = _admin(self.address)
        self._wait_until(lambda: _serves(admin), "serve", timeout)
        self._served = True

    def _wait_until(self, done: Callable[[], bool], what: str, timeout: float) -> None:
        process = _started(self._process)
        deadline = time.monotonic() + timeout
        while not done():
            status = process.wait(_POLL)
            if status is not None:
                raise ServerStartError(f"{self} ended with status {status}; the end of its log:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise ServerStartError(f"{self} did not {what} within {timeout:g} s; its log:\n{process.tail()}")

    def _listeners(self) -> dict[str, str]:
        if not self._reserved:
            raise RuntimeError("start the broker first")
        return {name: f"{ports.HOST}:{port.number}" for name, port in zip(_LISTENERS, self._reserved, strict=True)}

    def _properties(self) -> str:
        """Return the text of server.properties."""
        lines = _SMALL | {"log.dirs": str(self.data_dir / "data")}
        lines |= self._at_zookeeper() if self._zookeeper else self._by_itself()
        return "".join(f"{key}={_escape(value)}\n" for key, value in (lines | self._sasl() | self._config).items())

    def _at_zookeeper(self) -> dict[str, str]:
        return {
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": "4000",
            "broker.id": _NODE,
        } | self._listening("PLAINTEXT")

    def _by_itself(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": _NODE,
            # A killed broker stays registered this long.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            "controller.quorum.voters": f"{_NODE}@{self._listeners()['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
        } | self._listening("PLAINTEXT", "CONTROLLER")

    def _listening(self, *names: str) -> dict[str, str]:
        names = (*names, "SASL") if self._users else names
        protocols = {name: "SASL_PLAINTEXT" if name == "SASL" else "PLAINTEXT" for name in names}
        where = {name: f"{name}://{self._listeners()[name]}" for name in names}
        return {
            "listeners": ",".join(where.values()),
            "advertised.listeners": ",".join(at for name, at in where.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _sasl(self) -> dict[str, str]:
        if not self._users:
            return {}
        users = "".join(f" user_{name}={_quote(password)}" for name, password in self._users.items())
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required{users};"
        return {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": login}

    def _release_ports(self) -> None:
        for port in self._reserved:
            port.release()
        self._reserved.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = f"{ports.HOST}:{self._reserved[0].number}" if self._reserved else "(no port yet)"
        return f"<KafkaBroker {self._release} {where}>"


# One replica, few partitions in internal topics, no delays, little memory.
_SMALL = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "65536",
}


def _check_release(release: str, zookeeper: str | None) -> None:
    if not re.fullmatch(r"\d+\.\d+\.\d+", release):
        raise InvalidOptionError("release", release, "it must be a release of Kafka, as 4.3.1")
    if zookeeper is None and _numbers(release) < (3, 3):
        raise InvalidOptionError("release", release, "before 3.3 Kafka needs a ZooKeeper")
    if zookeeper is not None and _numbers(release) >= (4,):
        raise InvalidOptionError("release", release, "since 4.0 Kafka takes no ZooKeeper")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def fetching(release: str, folder: Path) -> ChildProcess:
    """Start a process that downloads what a broker of this release needs. It ends at once if nothing is missing."""
    code = f"from {__name__} import _jars; _jars({release!r})"
    return ChildProcess([sys.executable, "-c", code], log=folder / "fetching.log")


def _jars(release: str) -> tuple[Path, ...]:
    scala = "2.11" if _numbers(release) < (2,) else "2.13"
    return maven.fetch(f"org.apache.kafka:kafka_{scala}:{release}", _LOGGER)


def _check_client() -> None:
    try:
        import confluent_kafka.admin  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError("a broker needs confluent-kafka: pip install 'zkgroups[messages]'") from error


def _admin(address: str) -> AdminClient:
    """Return an admin client that does not log failed connections."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "reconnect.backoff.max.ms": 200}, logger=_silent())


def _silent() -> logging.Logger:
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    return logger


def _serves(admin: AdminClient) -> bool:
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


def _answers(admin: AdminClient, topic: str, partitions: int) -> bool:
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


def _wait_until_forgotten(zookeeper: str, node: str, timeout: float) -> None:
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


def _escape(value: str) -> str:
    """Escape a value for a Java properties file: backslashes, and characters outside of ASCII."""
    letters = (rf"\u{ord(letter):04x}" if ord(letter) > 126 else letter for letter in value.replace("\\", "\\\\"))
    return "".join(letters)


def _quote(password: str) -> str:
    return '"' + password.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _started(value: T | None) -> T:
    """Return the value, or raise an error if the broker was never started."""
    if value is None:
        raise RuntimeError("start the broker first")
    return value
