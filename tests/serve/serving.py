"""A server with pictures that tests publish, or with a real sweeper, in a thread of this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from zkgroups.serve.settings import MetricSettings
from zkgroups.serve.sweep.publisher import Publisher
from zkgroups.serve.web.access import Access
from zkgroups.serve.web.app import App
from zkgroups.serve.web.server import listening_socket, served

TIMEOUT = 30.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Site:
    """The address of a server."""

    port: int
    app: App = field(repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        if self.tls is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=TIMEOUT)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    @contextmanager
    def events(self, view: str = "/") -> Iterator[Iterator[tuple[str, str]]]:
        """Yield the events of a stream, each with its name and data."""
        connection = self.connect()
        try:
            connection.request("GET", f"/events?view={view}")
            answer = connection.getresponse()
            assert answer.status == 200
            yield _events(answer)
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    name = data = ""
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            data = text.removeprefix("data: ")
        elif not text and name:
            yield name, data
            name = data = ""


@contextmanager
def serving(
    publisher: Publisher,
    *,
    access: Access | None = None,
    metrics: MetricSettings | None = None,
    tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> Iterator[Site]:
    app = App(publisher, metrics or MetricSettings(), access or Access())
    listening = listening_socket("127.0.0.1", port)
    number = listening.getsockname()[1]
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with served(app, listening, tls):
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(TIMEOUT)
    try:
        yield Site(number, app, client_tls)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        loop.close()
