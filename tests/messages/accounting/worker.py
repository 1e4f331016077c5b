"""A consumer in its own process that handles messages, and writes down each one when it is handled.

    python -m tests.messages.accounting.worker '{"zookeeper": ..., "kafka": ..., "group": ..., ...}'

A line of the log has the partition, the offset, the key, the worker and the time. All workers append to one log, so its
order is that in which messages were handled. SIGTERM ends the worker. SIGUSR1 expires its session.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any, Final

from confluent_kafka import Message

from zkgroups import Consumer, Registry
from zkgroups.testing import expire_session

from .ledger import WINDOW

LONGEST_HANDLING: Final = 0.004
SESSION: Final = 10.0
"""In seconds. Others wait for the end of a worker that is killed; a machine that stands still must not end one."""


def main(zookeeper: str, kafka: dict[str, Any], group: str, topic: str, id: str, log: str, order: str) -> None:
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: Message) -> None:
        time.sleep(random.random() * LONGEST_HANDLING)
        key = (message.key() or b"").decode()
        os.write(lines, f"{message.partition()} {message.offset()} {key} {id} {time.monotonic():.3f}\n".encode())

    with Registry.connect(zookeeper, session_timeout=SESSION, timeout=30.0) as registry:
        options: dict[str, Any] = {"auto_commit_every": 0.2, "join_backoff": 0.2, "release_timeout": 10.0}
        consumer = Consumer(registry.group(group), [topic], kafka=kafka, id=id, **options)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        signal.signal(
            signal.SIGUSR1, lambda *_: threading.Thread(target=expire_session, args=[registry.client]).start()
        )
        with consumer:
            consumer.run(handle, order=order, workers=4, window=WINDOW)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
