"""The server: what it answers, whom it refuses, and how streams and scrapes get new pictures."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.testing.waiting import eventually
from zkgroups.serve.picture.values import Picture, SourceState
from zkgroups.serve.sweep.publisher import Publisher
from zkgroups.serve.web import server
from zkgroups.serve.web.access import Access
from zkgroups.serve.web.app import STATIC

from .pictures import HOSTILE, NOW, mixed
from .serving import TIMEOUT, Site, serving

PATHS = ("/", "/groups/billing", "/topics", "/topics/orders", "/metrics", "/api/v1/picture", "/healthz", "/v3/kafka")


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


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/static/page.js", "/groups/nothing"])
def test_every_answer_protects_the_browser(site: Site, path: str) -> None:
    headers = site.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
def test_no_method_that_writes_is_accepted(site: Site, method: str, path: str) -> None:
    assert site.get(path, method).status == 405


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_name_is_refused(site: Site, path: str) -> None:
    answer = site.get(path, Host="evil.example")
    assert answer.status == 421
    assert "billing" not in answer.text


def test_only_the_files_of_the_page_are_handed_out(site: Site) -> None:
    for name, kind in STATIC.items():
        answer = site.get(f"/static/{name}")
        assert (answer.status, answer.headers["content-type"]) == (200, kind)
        assert len(answer.body) > 100
    for name in ("..%2fviews.py", "%2e%2e/views.py", "page.py", "", "/etc/passwd"):
        assert site.get(f"/static/{name}").status == 404


def test_head_has_no_body(site: Site) -> None:
    for path in ("/", "/events", "/metrics"):
        assert (site.get(path, "HEAD").status, site.get(path, "HEAD").body) == (200, b"")


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


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\n"], ids=["nothing", "half a request"])
def test_a_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """Otherwise clients that send nothing would use up the open files."""
    monkeypatch.setattr(server, "REQUEST_WITHIN", 0.3)
    with (
        serving(Publisher(mixed())) as site,
        socket.create_connection(("127.0.0.1", site.port), TIMEOUT) as slow,
        suppress(ConnectionError),  # it may be closed before this thread gets to send
    ):
        slow.sendall(before)
        while slow.recv(4096):
            pass


def test_the_time_begins_again_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(Publisher(mixed())) as site, socket.create_connection(("127.0.0.1", site.port), TIMEOUT) as slow:
        slow.sendall(request)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(server, "REQUEST_WITHIN", 0.3)
        with suppress(ConnectionError):  # as in the test above
            slow.sendall(request + b"GET /")
            while slow.recv(4096):
                pass


def test_a_stream_is_longer_than_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_WITHIN", 4.0)  # a client may stand still before it sends its request
    publisher = Publisher(mixed())
    with serving(publisher) as site, site.events() as events:
        assert next(events)[0] == "view"
        with socket.create_connection(("127.0.0.1", site.port), TIMEOUT) as slow:
            assert slow.recv(1) == b""  # the time is over
        publisher.publish(replace(mixed(), number=publisher.picture.number + 1))
        assert next(events)[0] == "view"


def encoded(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


@pytest.mark.parametrize("name", [name.replace("/", "|") for name in HOSTILE])
def test_groups_with_hostile_names_can_be_asked_for(site: Site, name: str) -> None:
    assert site.get(f"/api/v1/groups/{encoded(name)}").json["group"] == name
    assert site.get(f"/v3/kafka/prod/consumer/{encoded(name)}/lag").json["status"]["group"] == name
    assert site.get(f"/groups/{encoded(name)}").status == 200


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
    names = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
    }
    kind = names[type(value)]
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


def test_missing_objects_are_not_found(site: Site) -> None:
    for path in ("/api/v1/groups/nothing", "/api/v1/topics/nothing", "/groups/nothing", "/topics/nothing", "/nothing"):
        assert site.get(path).status == 404


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


# Logins and TLS


def test_without_credentials_nothing_but_probes_is_shown() -> None:
    access = Access(users={"anna": "secret"}, token="t0ken")
    basic = "Basic " + base64.b64encode(b"anna:secret").decode()
    with serving(Publisher(mixed()), access=access) as site:
        for path in ("/", "/groups/billing", "/events", "/metrics", "/api/v1/groups", "/v3/kafka"):
            refused = site.get(path)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert "billing" not in refused.text
        assert site.get("/healthz").status == site.get("/static/page.css").status == 200
        assert site.get("/", Authorization=basic).status == 200
        assert site.get("/metrics", Authorization="Bearer t0ken").status == 200
        assert site.get("/", Authorization="Bearer t0ken").status == 401


def test_only_clients_with_a_certificate_are_served(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with serving(Publisher(mixed()), tls=server, client_tls=client) as site:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            site.get("/")
        other.issue_cert("me").configure_cert(client)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            site.get("/")
        known = ssl.create_default_context()
        authority.configure_trust(known)
        authority.issue_cert("me").configure_cert(known)
        assert replace(site, tls=known).get("/").status == 200
