"""What reads input from outside, with valid samples and the errors that it may raise."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

import click

from cli.shared.global_options import FILE_VARIABLE, Contexts, apply_context
from cli.shared.options import Options
from zkgroups.core.doctor.member_checks import scala_blocker
from zkgroups.core.znodes.paths import GroupPaths, coordinator, mark_path, route_path
from zkgroups.core.znodes.topic_partition import TopicPartition, check_group, check_instance, check_topic
from zkgroups.exceptions import AuthenticationError, DamagedAnswerError, InvalidInputError, ZkgroupsException
from zkgroups.kafka.client_settings import client_settings
from zkgroups.kafka.properties import read_properties
from zkgroups.kafka.wire import login
from zkgroups.kafka.wire.errors import addresses
from zkgroups.kafka.wire.login import Scram
from zkgroups.migration.plan_folder import PLAN, PlanFolder
from zkgroups.storage.files import LocalFiles
from zkgroups.zookeeper.kazoo_compat.requests import ReadBatch
from zkgroups.zookeeper.requests.multiread import listings, plain_offsets, records
from zkgroups.zookeeper.session.connection import check_hosts

from ..datadir import test_hostile as datadir
from ..test_decoders import DECODERS, check
from ..zookeeper.liar import END, listing
from .kafka_targets import kafka_targets

STAT = pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 1, 20, 1)
MOST_NAMES = 20


@dataclass(frozen=True)
class Target:
    """A function that gets damaged samples. `weight` is how many of its cases are run in a round."""

    run: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    errors: tuple[type[BaseException], ...] = field(default=(ZkgroupsException,))
    weight: int = 20


def targets(folder: Path) -> dict[str, Target]:
    """Return all targets. Those that read files write them to this folder."""
    return {
        **{name: _decoder(name) for name in DECODERS},
        **{name: Target(run, samples, errors) for name, (run, samples, errors) in kafka_targets().items()},
        "nodes of MultiRead": Target(
            _nodes, (_answer(4, pack(">i", 2) + b"15" + STAT), _failed()), (DamagedAnswerError,)
        ),
        "names of MultiRead": Target(_names, (_answer(8, listing(["0", "1", "ä"])), _failed()), (DamagedAnswerError,)),
        "answers to a batch of reads": Target(_batch, (BATCH,), ()),
        "subscription for Scala": Target(scala_blocker, (DECODERS["registration"].sample,), ()),
        "names": Target(_checked_names, (b"billing", "ä-_.€".encode(), b"a/../b", b"x" * 300), (InvalidInputError,)),
        "hosts": Target(_text(check_hosts), (b"zk1:2181,zk2:2181/kafka", b"[::1]:2181/a/b"), (InvalidInputError,)),
        "addresses of brokers": Target(
            _text(addresses), (b"kafka1:9093, SSL://[::1]:9094,kafka2",), (InvalidInputError,)
        ),
        "SCRAM": Target(
            _scram,
            (b"r=NONCEabc,s=c2FsdA==,i=4096", b"r=NONCEa,s=YQ==,i=" + b"9" * 5000, b"e=x"),
            (AuthenticationError,),
            weight=2,
        ),
        "token endpoint": Target(_token, (b'{"access_token":"t","expires_in":60}',), (AuthenticationError,)),
        "contexts": Target(_contexts(folder), (CONTEXTS,), (click.UsageError,), weight=5),
        "command-config": Target(_properties(folder), PROPERTIES, (InvalidInputError,), weight=5),
        "plan folder": Target(_plan(folder), PLANS, weight=5),
        "data directory": Target(
            _data_directory(folder), (_joined(datadir.body(*datadir.TREE), *datadir.RECORDS),), (), 2
        ),
    }


def _decoder(name: str) -> Target:
    return Target(lambda data: check(DECODERS[name], data), (DECODERS[name].sample,), ())


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="surrogateescape"))


# ZooKeeper


def _answer(kind: int, body: bytes) -> bytes:
    return 3 * (pack(">i?i", kind, False, 0) + body) + END


def _failed() -> bytes:
    return pack(">i?ii", -1, False, -101, -101) + END


def _nodes(data: bytes) -> None:
    plain_offsets(data, 3)
    assert len([*records(data, 3)]) == 3


def _names(data: bytes) -> None:
    for each in listings(data, 3):
        assert isinstance(each, int) or len(each) <= len(data)


BATCH = b"".join(pack(">iiqi", 22, xid, 7, 0) + b"answer" for xid in (2, 3))


def _batch(data: bytes) -> None:
    """Take answers that have arrived. Those that are damaged are left to kazoo's own way."""
    batch = ReadBatch(4, [b"read"] * 4)
    batch.add(b"the first")
    length, xid = batch.take(data, 2)
    assert 0 <= length <= len(data)
    assert 2 <= xid <= 4


