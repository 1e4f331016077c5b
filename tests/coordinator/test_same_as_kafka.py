"""A real broker gives the same answers to the same requests. More of them: `ZKGROUPS_COMPARISONS=200`."""

from __future__ import annotations

import os
from uuid import uuid4

from zkgroups.testing import KafkaBroker

from .same_as_kafka import Broker, ChoicesDiffer, Comparison

COMPARISONS = int(os.environ.get("ZKGROUPS_COMPARISONS", "10"))
STEPS = 50


def test_random_requests_get_the_same_answers_from_a_broker(kafka_broker: KafkaBroker) -> None:
    tag = f"compared-{uuid4().hex[:8]}"
    topics = f"{tag}-orders", f"{tag}-payments"
    for topic in topics:
        kafka_broker.create_topic(topic)
    whole = 0
    for seed in range(COMPARISONS):
        broker = Broker(kafka_broker.address)
        comparison = Comparison(broker, f"{tag}-{seed}", topics, seed)
        try:
            for _ in range(STEPS):
                comparison.step()
            whole += 1
        except ChoicesDiffer:
            continue
        finally:
            broker.close()
    assert whole >= COMPARISONS / 2
