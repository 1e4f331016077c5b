"""Pages: every name is text, the worst is first, and addresses keep what is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.health.verdicts import Status
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.values import MalformedNode, Owner, Registration
from zkgroups.serve.page.html import element, group_path
from zkgroups.serve.page.queries import ORDERS, Query, paged
from zkgroups.serve.page.timeline import Span, spans
from zkgroups.serve.page.views import page, view
from zkgroups.serve.picture.values import EventKind, GroupEvent, Picture, SourceState

from .pictures import HOSTILE, NOW, Sweeps, at, log, mixed
from .pictures import view as group_view

NAMES = [name.replace("/", "|") for name in HOSTILE]


class Tags(HTMLParser):
    """All elements of a document, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    return tags


def shown(address: str, picture: Picture | None = None) -> Tags:
    return parsed(page(view(picture or mixed(), address, NOW)))


def rows(tags: Tags) -> list[str]:
    return [str(attributes["data-key"]) for tag, attributes in tags.tags if tag == "tr" and "data-key" in attributes]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_never_markup_on_any_page(name: str) -> None:
    for address in ("/", group_path(name), "/topics", "/topics/orders"):
        tags = shown(address)
        scripts = [attributes for tag, attributes in tags.tags if tag == "script"]
        assert len(scripts) == 1
        assert str(scripts[0]["src"]).startswith("/static/")
        assert not any(tag in ("i", "b", "img") for tag, _ in tags.tags)
        assert not any(key.startswith("on") for _, attributes in tags.tags for key in attributes)
        assert not re.search("[\u202e\u200b]", tags.text + str(tags.tags)), "invisible characters are shown as numbers"


@pytest.mark.parametrize("name", NAMES)
def test_the_link_to_a_group_leads_to_its_page(name: str) -> None:
    links = {attributes.get("href") for tag, attributes in shown("/").tags if tag == "a"}
    assert group_path(name) in links
    found = view(mixed(), group_path(name), NOW)
    assert found.exists
    assert name.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b") in found.title


@given(st.text(), st.text())
@example("</a><b>", '"><b onload="x"')
def test_text_and_attributes_are_escaped(text: str, value: str) -> None:
    tags = parsed(element("a", text, title=value))
    assert [tag for tag, _ in tags.tags if tag != "span"] == ["a"]
    assert list(tags.tags[0][1]) == ["title"]


def test_the_worst_group_is_first() -> None:
    first = rows(shown("/"))
    assert first[:3] == ["ahead", "half", "stopped"]
    assert first[-1] == "billing" or first.index("billing") > first.index("bad")


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_can_be_reversed(order: str) -> None:
    forward, backward = (Query(order=text).found(mixed()) for text in (order, f"-{order}"))
    key = ORDERS[order]
    assert [key(group) for group in forward] == sorted(key(group) for group in forward)
    assert [key(group) for group in backward] == [key(group) for group in reversed(forward)]


def test_filters_count_all_groups_and_choose_some() -> None:
    tags = shown("/?status=STOP")
    assert rows(tags) == ["stopped"]
    assert "1 stop" in tags.text
    assert f"{len(mixed().groups)} all" in tags.text


def test_a_search_finds_names_and_topics_in_any_case() -> None:
    assert rows(shown("/?q=BILL")) == ["billing"]
    assert len(rows(shown("/?q=topic:ORD"))) == len(mixed().groups)
    assert rows(shown("/?q=topic:nothing")) == []


@given(st.dictionaries(st.sampled_from(["status", "q", "sort", "page"]), st.text(max_size=20)))
def test_any_address_shows_a_page_and_its_links_keep_the_choice(given_: dict[str, str]) -> None:
    query = Query.parse(given_)
    assert query.page >= 1
    link = query.text(page=query.page)
    from urllib.parse import parse_qsl, urlsplit

    assert Query.parse(dict(parse_qsl(urlsplit(link).query))) == query


def test_pages_have_bounds() -> None:
    many = Sweeps().sweep(*(group_view(f"g{number:03d}", {at(0): 1}) for number in range(120)), ends=log(1))
    assert [len(rows(shown(f"/?page={number}", many))) for number in (1, 2, 3, 99)] == [50, 50, 20, 20]
    assert "51–100 of 120" in shown("/?page=2", many).text
    assert paged([1, 2, 3], 2, 2) == ([3], 2, 2)


def test_a_group_page_shows_owners_reasons_and_commands() -> None:
    text = shown("/groups/half").text
    assert "no member owns it" in text
    assert "anna" in text
    assert "orders/1" in text


HELD = "/consumers/billing/owners/orders/0"


def held_by(path: str, *, since_s: int = 60, owned: tuple[int, ...] = (1, 2)) -> GroupView:
    """A group of which anna owns these partitions, and ghost-0, which is not registered, has an owner node."""
    found = group_view("billing", {at(0): 100}, members={"anna": owned})
    ghost = Owner(at(0), "ghost-0", 42, from_ms(NOW - since_s * 1000), path=path)
    return replace(found, owners=(*found.owners, ghost))


