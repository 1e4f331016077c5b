"""The pages by their addresses, and the frame around them.

`view` returns the part of a page that changes with the picture. A page has it from the beginning, so it works without
scripts; with scripts, the event stream replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..._version import VERSION
from ..picture.values import Picture
from .group import group_page
from .html import Html, element, joined, plain
from .overview import overview
from .parts import banners, sources
from .queries import Query
from .topic import topic_page, topics_page

GROUPS = "/groups/"
TOPICS = "/topics/"


class View(NamedTuple):
    """The part of a page that changes, its title, and whether the page exists."""

    title: str
    html: Html
    exists: bool = True


def view(picture: Picture, address: str, now_ms: int) -> View:
    """Return the page at a path with parameters, such as `/?status=STOP` or `/groups/billing`."""
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query))
    title, content, exists = _content(picture, parts.path, given, now_ms)
    html = joined(
        element(
            "header",
            element(
                "nav",
                element("a", "zkgroups", href="/", class_="brand"),
                element("a", "Groups", href="/", aria_current="page" if not parts.path.startswith("/topics") else None),
                element(
                    "a", "Topics", href="/topics", aria_current="page" if parts.path.startswith("/topics") else None
                ),
                aria_label="Pages",
            ),
            element("p", picture.cluster, class_="cluster", title="Cluster"),
            sources(picture, now_ms),
            element("p", class_="stream", role="status"),
            class_="top",
        ),
        banners(picture),
        element("main", content, id="content"),
    )
    return View(f"{plain(title)} – zkgroups", element("div", html, id="view", data_now=now_ms), exists)


def _content(picture: Picture, path: str, given: Mapping[str, str], now_ms: int) -> tuple[str, Html, bool]:
    query = Query.parse(given)
    if path == "/":
        return "Groups", overview(picture, query, now_ms), True
    if path == "/topics":
        return "Topics", topics_page(picture, query.page), True
    if path.startswith(GROUPS) and (name := unquote(path.removeprefix(GROUPS))) in picture.groups:
        return name, group_page(picture.groups[name], query.page, now_ms), True
    if path.startswith(TOPICS) and (name := unquote(path.removeprefix(TOPICS))) in picture.topics:
        return name, topic_page(picture, name, picture.topics[name], query.page, now_ms), True
    missing = joined(
        element("h1", "Not found"),
        element(
            "p", "There is no such group or topic now. It may have been deleted. ", element("a", "All groups", href="/")
        ),
    )
    return "Not found", missing, not picture.is_ready


def page(found: View) -> str:
    """Return a whole page with this view."""
    document = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", found.title),
            element("link", rel="icon", href=f"/static/icon.svg?{VERSION}", type="image/svg+xml"),
            element("link", rel="stylesheet", href=f"/static/page.css?{VERSION}"),
            element("script", type="module", src=f"/static/page.js?{VERSION}"),
        ),
        element(
            "body",
            element("a", "Skip to content", href="#content", class_="skip"),
            found.html,
            _footer(),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _footer() -> Html:
    keys = {"/": "search", "j k": "move", "Enter": "open", "u": "back"}
    shown = [joined(element("kbd", key), f" {what}  ") for key, what in keys.items()]
    return element(
        "footer",
        element("p", shown, class_="keys"),
        element(
            "p",
            element("a", "Metrics", href="/metrics"),
            " · ",
            element("a", "API", href="/api/v1/openapi.json"),
            f" · zkgroups {VERSION}",
        ),
        element("button", "Theme", type="button", id="theme", hidden=True),
        class_="foot",
    )
