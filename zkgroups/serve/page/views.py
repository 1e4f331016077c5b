"""The pages by their addresses, and the frame around them.

`view` returns the part of a page that changes with the picture. A page has it from the beginning, so it works without
scripts; with scripts, the event stream replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..._version import VERSION
from ..picture.values import GroupPicture, Picture, TopicPicture
from .group import group_page
from .html import (
    Heading,
    Html,
    badge,
    banners,
    cell,
    count,
    element,
    exact,
    group_path,
    joined,
    moment,
    pager,
    plain,
    rate,
    reason,
    seconds,
    severity_class,
    since,
    sources,
    table,
    topic_path,
)
from .overview import Query, overview, paged

# The pages of topics: all topics, and for one topic its readers and its logs.


def topics_page(picture: Picture, page: int) -> Html:
    """Return the list of all topics."""
    shown, page, pages = paged(list(picture.topics.items()), page)
    rows = [
        element(
            "tr",
            element("th", element("a", name, href=topic_path(name)), scope="row", class_="name"),
            cell(exact(len(topic.logs)) if topic.logs else "–", class_="number"),
            cell(rate(topic.produced), class_="number"),
            cell(exact(len(topic.groups)), class_="number"),
            data_key=name,
        )
        for name, topic in shown
    ]
    headings = [
        Heading("Topic"),
        Heading("Partitions", "number"),
        Heading("Produced", "number"),
        Heading("Groups", "number"),
    ]
    links = f"/topics?page={page - 1}", f"/topics?page={page + 1}"
    return joined(
        element("h1", "Topics"),
        table("Topics", headings, rows, empty="There are no topics."),
        pager("Pages of topics", page, pages, links, f"page {page} of {pages}"),
    )


def topic_page(picture: Picture, name: str, topic: TopicPicture, page: int, now_ms: int) -> Html:
    """Return the page of one topic: the groups that read it, and its logs."""
    groups = [picture.groups[group] for group in topic.groups if group in picture.groups]
    shown, page, pages = paged(groups, page)
    path = topic_path(name)
    links = f"{path}?page={page - 1}", f"{path}?page={page + 1}"
    return joined(
        element("nav", element("a", "← All topics", href="/topics", id="back"), class_="crumbs", aria_label="Back"),
        element("header", element("h1", name), element("p", f"{exact(len(groups))} groups read it"), class_="title"),
        element("section", element("h2", "Groups"), _groups(shown, name, now_ms)),
        pager("Pages of groups", page, pages, links, f"page {page} of {pages}" if pages > 1 else ""),
        element("section", element("h2", "Partitions"), _logs(topic)),
    )


def _groups(groups: Sequence[GroupPicture], topic: str, now_ms: int) -> Html:
    rows = []
    for group in groups:
        here = [each for each in group.partitions if each.at.topic == topic]
        lags = [each.lag for each in here if each.lag is not None]
        times = [each.time_lag for each in here if each.time_lag is not None]
        commits = [each.committed_ms for each in here if each.committed_ms is not None]
        last_ms = max(commits, default=None)
        rows.append(
            element(
                "tr",
                cell(badge(group.verdict)),
                element("th", element("a", group.name, href=group_path(group.name)), scope="row", class_="name"),
                reason(group.verdict),
                cell(exact(len(here)), class_="number"),
                cell(count(sum(lags) if lags else None), class_="number strong"),
                cell(seconds(max(times, default=None)), class_="number"),
                cell(since(last_ms, now_ms), class_="number", title=moment(last_ms)),
                data_key=group.name,
                class_=severity_class(group.verdict.severity),
            )
        )
    headings = [
        Heading("Status"),
        Heading("Group"),
        Heading("Reason"),
        Heading("Partitions", "number"),
        Heading("Lag here", "number"),
        Heading("Time lag", "number"),
        Heading("Last commit", "number"),
    ]
    return table("Groups that read this topic", headings, rows)


def _logs(topic: TopicPicture) -> Html:
    rows = [
        element(
            "tr",
            element("th", str(number), scope="row"),
            cell(exact(log.start), class_="number"),
            cell(exact(log.end), class_="number"),
            cell(exact(log.end - log.start), class_="number"),
            data_key=str(number),
        )
        for number, log in list(topic.logs.items())[:1000]
    ]
    headings = [
        Heading("Partition"),
        Heading("Log start", "number"),
        Heading("Log end", "number"),
        Heading("Messages", "number"),
    ]
    return table("Logs", headings, rows, empty="Its logs are unknown.")


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
