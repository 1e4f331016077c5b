"""Members of a group that speak Kafka's protocol and nothing else, so that many fit into one process."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Self

from zkgroups.coordinator import decode_assignment, encode_assignment
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import addresses

REBALANCE_IN_PROGRESS = 27
_JOIN, _SYNC, _HEARTBEAT, _COMMIT = 3, 2, 2, 7
_TIMEOUT_MS = 60_000


class GroupClient:
    """One member, on a connection of its own. It changes its subscription whenever it is asked to begin a rebalance."""

    def __init__(self, group: str, topic: str) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.id = ""
        self._group, self._topic = group, topic
        self._generation = -1
        self._round = 0

    async def connect(self, address: str) -> Self:
        [at] = addresses(address)
        self._reader, self._writer = await asyncio.open_connection(*at, limit=2**22)
        return self

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def join(self, shares: Mapping[str, bytes], *, changed: bool = False) -> None:
        """Join, and get partitions. If this member becomes the leader, it gives these shares to all members."""
        self._round += changed
        protocol = codec.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=self._subscription())
        joined = await self.ask(
            codec.JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=_TIMEOUT_MS,
                rebalance_timeout_ms=_TIMEOUT_MS,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            _JOIN,
        )
        assert joined.error_code == 0, joined
        self.id, self._generation = joined.member_id, joined.generation_id
        kind = codec.SyncGroupRequest.SyncGroupRequestAssignment
        leads = joined.leader == self.id
        synced = await self.ask(
            codec.SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self.id,
                assignments=[kind(member_id=id, assignment=share) for id, share in shares.items()] if leads else [],
            ),
            _SYNC,
        )
        if synced.error_code == REBALANCE_IN_PROGRESS:  # others came later
            await self.join(shares)
        else:
            assert synced.error_code == 0, synced
            self.assigned = decode_assignment(synced.assignment) or frozenset()

    async def heartbeat(self) -> int:
        request = codec.HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self.id)
        return int((await self.ask(request, _HEARTBEAT)).error_code)

    async def commit(self, offset: int) -> None:
        """Commit this offset for all partitions that are assigned."""
        topic = codec.OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition
        partitions = [
            partition(partition_index=at.partition, committed_offset=offset, committed_metadata="")
            for at in self.assigned
        ]
        answer = await self.ask(
            codec.OffsetCommitRequest(
                group_id=self._group,
                generation_id_or_member_epoch=self._generation,
                member_id=self.id,
                topics=[topic(name=self._topic, partitions=partitions)],
            ),
            _COMMIT,
        )
        assert {each.error_code for each in answer.topics[0].partitions} == {0}, answer

    async def ask(self, message: Any, version: int) -> Any:
        self._writer.write(codec.encode(message, version, 1, "bench"))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return codec.decode_answer(message.API_KEY, version, await self._reader.readexactly(size))

    def _subscription(self) -> bytes:
        topic = self._topic.encode()
        return struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">ii", 4, self._round)


async def everybody_joins(members: Sequence[GroupClient], topic: str, partitions: int) -> None:
    """Let the first member begin a rebalance. Return when all have their shares again."""
    shares = _shares(members, topic, partitions)
    first = asyncio.create_task(members[0].join(shares, changed=True))
    while await members[1].heartbeat() != REBALANCE_IN_PROGRESS:
        pass
    await asyncio.gather(first, *(each.join(shares) for each in members[1:]))


async def first_generation(members: Sequence[GroupClient], topic: str, partitions: int) -> None:
    """Let all members join a new group, and then once more: only then do they know the names of all."""
    await asyncio.gather(*(each.join({}) for each in members))
    await everybody_joins(members, topic, partitions)


def all_are_assigned(members: Sequence[GroupClient], partitions: int) -> bool:
    """Whether each partition belongs to one member."""
    found = [at for each in members for at in each.assigned]
    return len(found) == len(set(found)) == partitions


def _shares(members: Sequence[GroupClient], topic: str, partitions: int) -> dict[str, bytes]:
    names = sorted(each.id for each in members)
    return {
        id: encode_assignment(TopicPartition(topic, number) for number in range(place, partitions, len(names)))
        for place, id in enumerate(names)
    }
