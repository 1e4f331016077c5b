"""HTML that is escaped by default.

`element` accepts texts, which it escapes, and other elements, which it does not. So no name can become markup.
Characters that are invisible or change the direction of text are shown as their numbers, so that a name cannot look
like another one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

Child = "Html | str | int | None | Iterable[Html | str | None]"

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_VOID: Final = frozenset({"input", "link", "meta", "br"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Html:
    r"""Escape a text, and make invisible characters visible.

    >>> print(escaped("<b>&\u202e"))
    &lt;b&gt;&amp;<span class="esc">\u202e</span>
    """
    if isinstance(text, Html):
        return text
    shown = html.escape(str(text))
    return Html(_HIDDEN.sub(_visible, shown)) if not shown.isascii() or not shown.isprintable() else Html(shown)


def _visible(found: re.Match[str]) -> str:
    return f'<span class="esc">\\u{ord(found[0]):04x}</span>'


def plain(text: str) -> str:
    r"""Make invisible characters visible in a text that is not HTML, such as a title.

    >>> plain("a\u202eb")
    'a\\u202eb'
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def element(tag: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:  # type: ignore[valid-type]
    """Return an element. `class_` is the attribute class, `data_x` is data-x. None and False leave an attribute out.

    >>> print(element("a", "x<y", href="/?a=1&b", class_="name"))
    <a href="/?a=1&amp;b" class="name">x&lt;y</a>
    """
    parts = [f"<{tag}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{html.escape(plain(str(value)))}"')
    parts.append(">")
    parts.extend(_children(children))
    if tag not in _VOID:
        parts.append(f"</{tag}>")
    return Html("".join(parts))


def joined(*children: Child) -> Html:  # type: ignore[valid-type]
    """Join texts and elements."""
    return Html("".join(_children(children)))


def _children(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            yield escaped(child)
        elif isinstance(child, Iterable):
            yield from _children(child)


def group_path(name: str) -> str:
    """Return the path of the page of a group.

    >>> group_path("a b/c?<")
    '/groups/a%20b%2Fc%3F%3C'
    """
    return f"/groups/{quote(name, safe='')}"


def topic_path(name: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topics/{quote(name, safe='')}"
