"""`zkgroups demo`: what this is about, step by step, on a real ZooKeeper of its own, and on a real Kafka where one is.

Each step is a function that does one thing and says so in a line; `STEPS` has them in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from zkgroups import Claim, Instance, Registry, TopicPartition
from zkgroups.exceptions import ClaimedByOtherError, MissingDependencyError, ServerStartError, SessionLostError
from zkgroups.spark import SourceOptions, read_snapshot, take_snapshot
from zkgroups.spark.session import own_session
from zkgroups.testing import ChildProcess, KafkaBroker, ZooKeeperServer, expire_session
from zkgroups.testing.kafka import RELEASE, fetching

from ..groups.description import DESCRIPTIONS, description_row
from ..shared.command_classes import Command
from ..shared.options import Format, Options
from ..shared.output import Column, Output, Table
from .move_to_kafka import move

_GROUP: Final = "billing"
_TOPIC: Final = "orders"
_PARTITIONS: Final = [TopicPartition(_TOPIC, number) for number in range(6)]
_NAMES: Final = ("anna", "ben", "cleo")
_MESSAGES: Final = 300
_PATIENCE: Final = 10.0
"""In seconds: at the end of the story nobody waits longer for a download."""
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
    """Show what this is about, on a real ZooKeeper of its own.

    Three instances of a group claim partitions and commit offsets; one is refused, one lets go, and the session of one
    ends. Then Spark takes a snapshot, and reads it back. At last the group is moved to a real Kafka, if one can be had:
    what it needs is fetched, where it is not there, as long as the demo runs. Nothing outside is touched, and nothing
    else is left behind.

    \b
    Example:
      zkgroups demo
    """
    with ExitStack() as stack:
        stage = Stage(Output(replace(options, output=Format.TABLE)), stack)
        for step in STEPS:
            step(stage)
    stage.say("All sessions are closed, and the servers are gone with their data.")


@dataclass(slots=True)
class Stage:
    """What the steps share."""

    output: Output
    stack: ExitStack
    address: str = ""
    registries: dict[str, Registry] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    claims: dict[tuple[str, TopicPartition], Claim] = field(default_factory=dict)
    spark: Any = None
    destination: str = ""
    fetching: ChildProcess | None = None

    def say(self, text: str) -> None:
        """One line of the story."""
        self.output.line(text)

    def connect(self) -> Registry:
        """A session of its own, closed when the story ends."""
        return self.stack.enter_context(Registry.connect(self.address))

    def claim(self, name: str, *partitions: TopicPartition) -> None:
        """Let an instance take partitions."""
        for at, claim in self.instances[name].claim_many(partitions).items():
            self.claims[name, at] = claim

    def draw(self) -> None:
        """Show the group as `zkgroups groups describe` does."""
        self.output.line()
        self.output.write(DESCRIPTIONS, [description_row(self.instances["anna"].group.describe())])
        self.output.line()


def start_server(stage: Stage) -> None:
    """A real one, in a process of its own."""
    server = stage.stack.enter_context(ZooKeeperServer())
    stage.address = server.address
    stage.say(f"A real ZooKeeper is running at {server.address}.")


def register_topic(stage: Stage) -> None:
    """What a Kafka broker writes when a topic is made; there is no broker here."""
    topic = {"version": 1, "partitions": {str(at.partition): [0] for at in _PARTITIONS}}
    stage.connect().client.create(f"/brokers/topics/{_TOPIC}", json.dumps(topic).encode(), makepath=True)
    stage.say(f"Topic {_TOPIC!r} has {len(_PARTITIONS)} partitions, registered there as Kafka does it.")


def register_instances(stage: Stage) -> None:
    """Three members, each in a session of its own, as if on three machines."""
    for name in _NAMES:
        registry = stage.registries[name] = stage.connect()
        stage.instances[name] = stage.stack.enter_context(registry.group(_GROUP).instance(name))
        stage.instances[name].register([_TOPIC])
    stage.say(f"Three instances of group {_GROUP!r} have registered: {', '.join(_NAMES)}. Nobody owns anything yet.")


def claim_all(stage: Stage) -> None:
    """Two partitions for each, in one transaction for each."""
    for number, name in enumerate(_NAMES):
        stage.claim(name, *_PARTITIONS[2 * number : 2 * number + 2])
    stage.say("Each of them claims two partitions, and with that the group is stable.")
    stage.draw()


def be_refused(stage: Stage) -> None:
    """What another one owns cannot be claimed."""
    try:
        stage.claim("ben", _PARTITIONS[0])
    except ClaimedByOtherError as error:
        stage.say(f"ben wants {error.at} and is refused: {error}.")


def commit(stage: Stage) -> None:
    """Offsets, each under the claim of its partition."""
    for (_, at), claim in stage.claims.items():
        claim.commit(100 + at.partition)
    stage.say("Everybody commits an offset, which is the next message to read, for each partition.")


def release(stage: Stage) -> None:
    """A partition changes hands in peace: who takes it begins where the other one stopped."""
    at = _PARTITIONS[1]
    stage.claims["anna", at].release()
    stage.claim("ben", at)
    start = stage.claims["ben", at].fetch()
    stage.say(f"anna releases {at}. ben claims it, and will go on at offset {start.offset if start else 0}.")
    stage.draw()


def end_session(stage: Stage) -> None:
    """As for a process that stands still too long: the server has ended its session, and it cannot know yet."""
    expire_session(stage.registries["cleo"].client)
    stage.say("The session of cleo ends, as after too long a pause: its registration and its claims are gone.")
    stage.draw()


def take_over(stage: Stage) -> None:
    """What became free is for the others."""
    stage.claim("anna", _PARTITIONS[4])
    stage.claim("ben", _PARTITIONS[5])
    stage.claims["anna", _PARTITIONS[4]].commit(250)
    stage.say(f"anna takes {_PARTITIONS[4]} and commits 250. ben takes {_PARTITIONS[5]}.")


def commit_late(stage: Stage) -> None:
    """The one that slept wakes up, and must not undo what its successor has done."""
    at = _PARTITIONS[4]
    try:
        stage.claims["cleo", at].commit(150)
    except SessionLostError as error:
        now = stage.claims["anna", at].fetch()
        stage.say(f"cleo wakes up, commits 150 for {at}, and is refused: {error}.")
        stage.say(f"The offset is still {now.offset if now else None}.")
    stage.draw()


def write_snapshot(stage: Stage) -> None:
    """What is registered at this moment, written down by a Spark of our own."""
    stage.say("Spark is started, which takes some seconds, and writes a snapshot to Parquet.")
    stage.spark = stage.stack.enter_context(own_session())
    stage.destination = stage.stack.enter_context(TemporaryDirectory(prefix="zkgroups-demo-"))
    source = SourceOptions(zookeeper=stage.address, cluster="demo")
    taken = take_snapshot(stage.spark, stage.destination, source)
    stage.say(f"It has {taken.offsets} offsets, {taken.owners} owners and {taken.members} members.")


def leave(stage: Stage) -> None:
    """Only offsets are left."""
    for instance in stage.instances.values():
        instance.deregister()
    stage.say("Everybody leaves: who held a partition is nowhere in ZooKeeper any more.")


def read_back(stage: Stage) -> None:
    """The members are gone, and what they were is still known."""
    stage.say("The snapshot, read back with Spark, still knows what each partition's offset was, and who held it:")
    rows = read_snapshot(stage.spark, stage.destination).orderBy("topic", "partition").collect()
    stage.output.line()
    stage.output.write(_SNAPSHOT, [row.asDict() for row in rows])
    stage.output.line()


def fetch_kafka(stage: Stage) -> None:
    """What a broker needs may not be there; it may come while all the rest is shown."""
    folder = stage.stack.enter_context(TemporaryDirectory(prefix="zkgroups-demo-"))
    stage.fetching = stage.stack.enter_context(fetching(RELEASE, Path(folder)))


def move_to_kafka(stage: Stage) -> None:
    """The end of the story: the group is moved to Kafka's own offsets."""
    try:
        broker = stage.stack.enter_context(_broker(stage))
    except (MissingDependencyError, ServerStartError) as error:
        stage.say(f"No Kafka can be had here ({str(error).splitlines()[0]}): so nothing is moved to one.")
        return
    broker.create_topic(_TOPIC, len(_PARTITIONS))
    for at in _PARTITIONS:
        broker.write(_TOPIC, at.partition, _MESSAGES)
    stage.say(f"A real Kafka {broker.release} is running at {broker.address}, which needs no ZooKeeper.")
    stage.say(f"Its topic {_TOPIC!r} has {_MESSAGES} messages in each partition.")
    move(stage.output, stage.connect(), broker.address, _GROUP)


def _broker(stage: Stage) -> KafkaBroker:
    """One that can be started."""
    if stage.fetching is None or stage.fetching.wait(_PATIENCE) != 0:
        raise MissingDependencyError("what it needs could not be fetched in time")
    return KafkaBroker(release=RELEASE)


STEPS: Final[tuple[Callable[[Stage], None], ...]] = (
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
    move_to_kafka,
)
