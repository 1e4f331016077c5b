"""`zkgroups demo`: a guided tour on a temporary ZooKeeper server and, if possible, a temporary Kafka broker.

Each step is a function that does one thing and prints a line about it. `STEPS` lists them in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import Claim, Instance, Member, Registry, TopicPartition
from zkgroups.deadline import Deadline
from zkgroups.exceptions import (
    ClaimedByOtherError,
    GroupMigratedError,
    MissingDependencyError,
    ServerStartError,
    SessionLostError,
)
from zkgroups.testing import kafka_broker, local_server

from .groups.describe import DESCRIPTIONS, description_row
from .migrate.tables import OFFSETS, plain
from .shared.global_options import Command
from .shared.messages import status_line
from .shared.options import Format, Options
from .shared.output import GROUP_AT, Column, Output, Table

if TYPE_CHECKING:
    from zkgroups.core.migration.plan_rows import PlanRow
    from zkgroups.kafka import Brokers


try:
    from zkgroups.spark import SourceOptions, read_snapshot, take_snapshot
    from zkgroups.spark.session import own_session
    from zkgroups.testing import ChildProcess, KafkaBroker, ZooKeeperServer, expire_session, kafka_broker
    from zkgroups.testing.java import downloaded_bytes
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        "the demo needs more packages; from the checkout: pip install '.[testing,spark,kafka,consumer]'"
    ) from error

_GROUP: Final = "billing"
_TOPIC: Final = "orders"
_PARTITIONS: Final = [TopicPartition(_TOPIC, number) for number in range(6)]
_NAMES: Final = ("anna", "ben", "cleo")
_MESSAGES: Final = 300
_STALLED_AFTER: Final = 20.0
"""The wait for the download of Kafka ends after this many seconds without a new byte."""
_POLL: Final = 0.5
_SNAPSHOT: Final = Table(
    "offsets",
    key="partition",
    columns=(
        Column("CLUSTER", "cluster"),
        *GROUP_AT,
        Column("OFFSET", "offset", right=True),
        Column("OWNER", "owner"),
    ),
)


@click.command(cls=Command)
@click.pass_obj
def demo(options: Options) -> None:
    """Run a guided tour on a temporary ZooKeeper server.

    Three instances of a group claim partitions and commit offsets. One claim is refused, one partition is released,
    and one session expires. Then Spark takes a snapshot and reads it back. On a temporary Kafka broker, a librdkafka
    consumer joins the group through a gateway. Finally the group moves to the broker. If Kafka is not in the cache, the
    demo downloads it in the background. If the download fails, the demo skips these last two steps. It does not contact
    your servers. At the end it deletes all its files, except the download.

    \b
    Example:
      zkgroups demo
    """
    with ExitStack() as stack:
        stage = DemoState(options, Output(replace(options, output=Format.TABLE)), stack)
        for step in STEPS:
            step(stage)
    stage.say("All sessions are closed. The servers and their data are deleted.")


@dataclass(slots=True)
class DemoState:
    """The state that the steps share."""

    options: Options
    output: Output
    stack: ExitStack
    address: str = ""
    registries: dict[str, Registry] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    claims: dict[tuple[str, TopicPartition], Claim] = field(default_factory=dict)
    download: ChildProcess | None = None
    broker: KafkaBroker | None = None

    def say(self, text: str) -> None:
        """Print a line."""
        self.output.line(text)

    def connect(self) -> Registry:
        """Open a session that is closed at the end of the demo."""
        return self.stack.enter_context(Registry.connect(self.address))

    def claim(self, name: str, *partitions: TopicPartition) -> None:
        """Claim partitions for an instance."""
        for at, claim in self.instances[name].claim_many(partitions).items():
            self.claims[name, at] = claim

    def draw(self) -> None:
        """Print the group like `zkgroups groups describe`."""
        self.output.line()
        group = self.registries["anna"].group(self.instances["anna"].group)
        self.output.write(DESCRIPTIONS, [description_row(group.describe())])
        self.output.line()


def share_a_group(stage: DemoState) -> None:
    """Register three instances, each with its own session, as if on three machines. They claim, and one is refused."""
    stage.address = stage.stack.enter_context(ZooKeeperServer()).address
    stage.say(f"A real ZooKeeper is running at {stage.address}.")
    topic = {"version": 1, "partitions": {str(at.partition): [0] for at in _PARTITIONS}}
    stage.connect().client.create(f"/brokers/topics/{_TOPIC}", json.dumps(topic).encode(), makepath=True)
    stage.say(f"Topic {_TOPIC!r} has {len(_PARTITIONS)} partitions, registered in ZooKeeper as Kafka does it.")
    for name in _NAMES:
        registry = stage.registries[name] = stage.connect()
        stage.instances[name] = stage.stack.enter_context(registry.group(_GROUP).instance(name))
        stage.instances[name].register([_TOPIC])
    stage.say(f"Three instances of group {_GROUP!r} have registered: {', '.join(_NAMES)}. They own no partitions yet.")
    for number, name in enumerate(_NAMES):
        stage.claim(name, *_PARTITIONS[2 * number : 2 * number + 2])
    stage.say("Each of them claims two partitions. Now the group is stable.")
    stage.draw()
    try:
        stage.claim("ben", _PARTITIONS[0])
    except ClaimedByOtherError as error:
        stage.say(f"ben tries to claim {error.at} and is refused: {error}.")


def commit_and_release(stage: DemoState) -> None:
    """Commit an offset under each claim. The next owner of a partition continues there."""
    for (_, at), claim in stage.claims.items():
        claim.commit(100 + at.partition)
    stage.say("Each instance commits an offset, the next message to read, for each of its partitions.")
    at = _PARTITIONS[1]
    stage.claims["anna", at].release()
    stage.claim("ben", at)
    start = stage.claims["ben", at].fetch()
    stage.say(f"anna releases {at}. ben claims it, and will continue at offset {start.offset if start else 0}.")
    stage.draw()


def end_session(stage: DemoState) -> None:
    """Expire a session, as after a long pause. Its late commit would undo that of its successor."""
    expire_session(stage.registries["cleo"].client)
    stage.say("cleo's session expires, as it would after a long pause. Its registration and claims are deleted.")
    stage.draw()
    at = _PARTITIONS[4]
    stage.claim("anna", at)
    stage.claim("ben", _PARTITIONS[5])
    stage.claims["anna", at].commit(250)
    stage.say(f"anna claims {at} and commits 250. ben claims {_PARTITIONS[5]}.")
    try:
        stage.claims["cleo", at].commit(150)
    except SessionLostError as error:
        now = stage.claims["anna", at].fetch()
        stage.say(f"cleo tries to commit 150 for {at}, and is refused: {error}.")
        stage.say(f"The offset is still {now.offset if now else None}.")
    stage.draw()


def snapshot_with_spark(stage: DemoState) -> None:
    """Take a snapshot, and read the owners in it after all instances have left."""
    stage.say("Spark starts, which takes some seconds, and writes a snapshot as Parquet.")
    with own_session() as spark, TemporaryDirectory(prefix="zkgroups-demo-") as destination:
        taken = take_snapshot(spark, destination, SourceOptions(zookeeper=stage.address, cluster="demo"))
        stage.say(f"The snapshot has {taken.offsets} offsets, {taken.owners} owners and {taken.members} members.")
        for instance in stage.instances.values():
            instance.deregister()
        stage.say("All instances leave. ZooKeeper no longer knows who owned which partition.")
        stage.say("The snapshot, read back with Spark, still has the offset and the owner of each partition:")
        rows = read_snapshot(spark, destination).orderBy("topic", "partition").collect()
        stage.output.line()
        stage.output.write(_SNAPSHOT, [row.asDict() for row in rows])
        stage.output.line()


def fetch_kafka(stage: DemoState) -> None:
    """Start the download of Kafka, which takes place during the other steps."""
    folder = stage.stack.enter_context(TemporaryDirectory(prefix="zkgroups-demo-"))
    stage.download = stage.stack.enter_context(kafka_broker.download(kafka_broker.RELEASE, Path(folder)))


def start_kafka(stage: DemoState) -> None:
    """Start a broker whose topic has messages at the committed offsets."""
    try:
        broker = stage.stack.enter_context(_broker(stage))
    except (MissingDependencyError, ServerStartError) as error:
        stage.say(f"The last steps, with Kafka's own clients and offsets, are skipped: {str(error).splitlines()[0]}.")
        return
    stage.broker = broker
    broker.create_topic(_TOPIC, len(_PARTITIONS))
    for at in _PARTITIONS:
        broker.write(_TOPIC, at.partition, _MESSAGES)
    stage.say(f"A real Kafka {broker.release} is running at {broker.address}, without ZooKeeper.")
    stage.say(f"Its topic {_TOPIC!r} has {_MESSAGES} messages in each partition.")


def _broker(stage: DemoState) -> KafkaBroker:
    """Return a broker whose files are downloaded. Raise MissingDependencyError if they cannot be downloaded."""
    if stage.download is None or _await_download(stage.options, stage.download) != 0:
        raise MissingDependencyError("Kafka could not be downloaded")
    return KafkaBroker(release=kafka_broker.RELEASE)


def _await_download(options: Options, download: ChildProcess) -> int:
    """Wait for the download as long as bytes arrive, with progress on a terminal. Return its exit status."""
    if (status := download.wait(_POLL)) is not None:
        return status
    received, stalled = downloaded_bytes(), Deadline(_STALLED_AFTER)
    with status_line(options) as show:
        while (status := download.wait(_POLL)) is None:
            if (now := downloaded_bytes()) != received:
                received, stalled = now, Deadline(_STALLED_AFTER)
            if stalled.passed:
                raise MissingDependencyError(f"the download of Kafka stalled for {_STALLED_AFTER:g} s")
            show(f"downloading Kafka {kafka_broker.RELEASE}: {received / 1e6:.1f} MB")
    return status


# A part of the demo: a Kafka client joins a group in ZooKeeper through a gateway, beside a zkgroups member.


_LONGEST: Final = 60.0
_JOIN_POLL: Final = 0.1


def join_through_gateway(stage: DemoState) -> None:
    """Let a member and a librdkafka consumer share the group. Show the group, and where the consumer reads on."""
    if stage.broker is None:
        return
    registry = stage.connect()
    with (
        _gateway(registry, stage.broker.address) as address,
        Member(registry.group(_GROUP), [_TOPIC], id="dora") as member,
        closing(kafka_broker.consumer(address, _GROUP, _TOPIC)) as consumer,
    ):
        stage.say(f"A gateway is running at {address}. It lets Kafka's own clients join groups in ZooKeeper.")
        first = _first_offsets(member, consumer)
        stage.say("dora, a zkgroups member, and a librdkafka consumer join the group, and share its partitions.")
        stage.draw()
        read = ", ".join(f"{_TOPIC}/{partition} at {offset}" for partition, offset in first.items())
        stage.say(f"The consumer reads on where the instances stopped: {read}.")


def _first_offsets(member: Member, consumer: Any) -> dict[int, int]:
    """Wait until both share the partitions. Return the first offset that the consumer has read from each of its own."""
    deadline = Deadline(_LONGEST)
    first: dict[int, int] = {}
    while not deadline.passed:
        member.next_generation(_JOIN_POLL)  # it has no work, so it releases partitions at once
        if (message := consumer.poll(_JOIN_POLL)) is not None and message.error() is None:
            first.setdefault(message.partition(), message.offset())
        assigned = sorted(each.partition for each in consumer.assignment())
        if len(assigned) == len(member.assignment) > 0 and first.keys() >= set(assigned):
            return {partition: first[partition] for partition in assigned}
    raise ServerStartError("the gateway gave the consumer no partitions")


@contextmanager
def _gateway(registry: Registry, brokers: str) -> Iterator[str]:
    """Run a gateway in this process. Yield its address."""
    from zkgroups.gateway import Gateway, GatewaySettings, NodePorts
    from zkgroups.gateway.zookeeper_storage import ZooKeeperStorage, coordinator_config
    from zkgroups.kafka.wire.cluster import Runner
    from zkgroups.kafka.wire.errors import Address

    with ExitStack() as stack:
        listen, broker = local_server.reserve(), local_server.reserve()
        stack.callback(listen.release)
        stack.callback(broker.release)
        settings = GatewaySettings(
            Address(local_server.HOST, listen.number), NodePorts(broker.number, broker.number), brokers
        )
        runner = stack.enter_context(closing(Runner()))
        gateway = Gateway(
            settings,
            coordinator_config(),
            lambda _counts, report: stack.enter_context(ZooKeeperStorage(registry, report)),
        )
        runner.run(gateway.__aenter__())
        stack.callback(lambda: runner.run(gateway.__aexit__()))
        yield str(gateway.address)


# The last part of the demo: move the group to Kafka's committed offsets, like `zkgroups migrate`, without Spark.


_PLAN: Final = "demo"


def move_to_kafka(stage: DemoState) -> None:
    """Plan, apply and verify the move. Then show that the mark keeps an instance from registering."""
    if stage.broker is None:
        return
    from zkgroups.core.migration.plan_rows import Match, Outcome
    from zkgroups.kafka import Brokers
    from zkgroups.migration.apply import apply_groups, verify_groups

    registry = stage.connect()
    with Brokers.connect(stage.broker.address) as brokers:
        rows = _planned(registry, brokers, stage.broker.address)
        stage.say(f"The plan for each offset of group {_GROUP!r} on its brokers:")
        stage.output.line()
        stage.output.write(OFFSETS, map(plain, rows))
        stage.output.line()
        report = apply_groups(rows, brokers, registry, execute=True)
        written = sum(row.outcome is Outcome.WRITTEN for row in report)
        found = verify_groups(rows, brokers, registry)
        equal = sum(row.match is Match.EQUAL for row in found)
        stage.say(f"The plan is applied: {written} offsets are written. Verified: {equal} of {len(found)} are equal.")
    try:
        registry.group(_GROUP).instance("anna").register([_TOPIC])
    except GroupMigratedError as error:
        stage.say(f"anna tries to register again, and is refused: {error}.")


def _planned(registry: Registry, brokers: Brokers, address: str) -> Sequence[PlanRow]:
    from zkgroups.migration.current_state import read_sources
    from zkgroups.migration.plan import Planner, PlanSettings, SourceNode

    state = read_sources(registry, [_GROUP])[_GROUP]
    offsets = [
        SourceNode(group=_GROUP, target=_GROUP, member=False, topic=topic, partition=at, offset=it.offset, zxid=it.zxid)
        for (topic, at), it in sorted(state.offsets.items(), key=str)
    ]
    settings = PlanSettings(
        plan=_PLAN,
        planned_ms=time.time_ns() // 1_000_000,
        source=_PLAN,
        brokers=address,
        cluster=brokers.cluster_id(),
        retention_seconds=brokers.offsets_retention(),
    )
    return Planner(settings, brokers).plan(offsets)


STEPS: Final[tuple[Callable[[DemoState], None], ...]] = (
    fetch_kafka,
    share_a_group,
    commit_and_release,
    end_session,
    snapshot_with_spark,
    start_kafka,
    join_through_gateway,
    move_to_kafka,
)