def held_by_others(found: GroupView) -> str:
    """Return the text of the section that names the holders of partitions."""
    html = view(Sweeps().sweep(found, ends=log(100)), "/groups/billing", NOW).html
    return parsed(html.partition("Held by others</h2>")[2].partition("</section>")[0]).text


def test_the_command_releases_the_owner_that_holds_the_partition_and_no_other() -> None:
    assert held_by_others(held_by(HELD)) == (
        "orders/0 held for 1m by ghost-0, which is not registered. "
        "zkgroups release --expect-owner=ghost-0 --expect-session=0x2a billing orders 0"
    )
    found = group_view("billing", {at(0): 100}, members={"anna": [0], "ben": []})
    elsewhere = replace(found.instances[0], registration=Registration({"refunds": 1}))
    assert held_by_others(replace(found, instances=(elsewhere, *found.instances[1:]))) == (
        "orders/0 held for 1m by anna, which does not subscribe. "
        "zkgroups release --expect-owner=anna --expect-session=0x64 billing orders 0"
    )


def test_an_owner_that_release_does_not_find_has_no_command() -> None:
    orphan = held_by("/consumers/billing/owners/b'orders'/1001-0", since_s=20, owned=(0, 1, 2))
    assert held_by_others(orphan) == "orders/0 held for 20s by ghost-0, which is not registered. "


def test_of_an_unreadable_owner_node_nothing_is_claimed() -> None:
    left_over = MalformedNode(HELD, b"anna-0", "it belongs to no session", created_at=from_ms(NOW - 60_000))
    found = group_view("billing", {at(0): 100}, members={"anna": [1, 2]}, unreadable=[left_over])
    assert held_by_others(found) == "orders/0 held for 1m by an owner node that cannot be read. "


def test_of_an_unreadable_registration_nothing_is_claimed() -> None:
    found = group_view("billing", {at(0): 100}, members={"anna": [0], "ben": [1, 2]})
    bad = MalformedNode("/consumers/billing/ids/anna", b"x", "it is not JSON", 100)
    unknown = replace(found.instances[0], registration=bad)
    assert held_by_others(replace(found, instances=(unknown, *found.instances[1:]))) == (
        "orders/0 held for 1m by anna, whose registration cannot be read. "
        "zkgroups release --expect-owner=anna --expect-session=0x64 billing orders 0"
    )


def test_a_finding_that_can_disappear_is_shown_when_two_checks_have_found_it() -> None:
    sweeps = Sweeps()
    half = group_view("half", {at(0): 100}, members={"anna": [0]})
    first, second = (sweeps.sweep(half, ends=log(100), now=NOW + number).groups["half"] for number in range(2))
    assert [each.code.value for each in first.findings] == []
    assert [each.code.value for each in second.findings] == ["unowned-partition"]


def test_a_page_of_a_missing_group_says_so() -> None:
    found = view(mixed(), "/groups/nothing", NOW)
    assert not found.exists
    assert "Not found" in found.html


def test_banners_tell_which_source_does_not_answer_and_how_old_the_page_is() -> None:
    from dataclasses import replace

    bad = SourceState(NOW - 60_000, "connection refused <b>", NOW - 30_000)
    picture = replace(mixed(), zookeeper=bad, brokers=bad)
    tags = shown("/", picture)
    assert "ZooKeeper does not answer for 30s" in tags.text
    assert "The brokers do not answer." in tags.text
    assert "connection refused <b>" in tags.text
    read_only = replace(mixed(), zookeeper=SourceState(NOW, is_read_only=True))
    assert "ZooKeeper has no leader." in shown("/", read_only).text


def test_before_the_first_sweep_the_page_says_so() -> None:
    empty = Picture(0, "prod", SourceState(), None)
    assert "being read for the first time" in shown("/", empty).text
    assert view(empty, "/groups/billing", NOW).exists, "it may exist"


def test_a_page_needs_nothing_from_elsewhere_and_no_inline_style_or_script() -> None:
    for address in ("/", "/groups/billing", "/groups/half", "/topics", "/topics/orders"):
        for tag, attributes in shown(address).tags:
            assert "style" not in attributes
            for key in ("src", "href"):
                assert (attributes.get(key) or "/").startswith(("/", "#")), (tag, attributes)


def test_the_owners_over_time_are_those_of_the_events() -> None:
    events = [
        GroupEvent(100, EventKind.CLAIMED, "anna", at(0)),
        GroupEvent(150, EventKind.RELEASED, "anna", at(0)),
        GroupEvent(150, EventKind.RELEASED, "carl", at(1)),
        GroupEvent(200, EventKind.CLAIMED, "ben", at(0)),
    ]
    assert spans(events, {at(0): "ben", at(1): None}, 300) == {
        at(0): [Span(100, 150, "anna"), Span(150, 200, None), Span(200, 300, "ben")],
        at(1): [Span(100, 150, "carl"), Span(150, 300, None)],
    }
    assert spans([], {}, 300) == {}


def test_a_status_filter_exists_for_each_status() -> None:
    for status in Status:
        assert Query.parse({"status": status.value}).status is status
