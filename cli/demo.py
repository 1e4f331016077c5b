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
from .shared.output import Column, Output, Table

if TYPE_CHECKING:
    from zkgroups.core.migration.plan_rows import PlanRow
    from zkgroups.kafka import Brokers


# A part of the demo: a Kafka client joins a group in ZooKeeper through a gateway, beside a zkgroups member.


_LONGEST: Final = 60.0
_JOIN_POLL: Final = 0.1


def join(output: Output, registry: Registry, brokers: str, group: str, topic: str, draw: Callable[[], None]) -> None:
    """Let a member and a librdkafka consumer share the group. Show the group, and where the consumer reads on."""
    with (
        _gateway(registry, brokers) as address,
        Member(registry.group(group), [topic], id="dora") as member,
        closing(kafka_broker.consumer(address, group, topic)) as consumer,
    ):
        output.line(f"A gateway is running at {address}. It lets Kafka's own clients join groups in ZooKeeper.")
        first = _first_offsets(member, consumer)
        output.line("dora, a zkgroups member, and a librdkafka consumer join the group, and share its partitions.")
        draw()
        read = ", ".join(f"{topic}/{partition} at {offset}" for partition, offset in first.items())
        output.line(f"The consumer reads on where the instances stopped: {read}.")


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


def move(output: Output, registry: Registry, address: str, group: str) -> None:
    """Plan, apply and verify the move. Then show that the mark keeps an instance from registering."""
    from zkgroups.core.migration.plan_rows import Match, Outcome
    from zkgroups.kafka import Brokers
    from zkgroups.migration.apply import apply_groups, verify_groups

    with Brokers.connect(address) as brokers:
        rows = _planned(registry, brokers, address, group)
        output.line(f"The plan for each offset of group {group!r} on its brokers:")
        output.line()
        output.write(OFFSETS, map(plain, rows))
        output.line()
        report = apply_groups(rows, brokers, registry, execute=True)
        written = sum(row.outcome is Outcome.WRITTEN for row in report)
        found = verify_groups(rows, brokers, registry)
        equal = sum(row.match is Match.EQUAL for row in found)
        output.line(f"The plan is applied: {written} offsets are written. Verified: {equal} of {len(found)} are equal.")
    try:
        registry.group(group).instance("anna").register([row.topic for row in rows if row.topic][:1])
    except GroupMigratedError as error:
        output.line(f"anna tries to register again, and is refused: {error}.")


