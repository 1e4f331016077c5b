"""The cost of proving a session: requests per second, and one proof against a `sync`, a read and a commit.

    python -m benchmarks.proofs [--members 20] [--seconds 20] [--session-timeout 30] [--rounds 300]

A proxy counts the requests of idle members that hold one partition each, with the default session timeout. Nearly all
of them are proofs. A member that commits as often sends no proofs.

Then one client of an ensemble of three sends a proof, a `sync`, a read and a commit, and waits for each answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

from kazoo.client import KazooClient

from benchmarks import Times, in_turn, ratios, result, table
from zkgroups import Registry, TopicPartition
from zkgroups.testing import Op, TcpProxy, ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.zookeeper.session.lifetime import ProofRequest


def load(members: int, seconds: float, session_timeout: float) -> tuple[float, float]:
    """Proofs, and all other requests, per second and idle session."""
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        proxy = stack.enter_context(TcpProxy(server.address))
        for number in range(members):
            registry = stack.enter_context(Registry.connect(proxy.address, session_timeout=session_timeout))
            me = stack.enter_context(registry.group("billing").instance(f"member-{number}"))
            me.register(["orders"])
            me.claim(TopicPartition("orders", number))
        before = proxy.requests_by_type
        time.sleep(seconds)
        sent = proxy.requests_by_type - before
        proofs = sent[Op.MULTI]
        return proofs / seconds / members, (sent.total() - proofs) / seconds / members


def ask(client: Any, request: Any) -> None:
    answer = client.handler.async_result()
    client._call(request, answer)
    answer.get(timeout=30)


def costs(rounds: int) -> dict[str, Times]:
    """The seconds that each request takes, for a client of a follower."""
    with ZooKeeperEnsemble() as ensemble:
        client = KazooClient(ensemble.followers()[0].address)
        client.start()
        client.create("/offset", b"0")
        steps = {
            "proof": lambda: ask(client, ProofRequest()),
            "sync": lambda: client.sync("/"),
            "read": lambda: client.get("/offset"),
            "commit": lambda: client.set("/offset", b"1"),
        }

        def measured(step: str, _round: int) -> Times:
            began = time.perf_counter()
            steps[step]()
            return {"one request": time.perf_counter() - began}

        try:
            return in_turn({step: lambda n, s=step: measured(s, n) for step in steps}, rounds=rounds)
        finally:
            client.stop()
            client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--session-timeout", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    proofs, others = load(options.members, options.seconds, options.session_timeout)
    print(f"{proofs:.2f} proofs and {others:.2f} other requests per second and idle session", file=sys.stderr)
    medians = costs(options.rounds)
    table("one request to a follower", medians)
    against = {name: ratios(medians["proof"], medians[name])["one request"] for name in ("sync", "read", "commit")}
    result(
        "proofs",
        proofs_per_second_and_session=round(proofs, 3),
        sync_vs_proof=against["sync"],
        read_vs_proof=against["read"],
        commit_vs_proof=against["commit"],
    )


if __name__ == "__main__":
    main()
