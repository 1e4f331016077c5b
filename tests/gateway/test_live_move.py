"""A group is moved to the brokers and back while its members work."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from tests.cli.running import interrupt, run, started
from tests.waiting import eventually
from zkgroups import Registry
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.core.znodes.registrations import encode_registration
from zkgroups.core.znodes.values import Dialect, Registration
from zkgroups.kafka import Brokers
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import Address
from zkgroups.migration.live_move import MoveOutcome
from zkgroups.testing import KafkaBroker, local_server
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.session.session import context_of

from . import old_members
from .live_moves import KilledMoves, Load, Sides
from .peers import member, settled
from .running import GatewayProcess, RawClient
from .test_wire import commit_of

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(600)]


Of = Callable[[str], Sides]
MakeTopic = Callable[[int], str]

_numbers = itertools.count()


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture(scope="module")
def killed() -> Iterator[KilledMoves]:
    with KilledMoves() as found:
        yield found


@pytest.fixture
def of(legacy_kafka: KafkaBroker, registry: Registry, killed: KilledMoves) -> Iterator[Of]:
    with Brokers.connect(legacy_kafka.address) as brokers:
        yield lambda group: Sides(legacy_kafka, registry, brokers, killed, group)


@pytest.fixture
def make_topic(legacy_kafka: KafkaBroker) -> MakeTopic:
    """Create a topic with ten messages in each partition. Its name is also that of the group."""

    def make(partitions: int) -> str:
        name = f"live-{next(_numbers)}"
        legacy_kafka.create_topic(name, partitions)
        for partition in range(partitions):
            legacy_kafka.write(name, partition, 10)
        return name

    return make


def test_a_group_is_moved_to_the_brokers_and_back_under_load(
    legacy_kafka: KafkaBroker, of: Of, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    sides = of("live")
    with Load(legacy_kafka, "live", 4, [each.address for each in gateways]) as load:
        assert eventually(lambda: load.is_settled)
        with load.writing():
            assert eventually(lambda: load.written > 10 and len(sides.zookeeper) == 4)
            dry = sides.command("kafka")
            assert (dry.code, sides.route) == (0, "zookeeper"), dry.err
            moved = sides.command("kafka", "--execute")
            assert moved.code == 0, moved.err
            assert (sides.route, sides.is_marked) == ("kafka", True)
            before, now = sides.zookeeper, load.written
            assert eventually(lambda: load.is_settled)
            assert eventually(lambda: min(sides.kafka.values()) > now)
            assert sides.zookeeper == before
            moved = sides.command("zookeeper", "--execute")
            assert moved.code == 0, moved.err
            assert (sides.route, sides.is_marked) == ("zookeeper", False)
            before, now = sides.kafka, load.written
            assert eventually(lambda: load.is_settled)
            assert eventually(lambda: min(sides.zookeeper.values()) > now)
            assert sides.kafka == before
        assert eventually(lambda: load.has_read_all)
        assert set(load.read.values()) == {1}


@pytest.mark.parametrize("to", ["kafka", "zookeeper"])
def test_a_move_that_was_killed_at_any_step_is_undone_or_finished(of: Of, make_topic: MakeTopic, to: str) -> None:
    """The offsets of the side where the group is are never lost, and never go back."""
    sides, back = of(make_topic(2)), "zookeeper" if to == "kafka" else "kafka"
    commit = sides.commit_to_zookeeper if to == "kafka" else sides.commit_to_kafka
    sides.commit_to_zookeeper(1, 1)
    for number, step in enumerate(("BEGUN", "LEFT", "commit" if to == "kafka" else "replace", "COPIED"), 3):
        sides.move(back)
        commit(number, number)
        for again, outcome in ((back, MoveOutcome.UNDONE), (to, MoveOutcome.MOVED)):
            sides.kill(to, step)
            assert (sides.route, sides.is_marked) == (f"moving-to-{to}", True)
            assert getattr(sides, back) == {0: number, 1: number}
            assert sides.move(again) is outcome
            assert eventually(lambda: not sides.is_locked)  # the next move is another one
            assert (sides.route, sides.is_marked) == (again, again == "kafka")
        assert getattr(sides, to) == {0: number, 1: number}


def test_the_command_names_what_it_does_not_move(of: Of, make_topic: MakeTopic) -> None:
    missing = of("live-missing").command("kafka", "--execute")
    assert (missing.code, "live-missing" in missing.err) == (3, True)
    sides = of(make_topic(1))
    sides.commit_to_zookeeper(3)
    assert sides.move("zookeeper") is MoveOutcome.THERE
    unmark = ("migrate", "unmark", sides.group, "-z", sides.broker.zookeeper)
    assert sides.move("kafka") is MoveOutcome.MOVED
    assert sides.move("kafka") is MoveOutcome.THERE
    refused = run(*unmark)
    assert refused.code == 4
    assert f"run `zkgroups migrate switch {sides.group} --to zookeeper`" in refused.err
    assert sides.move("zookeeper") is MoveOutcome.MOVED
    put = marks.put(context_of(sides.registry), {sides.group: sides.group}, plan="p1", state=MarkState.MOVED)
    assert put == {sides.group: None}
    for to in ("kafka", "zookeeper"):
        refused = sides.command(to, "--execute")
        assert refused.code == 4
        assert "by plan p1" in refused.err


def test_a_move_that_is_interrupted_says_how_to_finish_or_undo_it(of: Of, make_topic: MakeTopic) -> None:
    sides = of(make_topic(1))
    sides.commit_to_zookeeper(3)
    client = sides.registry.client
    member = Registration({sides.group: 1}, timestamp=datetime.now(UTC), dialect=Dialect.GATEWAY, client_id="app")
    client.create(f"/consumers/{sides.group}/ids/stays", encode_registration(member), ephemeral=True, makepath=True)
    where = ("-b", sides.broker.address, "-z", sides.broker.zookeeper)
    with started("migrate", "switch", sides.group, "--to", "kafka", "--execute", *where) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"{sides.group}: members leave; clients wait\n"
        interrupt(process)
        assert process.returncode == 130
        assert "run the command again to finish it, or with --to zookeeper to undo it" in process.stderr.read()
    assert sides.route == "moving-to-kafka"
    refused = sides.command("kafka", "--execute", "--wait", "0")
    assert (refused.code, sides.route, sides.is_marked) == (4, "zookeeper", False)
    assert "after 0 s there are still stays" in refused.err


def test_a_group_is_not_moved_while_other_clients_are_registered(of: Of, make_topic: MakeTopic) -> None:
    sides = of(make_topic(2))
    sides.commit_to_zookeeper(3, 4)
    client = sides.registry.client
    old_members.register(client, sides.group, old_members.SCALA, {sides.group: 1})
    for _attempt in range(2):
        refused = sides.command("kafka", "--execute")
        assert refused.code == 4
        assert f"members that cannot move with it are registered: {old_members.SCALA} (scala)" in refused.err
        assert (sides.route, sides.is_marked, sides.kafka) == ("zookeeper", False, {})
        # Also if it has registered after the beginning of the move: then the move is undone.
        client.delete(f"/consumers/{sides.group}/ids/{old_members.SCALA}")
        sides.kill("kafka", "LEFT")
        old_members.register(client, sides.group, old_members.SCALA, {sides.group: 1})


def test_a_group_is_not_moved_back_while_a_member_does_not_come_through_a_gateway(
    legacy_kafka: KafkaBroker, of: Of, make_topic: MakeTopic
) -> None:
    sides = of(make_topic(2))
    sides.commit_to_zookeeper(3, 4)
    assert sides.move("kafka") is MoveOutcome.MOVED
    with member(legacy_kafka.address, sides.group, sides.group) as direct:
        assert settled(direct, shares={2})
        refused = sides.command("zookeeper", "--wait", "1", "--execute")
        assert refused.code == 4
        assert "after 1 s there are still rdkafka-" in refused.err
        assert (sides.route, sides.is_marked) == ("kafka", True)


def test_offsets_do_not_go_back_on_the_other_side(of: Of, make_topic: MakeTopic) -> None:
    sides = of(make_topic(2))
    sides.commit_to_kafka(2, 9)
    sides.commit_to_zookeeper(3, 4)
    refused = sides.command("kafka", "--execute")
    assert refused.code == 4
    assert f"the brokers have higher offsets: {sides.group}/1 (9 > 4)" in refused.err
    assert (sides.route, sides.is_marked, sides.kafka) == ("zookeeper", False, {0: 2, 1: 9})
    sides.commit_to_zookeeper(3, 9)
    assert sides.move("kafka") is MoveOutcome.MOVED
    sides.commit_to_kafka(3, 5)
    refused = sides.command("zookeeper", "--execute")
    assert refused.code == 4
    assert f"ZooKeeper has higher offsets: {sides.group}/1 (9 > 5)" in refused.err
    assert (sides.route, sides.is_marked, sides.zookeeper) == ("kafka", True, {0: 3, 1: 9})


def test_gateways_that_restart_during_a_move_know_where_the_group_is(
    legacy_kafka: KafkaBroker, of: Of, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    sides = of("live-restarts")
    both = ",".join(each.address for each in gateways)

    def restart() -> None:
        for each in gateways:
            each.end()
            each.start()
            each.wait_ready()

    with Load(legacy_kafka, "live-restarts", 2, [both]) as load:
        assert eventually(lambda: load.is_settled)
        with load.writing():
            assert eventually(lambda: sides.zookeeper.get(0, 0) > 3)
            sides.kill("kafka", "COPIED")
            before = sides.zookeeper, sides.kafka
            restart()
            assert (sides.zookeeper, sides.kafka) == before
            assert sides.move("kafka") is MoveOutcome.MOVED
            now = load.written
            assert eventually(lambda: sides.kafka[0] > now)
            restart()
            now = load.written
            assert eventually(lambda: sides.kafka[0] > now)
            assert sides.zookeeper == before[0]
        assert eventually(lambda: load.has_read_all)


def test_a_gateway_that_was_suspended_during_a_move_does_not_forward(
    legacy_kafka: KafkaBroker, of: Of, make_topic: MakeTopic, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """A client has sent it a commit without a member meanwhile. The broker would accept it."""
    sides, suspended = of(make_topic(1)), gateways[0]
    sides.commit_to_zookeeper(1)
    assert sides.move("kafka") is MoveOutcome.MOVED
    commit = commit_of(sides.group, sides.group, "", -1, 5)
    with RawClient(Address(local_server.HOST, suspended.port)) as raw:

        def is_accepted() -> bool:
            return raw.ask(commit, 2).topics[0].partitions[0].error_code == 0

        assert eventually(is_accepted)
        assert sides.kafka == {0: 5}
        suspended.send(signal.SIGSTOP)
        raw.send(commit_of(sides.group, sides.group, "", -1, 7), 2)
        moved = sides.command("zookeeper", "--execute")
        assert moved.code == 0, moved.err
        sides.commit_to_zookeeper(8)
        suspended.send(signal.SIGCONT)
        raw.answer(codec.OFFSET_COMMIT, 2)
        assert sides.kafka == {0: 5}
