"""Groups in ZooKeeper, as Kafka's tools show them.

Each registered instance is a member. Its client id is the name of its client (`scala`, `kazoo-go`, `pykafka` or
`zkgroups`), its host is the one in its id, and its assignment is the partitions that it owns. A member of another
gateway is shown with the client id and the host of its Kafka client. An instance whose registration cannot be read has
no client id and no subscription. The states have the same names as Kafka's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from ...coordinator.storage.work import StoredGroup
from ...coordinator.values.answers import DescribedMember
from ...coordinator.values.consumer_protocol import CONSUMER, Subscription, encode_assignment, encode_subscription
from ...core.rebalance.shared_plan import agreed_strategy
from ...core.znodes.describe_group import describe
from ...core.znodes.group_description import InstanceDescription
from ...core.znodes.group_view import GroupView
from ...core.znodes.instance_host import host_of_instance
from ...core.znodes.names import check_group
from ...core.znodes.states import GroupState, InstanceState
from ...core.znodes.subscribed_topics import subscribed_topics
from ...core.znodes.values import Registration
from ...exceptions import InvalidNameError
from ...zookeeper.reading.group_reader import read_groups
from ...zookeeper.session.registry_context import RegistryContext

_NOT_MEMBERS: Final = (InstanceState.DEAD, InstanceState.LEAVING)


def stored_groups(
    context: RegistryContext, groups: Iterable[str], own: Mapping[str, Container[str]]
) -> dict[str, StoredGroup]:
    """Describe the groups that exist, without this gateway's members. `own` has the ids of these members by group."""
    views = read_groups(context, filter(_is_group, groups), with_offsets=False)
    return {view.group: stored_group(view, own.get(view.group, ())) for view in views if view.exists}


def _is_group(name: str) -> bool:
    try:
        check_group(name)
    except InvalidNameError:
        return False
    return True


def stored_group(view: GroupView, own: Container[str] = ()) -> StoredGroup:
    """Describe one group, without the members in `own`."""
    description = describe(view)
    registered = {each.id: each.registration for each in view.living if isinstance(each.registration, Registration)}
    members = tuple(_members(view, description.instances, own))
    protocol = agreed_strategy(registered) if description.state is GroupState.STABLE else ""
    return StoredGroup(description.state, CONSUMER, protocol, members)


def _members(
    view: GroupView, instances: Iterable[InstanceDescription], own: Container[str]
) -> Iterator[DescribedMember]:
    for instance in instances:
        if instance.state in _NOT_MEMBERS or instance.id in own:
            continue
        assignment = encode_assignment(instance.owned)
        if not isinstance(registration := instance.registration, Registration):
            yield DescribedMember(instance.id, None, "", _host(view.group, instance.id), b"", assignment)
            continue
        topics = subscribed_topics(registration, view.partitions)
        yield DescribedMember(
            instance.id,
            None,
            registration.client_id or str(registration.dialect),
            registration.client_host or _host(view.group, instance.id),
            encode_subscription(Subscription(frozenset(topics))),
            assignment,
        )


def _host(group: str, id: str) -> str:
    """Return the host of an instance as Kafka shows it, with a slash before an address that was not looked up."""
    host = host_of_instance(group, id)
    return "" if host is None else f"/{host}"