def _checked_names(data: bytes) -> None:
    """A name that is accepted leaves no group."""
    name = data.decode(errors="surrogateescape")
    group, at = GroupPaths(check_group(name)), TopicPartition(check_topic(name), 0)
    inside = f"/consumers/{name}/"
    for path in (group.instance(check_instance(name)), group.owner(at), group.offset(at), group.details_of(at)):
        assert path.startswith(inside), path
        assert os.path.normpath(path) == path
        path.encode()
    for path in (coordinator(name), mark_path(name), route_path(name)):
        assert os.path.normpath(path) == path
        assert Path(path).name == name or name in path


# Brokers


def _scram(data: bytes) -> None:
    """Answer the first message of a login with this one."""
    exchange = Scram("anna", "a s3cret", "SCRAM-SHA-256").exchange("kafka1")
    first = next(exchange)
    nonce = first.rpartition(b"r=")[2]
    exchange.send(data.replace(b"NONCE", nonce))
    try:
        exchange.send(data.replace(b"NONCE", nonce))
    except StopIteration:
        raise AssertionError("a login with a wrong proof of the broker") from None


def _token(data: bytes) -> None:
    token, lifetime = login._read("the endpoint", data)
    assert isinstance(token, str)
    assert lifetime == lifetime


# Files

CONTEXTS = (
    b"[zkgroups]\ncontext = here\n\n[context here]\nzookeeper = zk1:2181/kafka\ntimeout = 7\ntls = true\n"
    b"session_timeout = 30\nbootstrap_server = kafka:9092\nread_only = false\ncommand_config = /etc/kafka\n"
)
_JAAS = b'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b\\"c";'
PROPERTIES = (
    b"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=" + _JAAS + b"\n",
    b"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://x/y\n"
    b'sasl.jaas.config=a.OAuthBearerLoginModule required clientId="a" clientSecret="b" extension_x="y";\n',
    b"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.certificates=-----BEGIN CERTIFICATE----- MIIB "
    b"-----END CERTIFICATE-----\nssl.keystore.type=PEM\nssl.keystore.key=-----BEGIN PRIVATE KEY----- MIIB "
    b"-----END PRIVATE KEY-----\nrequest.timeout.ms=5000\nclient.id=n\\u0061me\\\n  more\n# note\n",
)
PLANS = (
    b'{"rows":3,"files":{"part-0.parquet":4}}',
    b'{"plan":"p","planned_ms":5,"source":"zk1","brokers":"b:1","cluster":"c","retention_seconds":null,"topics":1,'
    b'"rule":"r"}',
    b"3\n",
)


def _contexts(folder: Path) -> Callable[[bytes], object]:
    file = folder / "contexts.ini"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        os.environ[FILE_VARIABLE] = str(file)
        contexts = Contexts()
        for name in contexts.names():
            contexts.get(name)
        apply_context(Options())
        apply_context(Options(context="here"))

    return run


def _properties(folder: Path) -> Callable[[bytes], object]:
    file = folder / "client.properties"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        client_settings(read_properties(file))

    return run


def _plan(folder: Path) -> Callable[[bytes], object]:
    place = folder / "plans"
    (place / PLAN).mkdir(parents=True, exist_ok=True)
    (place / PLAN / "part-0.parquet").write_bytes(b"PAR1")

    def run(data: bytes) -> None:
        files = {"_SUCCESS": PLANS[0], "_CONSTANTS.json": PLANS[1], "_VERSION": PLANS[2]}
        for name, usual in files.items():
            (place / PLAN / name).write_bytes(data if data[:8] == usual[:8] or name == "_CONSTANTS.json" else usual)
        plan = PlanFolder(LocalFiles(), str(place))
        plan.constants()
        plan.check_rows(3)
        plan.plan()

    return run


_PART = b"<<part>>"


def _joined(*parts: bytes) -> bytes:
    return _PART.join(parts)


def _data_directory(folder: Path) -> Callable[[bytes], object]:
    """The first part is a snapshot without its checksum, the others are transactions."""
    place = folder / "data"
    place.mkdir(exist_ok=True)

    def run(data: bytes) -> None:
        snapshot, *records = data.split(_PART)
        datadir.read(datadir.directory(place, datadir.sealed(snapshot), datadir.framed(*records)))

    return run
