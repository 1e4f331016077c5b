"""`zkgroups serve` on 200,000 offsets in 2,000 groups: sweeps, scrapes, many readers at once, and the page.

    python -m benchmarks.serve [--groups 2000] [--rounds 3] [--seconds 40] [--scrapers 50] [--streams 200]
                               [--page 10000]

- a sweep: its time, its memory, and its requests to ZooKeeper, against one request for each offset and each group, as
  exporters send them
- a scrape: the time to write all series, their number and their bytes, against prometheus_client's own rendering of the
  same values; and the time until a client has read them
- many readers: the slowest of a hundred scrapes, and of a hundred updates of a page, while all of them read; and the
  memory of the server at the beginning and at the end
- the page in headless Chromium, with that many groups: the time to the first paint, and from a claim in ZooKeeper to
  the page

Log ends are computed: see `_served.py`.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import result
from benchmarks._served import sweeper
from benchmarks._trees import seed
from zkgroups import Registry, TopicPartition
from zkgroups.serve.metrics.exposition import Format
from zkgroups.serve.metrics.render import render
from zkgroups.serve.picture.values import Picture
from zkgroups.serve.settings import MetricSettings
from zkgroups.testing import ZooKeeperServer
from zkgroups.testing.local_server import reserve

TIMEOUT = 120.0
OFFSETS_OF_A_GROUP = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("groups", 2000),
        ("rounds", 3),
        ("seconds", 40),
        ("scrapers", 50),
        ("streams", 200),
        ("page", 10_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    found: dict[str, object] = {}
    with ZooKeeperServer() as server:
        offsets = seed(server.address, groups=given.groups)
        found |= sweeps(server.address, offsets + given.groups, given.rounds)
        found |= readers(server.address, given)
    if given.page:
        with ZooKeeperServer() as server:
            seed(server.address, groups=given.page, topics=1, partitions=20)
            found |= page(server.address)
    result("serve", **found)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Sweeps and rendering, in this process


def sweeps(hosts: str, reads: int, rounds: int) -> dict[str, object]:
    """Measure sweeps, and the writing of the metrics."""
    before = memory(os.getpid())
    with sweeper(hosts, 0.5) as running:
        wait(lambda: running.publisher.picture.stats.sweeps >= 1)
        times = []
        for _ in range(rounds):
            sweep = running.publisher.picture.stats.sweeps
            wait(lambda sweep=sweep: running.publisher.picture.stats.sweeps > sweep)
            times.append(running.publisher.picture.stats.last_seconds)
        picture = running.publisher.picture
    requests = picture.stats.last_requests
    say(
        f"sweep: {statistics.median(times):.2f} s, {requests} requests for {reads} nodes, "
        f"{memory(os.getpid()) - before} MB"
    )
    return {
        "sweep_seconds": round(statistics.median(times), 2),
        "sweep_requests": requests,
        "fewer_requests": round(reads / requests, 1),
        **rendering(picture, rounds),
    }


def rendering(picture: Picture, rounds: int) -> dict[str, object]:
    """Measure our own rendering, and prometheus_client's of the same families."""
    rendered = render(picture, MetricSettings(), Format.TEXT)
    text = b"".join(rendered.parts).decode()
    registry = CollectorRegistry()
    registry.register(Collected(text))  # type: ignore[arg-type]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: b"".join(render(picture, MetricSettings(), Format.TEXT).parts)))
        theirs.append(seconds(lambda: generate_latest(registry)))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    size = len(text)
    say(
        f"rendering: {rendered.series} series, {size >> 20} MB, {statistics.median(ours):.2f} s, "
        f"{ratio:.1f} times faster"
    )
    return {"series": rendered.series, "megabytes": size >> 20, "rendering_ratio": round(ratio, 1)}


class Collected:
    """The values of a rendering, as a collector of prometheus_client that has them in memory already."""

    def __init__(self, text: str) -> None:
        self._families = [_family(each) for each in text_string_to_metric_families(text)]

    def collect(self) -> Iterator[Metric]:
        """Build the families from their values, as every collector does at each scrape."""
        for kind, name, help, names, samples in self._families:
            family = kind(name, help, labels=names)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family


def _family(metric: Metric) -> tuple[Any, str, str, list[str], list[tuple[list[str], float]]]:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    names = list(metric.samples[0].labels) if metric.samples else []
    return kind, metric.name, metric.documentation, names, [(list(s.labels.values()), s.value) for s in metric.samples]


# Many readers, and a server in another process


