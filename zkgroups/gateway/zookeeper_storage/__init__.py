"""A storage that keeps the coordinator's groups in ZooKeeper, where the old clients keep theirs.

    storage = ZooKeeperStorage(registry, on_event, read_only=True)
    coordinator = GroupCoordinator(storage, coordinator_config())

1. `storage.start` puts work into a queue (`work_queues.py`), and returns at once. The work of one group is carried out
   in order, on threads that may wait for ZooKeeper. Each result comes back as a `WorkFinished` event.
2. A storage that is `read_only` refuses to load groups. So all requests that join or change a group are refused with
   GROUP_AUTHORIZATION_FAILED, before anything is written. Lists, descriptions and committed offsets are answered
   (`described_groups.py`, `stored_offsets.py`): every group of every old client appears in Kafka's tools.
3. Errors of ZooKeeper become Kafka's (`kafka_errors.py`).
"""

from __future__ import annotations

from .storage import ZooKeeperStorage, coordinator_config

__all__ = ["ZooKeeperStorage", "coordinator_config"]
