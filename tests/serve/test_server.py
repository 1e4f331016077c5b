"""The server: what it answers, whom it refuses, who may see what, and how streams and scrapes get new pictures."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import eventually
from zkgroups.serve.picture.values import Picture, SourceState
from zkgroups.serve.settings import MetricSettings
from zkgroups.serve.sweeper import Publisher
from zkgroups.serve.web import app as server
from zkgroups.serve.web.access import Access, Decision
from zkgroups.serve.web.app import STATIC, App, listening_socket, served

from .pictures import HOSTILE, NOW, mixed

NAMES = [name.replace("/", "|") for name in HOSTILE]
PATHS = ("/", "/groups/billing", "/topics", "/topics/orders", "/metrics", "/api/v1/picture", "/healthz", "/v3/kafka")


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

    def connect(self) -> http.client.HTTPConnection:
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
def serving(publisher: Publisher, *, access: Access | None = None) -> Iterator[Site]:
    app = App(publisher, MetricSettings(), access or Access())
    listening = listening_socket("127.0.0.1", 0)
    number = listening.getsockname()[1]
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with served(app, listening, None):
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(TIMEOUT)
    try:
        yield Site(number, app)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture(scope="module")
def publisher() -> Publisher:
    return Publisher(mixed())


@pytest.fixture(scope="module")
def site(publisher: Publisher) -> Iterator[Site]:
    with serving(publisher) as site:
        yield site


def newer(publisher: Publisher, **changes: Any) -> Picture:
    picture = replace(publisher.picture, number=publisher.picture.number + 1, **changes)
    publisher.publish(picture)
    return picture


# Answers


def test_every_answer_protects_the_browser_and_no_method_that_writes_or_foreign_host_is_accepted(site: Site) -> None:
    for path in (*PATHS, "/nothing", "/static/page.js", "/groups/nothing", "/topics/nothing", "/api/v1/groups/nothing"):
        found = site.get(path)
        headers = found.headers
        assert found.status == (404 if "nothing" in path else 200)
        assert site.get(path, "HEAD").body == b""
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert path.startswith("/static") or "nothing" in path or site.get(path, method).status == 405
        foreign = site.get(path, Host="evil.example")
        assert foreign.status == 421
        assert "billing" not in foreign.text


def test_only_the_files_of_the_page_are_handed_out(site: Site) -> None:
    for name, kind in STATIC.items():
        answer = site.get(f"/static/{name}")
        assert (answer.status, answer.headers["content-type"]) == (200, kind)
        assert len(answer.body) > 100
    for name in ("..%2fviews.py", "%2e%2e/views.py", "page.py", "", "/etc/passwd"):
        assert site.get(f"/static/{name}").status == 404


def test_the_server_is_healthy_before_it_is_ready() -> None:
    with serving(Publisher(Picture(0, "prod", SourceState(), None))) as empty:
        assert (empty.get("/healthz").status, empty.get("/readyz").status) == (200, 503)
        assert empty.get("/").status == 200
        assert "zkgroups_build_info" in empty.get("/metrics").text


def test_while_zookeeper_does_not_answer_the_server_stays_ready_with_the_last_picture() -> None:
    bad = SourceState(NOW, "gone", NOW)
    with serving(Publisher(replace(mixed(), zookeeper=bad))) as site:
        assert site.get("/readyz").status == 200
        assert "gone" in site.get("/").text
        assert 'zkgroups_up{source="zookeeper"} 0' in site.get("/metrics").text


def closed_by_the_server(client: socket.socket, request: bytes) -> None:
    with suppress(ConnectionError):  # it may be closed before this thread gets to send
        client.sendall(request)
        while client.recv(4096):
            pass


def test_a_connection_without_a_whole_request_is_closed_also_after_an_answer_but_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise clients that send nothing would use up the open files. The time is short only for those that wait."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    publisher = Publisher(mixed())
    with serving(publisher) as site, site.events() as events:
        assert next(events)[0] == "view"
        address = "127.0.0.1", site.port
        with socket.create_connection(address, TIMEOUT) as answered:
            answered.sendall(request)
            assert answered.recv(4096).startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(server, "REQUEST_WITHIN", 0.3)
            closed_by_the_server(answered, request + b"GET /")
        for before in (b"", b"GET / HTTP/1.1\r\n"):
            with socket.create_connection(address, TIMEOUT) as slow:
                closed_by_the_server(slow, before)
        publisher.publish(replace(mixed(), number=publisher.picture.number + 1))
        assert next(events)[0] == "view"


def test_groups_with_hostile_names_can_be_asked_for(site: Site) -> None:
    for name in NAMES:
        path = quote(name, safe="")
        assert site.get(f"/api/v1/groups/{path}").json["group"] == name
        assert site.get(f"/v3/kafka/prod/consumer/{path}/lag").json["status"]["group"] == name
        assert site.get(f"/groups/{path}").status == 200


# The API


def test_the_answers_of_the_api_are_those_that_the_openapi_file_describes(site: Site) -> None:
    described = site.get("/api/v1/openapi.json").json
    examples = {"{group}": "half", "{topic}": "orders"}
    paths = [path for path in described["paths"] if not path.endswith("openapi.json")]
    routes = {route.path for route in site.app._routes() if route.path.startswith("/api/v1/")} - {
        "/api/v1/openapi.json"
    }
    assert {path.replace(":path", "") for path in routes} == set(paths)
    for path in paths:
        filled = path
        for place, name in examples.items():
            filled = filled.replace(place, name)
        schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        _check(site.get(filled).json, schema, described, path)


def _check(value: Any, schema: Any, described: Any, where: str) -> None:
    """Check the value against the part of JSON Schema that the file uses."""
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema:
        schema = schema["oneOf"][1 if value is None else 0]
        return _check(value, schema, described, where)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    kind = names.get(type(value), "null")
    assert kind in kinds or (kind == "integer" and "number" in kinds), f"{where}: {value!r} is not {kinds}"
    if "enum" in schema:
        assert value in schema["enum"], where
    if isinstance(value, dict):
        assert value.keys() == schema["properties"].keys(), where
        for name, part in value.items():
            _check(part, schema["properties"][name], described, f"{where}.{name}")
    if isinstance(value, list):
        for part in value:
            _check(part, schema["items"], described, f"{where}[]")
    return None


def test_the_list_of_groups_is_paged_filtered_and_sorted(site: Site) -> None:
    first = site.get("/api/v1/groups?per_page=2").json
    assert (first["total"], first["pages"]) == (len(mixed().groups), -(-len(mixed().groups) // 2))
    assert [group["group"] for group in first["groups"]] == ["ahead", "half"]
    assert [group["group"] for group in site.get("/api/v1/groups?status=STOP").json["groups"]] == ["stopped"]
    assert site.get("/api/v1/groups?sort=group").json["groups"][0]["group"] == sorted(mixed().groups)[0]
    assert len(site.get("/api/v1/groups?per_page=99999999&page=7").json["groups"]) == len(mixed().groups)


def test_burrow_answers_in_its_own_form(site: Site) -> None:
    assert site.get("/v3/kafka").json["clusters"] == ["prod"]
    assert set(site.get("/v3/kafka/prod/consumer").json["consumers"]) == set(mixed().groups)
    status = site.get("/v3/kafka/prod/consumer/stopped/status").json
    assert status["error"] is False
    assert (status["status"]["status"], status["status"]["totallag"]) == ("ERR", 15)
    assert [each["status"] for each in status["status"]["partitions"]] == ["STOP", "STOP"]
    assert status["status"]["maxlag"]["partition"] == 0
    lag = site.get("/v3/kafka/prod/consumer/stopped/lag").json["status"]
    assert [each["status"] for each in lag["partitions"]] == ["STOP", "STOP", "OK"]
    assert lag["partitions"][0]["end"]["offset"] == 90
    for path in ("/v3/kafka/prod/consumer/nothing/lag", "/v3/kafka/other/consumer/stopped/lag", "/v3/kafka/x/consumer"):
        answer = site.get(path)
        assert (answer.status, answer.json["error"]) == (404, True)


def test_a_path_that_is_too_long_is_refused(site: Site) -> None:
    """Its work must stay small: an expression for this path took 23 s, and all other requests waited."""
    assert site.get("/v3/kafka/" + "x/consumer/" * 5800 + "lag").status == 414
    assert site.get("/v3/kafka/" + "x/consumer/" * 700 + "lag").status == 404
    assert [route.path for route in site.app._routes() if route.path.count(":path") > 1] == []


def test_the_name_of_a_cluster_may_contain_a_slash() -> None:
    """By default, it is the address of ZooKeeper."""
    with serving(Publisher(replace(mixed(), cluster="zk1:2181/kafka"))) as site:
        for name in ("zk1:2181/kafka", "zk1%3A2181%2Fkafka"):
            assert site.get(f"/v3/kafka/{name}/consumer").json["error"] is False
            assert site.get(f"/v3/kafka/{name}/consumer/stopped/lag").json["status"]["cluster"] == "zk1:2181/kafka"


# Metrics


def test_metrics_are_negotiated_and_compressed(site: Site) -> None:
    plain = site.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(plain.headers["content-length"]) == len(plain.body)
    newest = site.get("/metrics", Accept="application/openmetrics-text; version=1.0.0", Accept_Encoding="gzip")
    assert newest.headers["content-type"].startswith("application/openmetrics-text")
    assert gzip.decompress(newest.body).endswith(b"# EOF\n")
    assert b"# EOF" not in plain.body


def test_metrics_follow_the_pictures(site: Site, publisher: Publisher) -> None:
    assert "zkgroups_live 1" in site.get("/metrics").text
    newer(publisher, live=False)
    assert eventually(lambda: "zkgroups_live 0" in site.get("/metrics").text)
    newer(publisher, live=True)
    assert eventually(lambda: "zkgroups_live 1" in site.get("/metrics").text)


# Streams


def test_a_stream_sends_the_page_and_again_after_each_picture(site: Site, publisher: Publisher) -> None:
    with site.events("/groups/half") as events:
        name, data = next(events)
        assert name == "view"
        assert "half" in json.loads(data)["title"]
        newer(publisher, cluster="other <i>")
        assert any("other &lt;i&gt;" in json.loads(data)["html"] for _name, data in events)
    newer(publisher, cluster="prod")


def test_streams_that_are_closed_are_forgotten(site: Site, publisher: Publisher) -> None:
    """A closed connection is noticed when something is sent."""

    def none_is_open() -> bool:
        newer(publisher)
        return site.app.pages.streams == 0

    assert eventually(none_is_open), "those of the tests before"
    with site.events() as events:
        next(events)
        assert site.app.pages.streams == 1
    assert eventually(none_is_open)


def test_streams_end_before_the_server_does(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn would otherwise wait, cancel them, and log an error."""
    with serving(Publisher(mixed())) as site:
        opened = threading.Event()

        def read() -> None:
            with site.events() as events:
                for _ in events:
                    opened.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert opened.wait(30)
    thread.join(10)
    assert not thread.is_alive()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


