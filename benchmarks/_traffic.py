"""The traffic of a ZooKeeper with old consumers, brokers and members of zkgroups, written quickly.

Of 100 transactions, about 60 are commits of old clients, 10 are fenced commits of zkgroups, 28 are changes of the state
of a broker's partition, and 2 are claims, releases, registrations and sessions.
"""

from __future__ import annotations

import random
from struct import pack

from benchmarks._bare import BareClient

CREATE, DELETE, SET_DATA, CHECK, MULTI = 1, 2, 5, 13, 14
EPHEMERAL = 1
REGISTRATION = b'{"version":1,"subscription":{"events":1},"pattern":"static","timestamp":"1795255170109"}'
STATE = b'{"controller_epoch":12,"leader":%d,"version":1,"leader_epoch":%d,"isr":[1,2,3]}'
ACL = pack(">ii", 1, 31) + pack(">i", 5) + b"world" + pack(">i", 6) + b"anyone"

Request = tuple[int, bytes]

GROUPS, TOPICS, PARTITIONS = 500, 5, 20
MEMBERS = 4
"""Sessions that are open at the same time. Each is a member of many groups, as no real one is, which saves sockets."""
TOGETHER = 2000


def block(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


def create(path: bytes, data: bytes, flags: int = 0) -> Request:
    return CREATE, block(path) + block(data) + ACL + pack(">i", flags)


def set_data(path: bytes, data: bytes) -> Request:
    return SET_DATA, block(path) + block(data) + pack(">i", -1)


def delete(path: bytes) -> Request:
    return DELETE, block(path) + pack(">i", -1)


def check(path: bytes) -> Request:
    return CHECK, block(path) + pack(">i", -1)


def multi(*requests: Request) -> Request:
    parts = (pack(">i?i", kind, False, -1) + body for kind, body in requests)
    return MULTI, b"".join(parts) + pack(">i?i", -1, True, -1)


def group(number: int) -> bytes:
    return b"/consumers/service-%05d" % number


def plant(hosts: str) -> None:
    """Create the directories and the offsets of all groups, and the states of the brokers' partitions."""
    client = BareClient(hosts)
    made = [create(path, b"") for path in (b"/consumers", b"/brokers", b"/brokers/topics")]
    for topic in range(TOPICS):
        path = b"/brokers/topics/events.%03d" % topic
        made += [create(path, b"{}"), create(path + b"/partitions", b"")]
        for partition in range(PARTITIONS):
            made += [create(path + b"/partitions/%d" % partition, b"")]
            made += [create(path + b"/partitions/%d/state" % partition, STATE % (1, 1))]
    for number in range(GROUPS):
        root = group(number)
        made += [create(path, b"") for path in (root, root + b"/ids", root + b"/owners", root + b"/offsets")]
        for topic in range(TOPICS):
            made += [create(root + b"/%s/events.%03d" % (part, topic), b"") for part in (b"owners", b"offsets")]
            made += [create(root + b"/offsets/events.%03d/%d" % (topic, number), b"0") for number in range(PARTITIONS)]
    client.write_each(made)
    client.close()


class Member:
    """A session that is registered in some groups, and owns the partitions of their first topics."""

    def __init__(self, hosts: str, number: int) -> None:
        self._random = random.Random(number)
        self._id = b"host-%d:0000" % number
        self._groups = range(number % MEMBERS, GROUPS, 5 * MEMBERS)
        self._offset = 0
        self._client = BareClient(hosts)
        joins = [create(group(each) + b"/ids/" + self._id, REGISTRATION, EPHEMERAL) for each in self._groups]
        self._client.write_each(joins + [create(self._owner(each, 0), self._id, EPHEMERAL) for each in self._groups])

    def write(self) -> int:
        """Make many requests, and return their number."""
        requests: list[Request] = []
        while len(requests) < TOGETHER:
            requests += self._some()
        self._client.write_each(requests)
        return len(requests)

    def close(self) -> None:
        self._client.close()

    def _owner(self, number: int, partition: int) -> bytes:
        return group(number) + b"/owners/events.000/%d" % partition

    def _some(self) -> list[Request]:
        drawn, number = self._random.random(), self._random.choice(self._groups)
        at = b"/offsets/events.%03d/%d" % (self._random.randrange(TOPICS), self._random.randrange(PARTITIONS))
        self._offset += 1
        commit = set_data(group(number) + at, b"%d" % (self._offset * 37))
        if drawn < 0.6:
            return [commit]
        if drawn < 0.7:
            return [multi(check(group(number) + b"/ids/" + self._id), check(self._owner(number, 0)), commit)]
        if drawn < 0.99:
            place = (self._random.randrange(TOPICS), self._random.randrange(PARTITIONS))
            return [set_data(b"/brokers/topics/events.%03d/partitions/%d/state" % place, STATE % (1, self._offset))]
        owner = self._owner(number, 1 + self._random.randrange(PARTITIONS - 1))
        return [create(owner, self._id, EPHEMERAL), delete(owner)]


def write_traffic(hosts: str, transactions: int) -> None:
    """Write that many transactions. Now and then a session ends, and another one begins."""
    members = [Member(hosts, number) for number in range(MEMBERS)]
    written, number = 0, MEMBERS
    while written < transactions:
        for member in members:
            written += member.write()
        members.pop(0).close()
        members.append(Member(hosts, number))
        number += 1
    for member in members:
        member.close()
