"""A part of the demo: a Kafka client joins a group in ZooKeeper through a gateway, beside a zkgroups member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from zkgroups import Member, Registry
from zkgroups.deadline import Deadline
from zkgroups.exceptions import ServerStartError
from zkgroups.testing import kafka_client, ports

from ..shared.output import Output

_LONGEST: Final = 60.0
_POLL: Final = 0.1


def join(output: Output, registry: Registry, brokers: str, group: str, topic: str, draw: Callable[[], None]) -> None:
    """Let a member and a librdkafka consumer share the group. Show the group, and where the consumer reads on."""
    with (
        _gateway(registry, brokers) as address,
        Member(registry.group(group), [topic], id="dora") as member,
        closing(kafka_client.consumer(address, group, topic)) as consumer,
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
        member.next_generation(_POLL)  # it has no work, so it releases partitions at once
        if (message := consumer.poll(_POLL)) is not None and message.error() is None:
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
    from zkgroups.kafka.wire.address import Address
    from zkgroups.kafka.wire.runner import Runner

    with ExitStack() as stack:
        listen, broker = ports.reserve(), ports.reserve()
        stack.callback(listen.release)
        stack.callback(broker.release)
        settings = GatewaySettings(Address(ports.HOST, listen.number), NodePorts(broker.number, broker.number), brokers)
        runner = stack.enter_context(closing(Runner()))
        gateway = Gateway(
            settings,
            coordinator_config(),
            lambda _counts, report: stack.enter_context(ZooKeeperStorage(registry, report)),
        )
        runner.run(gateway.__aenter__())
        stack.callback(lambda: runner.run(gateway.__aexit__()))
        yield str(gateway.address)
