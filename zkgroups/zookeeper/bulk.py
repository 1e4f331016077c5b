"""Many reads at once: hundreds of requests are under way together, and answers come in the order of the questions.

Memory is bounded by the window, however many paths there are. A node that is gone reads as None, and one that may not
be read as a `DeniedNode` that says so: neither stops the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kazoo.exceptions import ConnectionClosedError, NoAuthError, NoNodeError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from ..core.model import DeniedNode
from ..exceptions import NoPermissionError
from .deadline import Deadline
from .errors import LOSSES, translate
from .handle import Handle
from .node import Node

WINDOW: Final = 256
"""Requests under way at a time: a server starts to throttle at 1,000 from all its clients."""


def nodes(
    handle: Handle, paths: Iterable[str], *, watch: Callable[[Any], None] | None = None
) -> Iterator[Node | DeniedNode | None]:
    """The nodes of all paths, in their order; with a watch on each, if one is given."""
    get = handle.session.client.get_async
    for path, found in _pipelined(handle, paths, lambda path: get(path, watch=watch)):
        yield Node.of(path, *found) if isinstance(found, tuple) else found


def children(handle: Handle, paths: Iterable[str]) -> Iterator[list[str] | DeniedNode | None]:
    """The names below all paths, in their order."""
    client = handle.session.client
    for _path, found in _pipelined(handle, paths, client.get_children_async):
        yield found


def _pipelined(handle: Handle, paths: Iterable[str], ask: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    waiting: deque[tuple[str, Any]] = deque()
    for path in paths:
        waiting.append((path, ask(path)))
        if len(waiting) >= WINDOW:
            yield _answer(handle, ask, *waiting.popleft())
    while waiting:
        yield _answer(handle, ask, *waiting.popleft())


def _answer(handle: Handle, ask: Callable[[str], Any], path: str, answer: Any) -> tuple[str, Any]:
    deadline = handle.deadline()
    try:
        return path, answer.get(timeout=deadline.remaining)
    except NoNodeError:
        return path, None
    except NoAuthError:
        return path, _denied(path)
    except KazooTimeoutError as error:
        raise translate(error, path) from error
    except (*LOSSES, ConnectionClosedError, SessionExpiredError):
        return path, _again(handle, ask, path, deadline)


def _again(handle: Handle, ask: Callable[[str], Any], path: str, deadline: Deadline) -> Any:
    """The connection was lost with the question: ask once more, patiently."""
    try:
        return handle.session.call(lambda: ask(path), path, deadline)
    except NoPermissionError:
        return _denied(path)


def _denied(path: str) -> DeniedNode:
    return DeniedNode(path, b"", "no permission to read it")
