"""A storage that keeps the coordinator's groups in ZooKeeper, where the old clients keep theirs.

    storage = ZooKeeperStorage(registry, on_event, read_only=True)
    coordinator = GroupCoordinator(storage, coordinator_config())

1. `storage.start` puts work into a queue (`elections.py`), and returns at once. The work of one group is carried out
   in order, on threads that may wait for ZooKeeper. Each result comes back as a `WorkFinished` event.
2. The members of a group (`members.py`) are registered as instances, with owner nodes for their partitions. `group.py`
   prepares each generation: it registers, computes the shares (`members.py`), releases and claims. Later it watches the
   group, and asks the coordinator for a rebalance if other clients change a share.
3. Commits (`offsets.py`) are fenced by the generation, the registration and the owner nodes, in one transaction. Their
   details (metadata and leader epoch) are written to a separate node, which old clients ignore.
4. If there are several gateways, one of them coordinates each group (`elections.py`).
5. A group that was moved live to the brokers has a route (`zookeeper/ownership/routes.py`). Its members leave,
   and its requests are forwarded.
6. If the session of the gateway has expired, or may have expired (`elections.py`), all its members must join
   again. While the connection is lost, work is retried (`offsets.py`).
7. A storage that is `read_only` refuses to load groups. So all requests that join or change a group are refused with
   GROUP_AUTHORIZATION_FAILED, before anything is written. Lists, descriptions and committed offsets are answered
   (`storage.py`, `offsets.py`): every group of every old client appears in Kafka's tools.
8. Errors of zkgroups are converted to Kafka's errors (`offsets.py`).
"""

from __future__ import annotations

from .group import GroupSettings
from .storage import ZooKeeperStorage, coordinator_config

__all__ = ["GroupSettings", "ZooKeeperStorage", "coordinator_config"]