def _planned(registry: Registry, brokers: Brokers, address: str, group: str) -> Sequence[PlanRow]:
    from zkgroups.migration.current_state import read_sources
    from zkgroups.migration.plan import Planner, PlanSettings, SourceNode

    state = read_sources(registry, [group])[group]
    offsets = [
        SourceNode(group=group, target=group, member=False, topic=topic, partition=at, offset=it.offset, zxid=it.zxid)
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


try:
    from zkgroups.spark import SourceOptions, read_snapshot, take_snapshot
    from zkgroups.spark.session import own_session
    from zkgroups.testing import ChildProcess, KafkaBroker, ZooKeeperServer, expire_session, kafka_broker
    from zkgroups.testing.java import downloaded_bytes

    pass
    pass
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
        Column("GROUP", "group"),
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
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
    spark: Any = None
    destination: str = ""
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


def start_server(stage: DemoState) -> None:
    server = stage.stack.enter_context(ZooKeeperServer())
    stage.address = server.address
    stage.say(f"A real ZooKeeper is running at {server.address}.")


def register_topic(stage: DemoState) -> None:
    """Write the znode that a Kafka broker writes for a new topic."""
    topic = {"version": 1, "partitions": {str(at.partition): [0] for at in _PARTITIONS}}
    stage.connect().client.create(f"/brokers/topics/{_TOPIC}", json.dumps(topic).encode(), makepath=True)
    stage.say(f"Topic {_TOPIC!r} has {len(_PARTITIONS)} partitions, registered in ZooKeeper as Kafka does it.")


def register_instances(stage: DemoState) -> None:
    """Register three instances. Each has its own session, as if on three machines."""
    for name in _NAMES:
        registry = stage.registries[name] = stage.connect()
        stage.instances[name] = stage.stack.enter_context(registry.group(_GROUP).instance(name))
        stage.instances[name].register([_TOPIC])
    stage.say(f"Three instances of group {_GROUP!r} have registered: {', '.join(_NAMES)}. They own no partitions yet.")


def claim_all(stage: DemoState) -> None:
    """Claim two partitions for each instance, in one transaction each."""
    for number, name in enumerate(_NAMES):
        stage.claim(name, *_PARTITIONS[2 * number : 2 * number + 2])
    stage.say("Each of them claims two partitions. Now the group is stable.")
    stage.draw()


def be_refused(stage: DemoState) -> None:
    """Try to claim a partition of another instance."""
    try:
        stage.claim("ben", _PARTITIONS[0])
    except ClaimedByOtherError as error:
        stage.say(f"ben tries to claim {error.at} and is refused: {error}.")


def commit(stage: DemoState) -> None:
    """Commit an offset under the claim of each partition."""
    for (_, at), claim in stage.claims.items():
        claim.commit(100 + at.partition)
    stage.say("Each instance commits an offset, the next message to read, for each of its partitions.")


def release(stage: DemoState) -> None:
    """Release a partition. The next owner continues at the committed offset."""
    at = _PARTITIONS[1]
    stage.claims["anna", at].release()
    stage.claim("ben", at)
    start = stage.claims["ben", at].fetch()
    stage.say(f"anna releases {at}. ben claims it, and will continue at offset {start.offset if start else 0}.")
    stage.draw()


def end_session(stage: DemoState) -> None:
    """Expire a session on the server, as after a long pause. Its client does not know yet."""
    expire_session(stage.registries["cleo"].client)
    stage.say("cleo's session expires, as it would after a long pause. Its registration and claims are deleted.")
    stage.draw()


def take_over(stage: DemoState) -> None:
    """Claim the partitions of the expired session for the other instances."""
    stage.claim("anna", _PARTITIONS[4])
    stage.claim("ben", _PARTITIONS[5])
    stage.claims["anna", _PARTITIONS[4]].commit(250)
    stage.say(f"anna claims {_PARTITIONS[4]} and commits 250. ben claims {_PARTITIONS[5]}.")


def commit_late(stage: DemoState) -> None:
    """Try to commit in the expired session, which would undo the commit of the successor."""
    at = _PARTITIONS[4]
    try:
        stage.claims["cleo", at].commit(150)
    except SessionLostError as error:
        now = stage.claims["anna", at].fetch()
        stage.say(f"cleo tries to commit 150 for {at}, and is refused: {error}.")
        stage.say(f"The offset is still {now.offset if now else None}.")
    stage.draw()


def write_snapshot(stage: DemoState) -> None:
    """Take a snapshot with a local Spark."""
    stage.say("Spark starts, which takes some seconds, and writes a snapshot as Parquet.")
    stage.spark = stage.stack.enter_context(own_session())
    stage.destination = stage.stack.enter_context(TemporaryDirectory(prefix="zkgroups-demo-"))
    source = SourceOptions(zookeeper=stage.address, cluster="demo")
    taken = take_snapshot(stage.spark, stage.destination, source)
    stage.say(f"The snapshot has {taken.offsets} offsets, {taken.owners} owners and {taken.members} members.")


def leave(stage: DemoState) -> None:
    """Deregister all instances. Only the offsets remain."""
    for instance in stage.instances.values():
        instance.deregister()
    stage.say("All instances leave. ZooKeeper no longer knows who owned which partition.")


def read_back(stage: DemoState) -> None:
    """Read the snapshot, which still contains the owners."""
    stage.say("The snapshot, read back with Spark, still has the offset and the owner of each partition:")
    rows = read_snapshot(stage.spark, stage.destination).orderBy("topic", "partition").collect()
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


def join_through_gateway(stage: DemoState) -> None:
    """Let one of Kafka's own clients join the group in ZooKeeper."""
    if stage.broker is not None:
        join(stage.output, stage.connect(), stage.broker.address, _GROUP, _TOPIC, stage.draw)


def move_to_kafka(stage: DemoState) -> None:
    """Move the group to Kafka's own offsets."""
    if stage.broker is not None:
        move(stage.output, stage.connect(), stage.broker.address, _GROUP)


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


STEPS: Final[tuple[Callable[[DemoState], None], ...]] = (
    fetch_kafka,
    start_server,
    register_topic,
    register_instances,
    claim_all,
    be_refused,
    commit,
    release,
    end_session,
    take_over,
    commit_late,
    write_snapshot,
    leave,
    read_back,
    start_kafka,
    join_through_gateway,
    move_to_kafka,
)