@contextmanager
def server_process(hosts: str, every: float) -> Iterator[tuple[int, int]]:
    """Start the server. Yield its port and its process id."""
    port = reserve()
    command = [sys.executable, "-m", "benchmarks._served", hosts, str(port.number), str(every)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            wait(lambda: b"200 OK" in fetch(port.number, "/readyz"))
            yield port.number, process.pid
        finally:
            process.kill()
            port.release()


def readers(hosts: str, given: argparse.Namespace) -> dict[str, object]:
    """Measure scrapes and streams while all of them read."""
    with server_process(hosts, 10) as (port, pid):
        fetch(port, "/metrics")
        plain = seconds(lambda: fetch(port, "/metrics"))
        fetch(port, "/metrics", compressed=True)
        compressed = seconds(lambda: fetch(port, "/metrics", compressed=True))
        scrapes: list[float] = []
        updates: list[float] = []
        memories = [memory(pid)]
        ended = threading.Event()
        threads = [threading.Thread(target=scrape, args=(port, scrapes, ended)) for _ in range(given.scrapers)]
        threads += [threading.Thread(target=follow, args=(port, n, updates, ended)) for n in range(given.streams)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            time.sleep(given.seconds / 8)
            memories.append(memory(pid))
        ended.set()
        for thread in threads:
            thread.join()
    say(
        f"one scrape: {plain:.2f} s, compressed {compressed:.2f} s; {given.scrapers} scrapers: {len(scrapes)} scrapes, "
        f"p99 {p99(scrapes):.2f} s; {given.streams} streams: {len(updates)} updates, p99 {p99(updates):.2f} s; "
        f"memory {memories} MB"
    )
    return {
        "scrape_seconds": round(plain, 2),
        "compressed_scrape_seconds": round(compressed, 3),
        "scrapes_p99": round(p99(scrapes), 2),
        "updates_p99": round(p99(updates), 2),
        "memory_megabytes": memories,
    }


def scrape(port: int, found: list[float], ended: threading.Event) -> None:
    """Scrape every five seconds, compressed, as Prometheus does."""
    while not ended.is_set():
        found.append(seconds(lambda: fetch(port, "/metrics", compressed=True)))
        ended.wait(5)


def follow(port: int, number: int, found: list[float], ended: threading.Event) -> None:
    """Follow a page, and note how old each update is when it arrives."""
    view = "/" if number % 2 else f"/groups/service-{number:05d}"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connected, connected.makefile("rb") as stream:
        connected.sendall(f"GET /events?view={view} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        connected.settimeout(20)
        first = True
        with suppress(TimeoutError):
            while not ended.is_set():
                made = re.search(rb'data-now=\\"(\d+)', stream.readline())
                if made and not first:
                    found.append(max(0.0, time.time() - int(made[1]) / 1000))
                first = first and not made


def fetch(port: int, path: str, *, compressed: bool = False) -> bytes:
    """Return the beginning of an answer, after all of it has arrived."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connected:
        accept = "Accept-Encoding: gzip\r\n" if compressed else ""
        connected.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{accept}Connection: close\r\n\r\n".encode())
        beginning, buffer = connected.recv(65536), bytearray(1 << 20)
        while connected.recv_into(buffer):
            pass
        return beginning


# The page


def page(hosts: str) -> dict[str, object]:
    """Measure the page in a browser."""
    from tests.serve.browser import browser

    with server_process(hosts, 60) as (port, _pid), browser() as window, Registry.connect(hosts) as registry:
        window.open(f"http://127.0.0.1:{port}/")
        window.until(lambda: len(window.groups) == 50)
        paint = window.driver.execute_script(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        searched = seconds(
            lambda: (window.open(f"http://127.0.0.1:{port}/?q=00042"), window.until(lambda: window.groups))
        )
        delays = []
        with registry.group("service-00042").instance("anna") as anna:
            anna.register(["events.294"])
            window.open(f"http://127.0.0.1:{port}/groups/service-00042")
            for number in range(10):
                at = TopicPartition("events.294", number)
                with anna.claim(at):
                    began = time.perf_counter()
                    window.until(lambda at=at: f"{at}: anna" in window.texts(".strip li .hidden"))
                    delays.append(time.perf_counter() - began)
    say(
        f"page of many groups: first paint {paint:.0f} ms, search {searched:.2f} s; "
        f"a claim is shown after {max(delays):.2f} s"
    )
    return {
        "first_paint_ms": round(paint),
        "search_seconds": round(searched, 2),
        "claim_shown_after": round(max(delays), 2),
    }


# Measuring


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0


def memory(pid: int) -> int:
    """The memory of a process in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def wait(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        with suppress(OSError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


if __name__ == "__main__":
    main()
