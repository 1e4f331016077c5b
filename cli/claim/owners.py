"""`zkgroups owners`: the owners of partitions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeGuard

import click

from zkgroups import (
    ForbiddenNode,
    GroupDescription,
    GroupState,
    MalformedNode,
    Owner,
    TopicPartition,
    UnevaluableRegistration,
    UnreadableNode,
)
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.topic_partition import is_topic, parse_partition
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError

from ..shared.arguments import (
    ChosenPartitions,
    chosen_groups,
    group_argument,
    groups_then_topic_argument,
    instance_option,
    is_chosen,
    matching_option,
    partitions_arguments,
    session_option,
    topics_option,
)
from ..shared.connect import connected
from ..shared.errors import Tally, or_say
from ..shared.global_options import Command, Group, as_typed
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import GROUP_AT, Column, Output, Row, Table

OWNERS: Final = Table(
    "owners",
    key="owner",
    columns=(
        *GROUP_AT,
        Column("OWNER", "owner"),
        Column("SESSION", "session"),
        Column("SINCE", "claimed_ms", show=utc),
        Column("STATE", "state", styles={"orphan": "red", "dead": "red", "malformed": "red"}),
        Column("PATH", "path", wide=True),
        Column("REASON", "reason", wide=True),
        Column("RELEASE", "release", wide=True),
    ),
)


@click.group(cls=Group)
def owners() -> None:
    """List the owners of partitions.

    \b
    Example:
      zkgroups -z zk1:2181/kafka owners list billing
    """


@owners.command("list")
@groups_then_topic_argument
@matching_option
@topics_option
@click.pass_obj
def list_owners(
    options: Options, names: tuple[str, ...], matching: re.Pattern[str] | None, topics: ChosenPartitions | None
) -> None:
    """List the owners of partitions in the chosen groups, or in all groups.

    The state is "live" if the owner is a registered instance, "orphan" if it is not registered or registered in another
    session, "dead" if the owner node belongs to no session, so no client is behind it, and "malformed" if it cannot be
    read. `zkgroups doctor --repair` says whether a dead one can be deleted. With -o wide, the column RELEASE has the
    command that takes the partition away.

    \b
    Example:
      zkgroups -z zk1:2181/kafka owners list
      zkgroups -z zk1:2181/kafka owners list billing --topic orders:0,1 -o wide
      zkgroups -z zk1:2181/kafka owners list --groups 'bill.*' -o jsonl
    """
    tally = Tally()
    with connected(options) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else None
        found = _owners(registry.describe(chosen), names, topics, tally)
        rows = (_row(options, *each) for each in found)
        Output(options).write(OWNERS, or_say(options, rows, tally, "There are no owners."))
    tally.finish()


_OwnerOfGroup = tuple[GroupDescription, Owner | UnreadableNode]


def _owners(
    groups: Iterable[GroupDescription], named: Collection[str], topics: ChosenPartitions | None, tally: Tally
) -> Iterator[_OwnerOfGroup]:
    """Yield the owners of all groups. A named group that does not exist is an error."""
    for group in groups:
        with tally.attempt():
            if group.state is GroupState.DEAD and group.group in named:
                raise GroupNotFoundError(group.group)
            yield from ((group, owner) for owner in _owners_of(group, topics))
            if hidden := [node for node in _malformed(group) if isinstance(node, ForbiddenNode)]:
                raise NoPermissionError(hidden[0].path)


def _owners_of(group: GroupDescription, topics: ChosenPartitions | None) -> Iterator[Owner | UnreadableNode]:
    """Yield the owners in order, then the unreadable owner nodes."""
    for partition in group.partitions:
        if is_chosen(partition.at, topics):
            yield from partition.owners
    for node in _malformed(group):
        if topics is None or _may_be_chosen(*_place(group.group, node.path), topics):
            yield node


def _malformed(group: GroupDescription) -> list[UnreadableNode]:
    below = f"{GroupPaths(group.group).owners}/"
    return [node for node in group.unreadable if f"{node.path}/".startswith(below)]


def _place(group: str, path: str) -> tuple[str | None, int | None]:
    """Return the topic and the partition of a path, as far as it contains them."""
    topic, _, name = path.removeprefix(GroupPaths(group).owners).removeprefix("/").partition("/")
    return topic or None, parse_partition(name)


def _may_be_chosen(topic: str | None, partition: int | None, topics: ChosenPartitions) -> bool:
    if topic is None or not is_topic(topic):
        return False
    return topic in topics if partition is None else is_chosen(TopicPartition(topic, partition), topics)


def _row(options: Options, group: GroupDescription, found: Owner | UnreadableNode) -> Row:
    session = None if isinstance(found, ForbiddenNode) or not found.session else session_hex(found.session)
    if isinstance(found, UnreadableNode):
        topic, partition = _place(group.group, found.path)
        place = {"group": group.group, "topic": topic, "partition": partition}
        dead = found.data.decode(errors="backslashreplace") if _is_dead(found) else None
        return place | {
            "owner": dead,
            "session": session,
            "claimed_ms": None,
            "state": "malformed" if dead is None else "dead",
            "path": found.path,
            "reason": found.reason,
            "release": None,
        }
    return {
        "group": group.group,
        "topic": found.at.topic,
        "partition": found.at.partition,
        "owner": found.id,
        "session": session,
        "claimed_ms": to_ms(found.claimed_at),
        "state": "orphan" if found in group.orphans else "live",
        "path": found.path,
        "reason": _reason(group, found),
        "release": _release(options, group.group, found),
    }


def _is_dead(found: UnreadableNode) -> TypeGuard[MalformedNode]:
    """Return whether an owner node belongs to no session. Such nodes are not owners, whatever they contain."""
    return isinstance(found, MalformedNode) and not found.session


def _reason(group: GroupDescription, owner: Owner) -> str | None:
    """Explain why it is unknown whether the owner subscribes to the topic; None if it is known."""
    for instance in group.instances:
        unevaluable = isinstance(instance.registration, UnevaluableRegistration)
        if unevaluable and instance.session == owner.session and owner.instance({instance.id}) is not None:
            return f"the subscription of {instance.id!r} cannot be evaluated"
    return None


def _release(options: Options, group: str, owner: Owner) -> str:
    """Return the command line that takes the partition away, quoted for a shell."""
    expected = [f"--expect-owner={owner.id}", f"--expect-session={session_hex(owner.session)}"]
    place = [group, owner.at.topic, str(owner.at.partition)]
    if any(name.startswith("-") for name in place):
        place = ["--", *place]
    return shlex.join(["zkgroups", *as_typed(options), "release", *expected, *place])


# `zkgroups release`: take partitions away from their owner.


@click.command(cls=Command)
@group_argument
@partitions_arguments
@instance_option("--expect-owner", "owner", required=True, help="The owner that the partitions must have.")
@session_option("--expect-session", help="The session that the owner must have.")
@click.option("--rebalance", is_flag=True, help="Then make all members rebalance, so that they take the partitions.")
@click.pass_obj
def release(
    options: Options,
    group: str,
    partitions: list[TopicPartition],
    owner: str,
    session: int | None,
    rebalance: bool,
) -> None:
    """Take partitions away from an owner that does not release them. This command has no dry run.

    A partition with another owner than the expected one is left unchanged. If the owner uses zkgroups, its next commit
    for the partition is refused. Other clients do not notice the release and continue, so stop them first. `zkgroups
    owners list -o wide` prints this command for each owner.

    zkgroups members take a free partition at once. Scala members take it in their next rebalance, which --rebalance
    triggers. An owner that is still registered keeps its share: to take all partitions of a stuck member, use
    `zkgroups members evict`.

    \b
    Example:
      zkgroups -z zk1:2181/kafka release billing orders 0 --expect-owner anna --rebalance
    """
    tally, released_any = Tally(), False
    with connected(options, writes=True) as registry:
        for at in partitions:
            with tally.attempt():
                released = registry.group(group).release(at, expected_owner=owner, expected_session=session)
                say(options, f"released {at}, which was claimed by {released.holder}")
                released_any = True
        if rebalance and released_any:
            registry.group(group).trigger_rebalance()
    tally.finish()
