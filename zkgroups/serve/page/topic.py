"""The pages of topics: all topics that groups read, and for one topic its readers and its logs."""

from __future__ import annotations

from collections.abc import Sequence

from ..picture.values import GroupPicture, Picture, TopicPicture
from .html import Html, element, group_path, joined, topic_path
from .numbers import count, exact, moment, rate, seconds, since
from .parts import Heading, badge, cell, pager, reason, severity_class, table
from .queries import paged


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
        table("Topics", headings, rows, empty="No group reads a topic."),
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
