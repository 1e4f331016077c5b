"""Access: who may see what, and the names under which the server may be asked."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.serve.web.access import Access, Decision, is_loopback

HERE = "127.0.0.1:9308"
PAGES = ("/", "/groups/billing", "/topics", "/events", "/anything")
PROGRAMS = ("/metrics", "/api/v1/groups", "/v3/kafka")
OPEN = ("/healthz", "/readyz", "/static/page.js")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


USERS = Access(users={"anna": "s:ecret", "ben": "b"})
TOKEN = Access(token="t0ken")
BOTH = Access(users={"anna": "s:ecret"}, token="t0ken")


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS, *OPEN])
def test_without_users_and_token_everything_is_open(path: str) -> None:
    assert Access().decide(path, HERE, "") is Decision.ALLOWED


@pytest.mark.parametrize("access", [USERS, TOKEN, BOTH])
@pytest.mark.parametrize("path", OPEN)
def test_probes_and_files_of_the_page_need_no_login(access: Access, path: str) -> None:
    assert access.decide(path, HERE, "") is Decision.ALLOWED


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS])
def test_a_user_sees_everything(path: str) -> None:
    assert USERS.decide(path, HERE, basic("anna", "s:ecret")) is Decision.ALLOWED
    for wrong in ("", basic("anna", "wrong"), basic("carl", ""), basic("anna", ""), "Basic", "Basic !", "Bearer t0ken"):
        assert USERS.decide(path, HERE, wrong) is Decision.NO_CREDENTIALS


@pytest.mark.parametrize("path", PROGRAMS)
def test_the_token_is_for_programs(path: str) -> None:
    for access in (TOKEN, BOTH):
        assert access.decide(path, HERE, "Bearer t0ken") is Decision.ALLOWED
        assert access.decide(path, HERE, "bearer t0ken") is Decision.ALLOWED
        for wrong in ("", "Bearer", "Bearer t0ke", "Bearer t0kenn", basic("anna", "t0ken")):
            assert access.decide(path, HERE, wrong) is Decision.NO_CREDENTIALS


@pytest.mark.parametrize("path", PAGES)
def test_the_token_does_not_open_pages(path: str) -> None:
    assert BOTH.decide(path, HERE, "Bearer t0ken") is Decision.NO_CREDENTIALS
    assert TOKEN.decide(path, HERE, "Bearer t0ken") is Decision.NO_USERS


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9308", "127.0.0.1", "10.1.2.3:80", "[::1]:9308", "[::1]", "web"]
)
def test_these_hosts_are_accepted(host: str) -> None:
    assert Access(host_names=frozenset({"web"})).decide("/", host, "") is Decision.ALLOWED


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "web2", "[", ":"]
)
def test_a_name_that_somebody_points_here_is_refused_before_anything_else(host: str) -> None:
    for access in (Access(host_names=frozenset({"web"})), USERS):
        for path in (*PAGES, *PROGRAMS, *OPEN):
            assert access.decide(path, host, basic("anna", "s:ecret")) is Decision.WRONG_HOST


@given(st.text(), st.text(), st.text())
def test_no_header_raises_an_error(path: str, host: str, authorization: str) -> None:
    BOTH.decide(path, host, authorization)
    assert BOTH.decide("/metrics", HERE, authorization) is not Decision.ALLOWED


def test_secrets_are_not_shown() -> None:
    assert "ecret" not in repr(BOTH)
    assert "t0ken" not in repr(BOTH)


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "zk1", "", "localhost.example")))