# Logins


def test_without_credentials_nothing_but_probes_is_shown() -> None:
    assert not any(secret in repr(BOTH) for secret in ("ecret", "t0ken"))
    with serving(Publisher(mixed()), access=BOTH) as site:
        for path in ("/", "/groups/billing", "/events", "/metrics", "/api/v1/groups", "/v3/kafka"):
            refused = site.get(path)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert "billing" not in refused.text
        assert site.get("/healthz").status == site.get("/static/page.css").status == 200
        assert site.get("/", Authorization=basic("anna", "s:ecret")).status == 200
        assert site.get("/metrics", Authorization="Bearer t0ken").status == 200
        assert site.get("/", Authorization="Bearer t0ken").status == 401


# Access

HERE = "127.0.0.1:9308"
PAGES = ("/", "/groups/billing", "/topics", "/events", "/anything")
PROGRAMS = ("/metrics", "/api/v1/groups", "/v3/kafka")
OPEN = ("/healthz", "/readyz", "/static/page.js")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


USERS = Access(users={"anna": "s:ecret", "ben": "b"})
TOKEN = Access(token="t0ken")
BOTH = Access(users={"anna": "s:ecret"}, token="t0ken")


def test_who_may_see_what() -> None:
    anna, token = basic("anna", "s:ecret"), "Bearer t0ken"
    wrong_basics = ("", basic("anna", "wrong"), basic("carl", ""), basic("anna", ""), "Basic", "Basic !", token)
    wrong_tokens = ("", "Bearer", "Bearer t0ke", "Bearer t0kenn", basic("anna", "t0ken"))
    for path in OPEN:  # probes and files of the page
        assert {each.decide(path, HERE, "") for each in (Access(), USERS, TOKEN, BOTH)} == {Decision.ALLOWED}
    for path in (*PAGES, *PROGRAMS):
        assert Access().decide(path, HERE, "") is USERS.decide(path, HERE, anna) is Decision.ALLOWED
        assert {USERS.decide(path, HERE, each) for each in wrong_basics} == {Decision.NO_CREDENTIALS}
    for path in PROGRAMS:
        for access in (TOKEN, BOTH):
            assert {access.decide(path, HERE, each) for each in (token, "bearer t0ken")} == {Decision.ALLOWED}
            assert {access.decide(path, HERE, each) for each in wrong_tokens} == {Decision.NO_CREDENTIALS}
    for path in PAGES:
        assert BOTH.decide(path, HERE, token) is Decision.NO_CREDENTIALS
        assert TOKEN.decide(path, HERE, token) is Decision.NO_USERS


def test_a_name_that_somebody_points_here_is_refused_before_anything_else() -> None:
    web = Access(host_names=frozenset({"web"}))
    for host in ("localhost", "LOCALHOST:9308", "127.0.0.1", "10.1.2.3:80", "[::1]:9308", "[::1]", "web"):
        assert web.decide("/", host, "") is Decision.ALLOWED
    for host in ("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "web2", "[", ":"):
        for access in (web, USERS):
            for path in (*PAGES, *PROGRAMS, *OPEN):
                assert access.decide(path, host, basic("anna", "s:ecret")) is Decision.WRONG_HOST


@given(st.text(), st.text(), st.text())
def test_no_header_raises_an_error(path: str, host: str, authorization: str) -> None:
    BOTH.decide(path, host, authorization)
    assert BOTH.decide("/metrics", HERE, authorization) is not Decision.ALLOWED
