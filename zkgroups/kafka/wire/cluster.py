"""The brokers of a cluster: found by way of some of their addresses, forgotten when they die, and found again."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from ...deadline import Deadline
from ...exceptions import UnavailableError
from . import codec
from .connection import Versions
from .errors import Address, NoListenerError, NotSentError, WireError, addresses
from .link import Link
from .security import Security

# Run several attempts at a time, and use the first that succeeds.


_AT_A_TIME: Final = 4
_NEXT_AFTER: Final = 0.25
"""In seconds: after this time the next attempt begins, even if earlier attempts have no result."""
_GRACE: Final = 0.5
"""In seconds: how long other attempts may go on after a permanent error."""
_ATTEMPTS: Final = 3

T = TypeVar("T")
U = TypeVar("U")


async def first_of(candidates: Iterable[T], attempt: Callable[[T], Coroutine[Any, Any, U]]) -> U:
    """Return the result of the first attempt that succeeds.

    If all fail, raise a permanent error if there was one, or else an error with some of the reasons.
    """
    left = list(candidates)
    running: set[asyncio.Task[U]] = set()
    failed: list[BaseException] = []
    permanent = None
    try:
        while (left and permanent is None) or running:
            if left and permanent is None and len(running) < _AT_A_TIME:
                running.add(asyncio.create_task(attempt(left.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=_pause(bool(left), len(running), permanent), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (error := task.exception()) is None:
                    return task.result()
                failed.append(error)
            if permanent is not None and not done:
                break
            permanent = next((error for error in failed if not isinstance(error, WireError)), None)
    finally:
        for task in running:
            task.cancel()
    kind = NoListenerError if all(isinstance(error, NoListenerError) for error in failed) else NotSentError
    raise permanent or kind("; ".join(dict.fromkeys(map(str, failed[:_ATTEMPTS]))))


def _pause(more: bool, running: int, permanent: BaseException | None) -> float | None:
    """Return how long to wait for a result; None to wait without a limit, because no attempt can be added."""
    if permanent is not None:
        return _GRACE
    return _NEXT_AFTER if more and running < _AT_A_TIME else None


Build = Callable[[int, int, str], bytes]
"""Returns the frame of a request, given its version, its correlation id and the client's name."""

_BY_NAME: Final = 4
"""From this version on, a Metadata request can name a topic without creating it."""
_REASONS: Final = 5
"""So many brokers are named in the error that none has answered."""
_NO_TOPICS: Final = 1
"""From this version on, a Metadata request can ask for no topics."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: the leader of each partition (-1 without a leader), its id since release 2.8, and Kafka's error code."""

    leaders: Mapping[int, int]
    id: str | None = None
    error: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """Brokers by their ids, and topics by name, as one broker knows them."""

    brokers: Mapping[int, Address] = field(default_factory=dict)
    controller: int | None = None
    cluster_id: str | None = None
    topics: Mapping[str, Topic] = field(default_factory=dict)

    def only(self, topics: Iterable[str]) -> Metadata:
        """Return this metadata with these topics only."""
        return replace(self, topics={name: self.topics[name] for name in topics if name in self.topics})


class Cluster:
    """The brokers of one cluster, as an asynchronous context manager. Belongs to one event loop."""

    def __init__(
        self,
        bootstrap: str,
        security: Security | None = None,
        *,
        client_id: str = "zkgroups",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        unreachable_timeout: float | None = None,
        links: int = 16,
    ) -> None:
        self.bootstrap = bootstrap
        self.unreachable_timeout = unreachable_timeout
        self._bootstrap = addresses(bootstrap)
        self._security = security or Security()
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._most_links = links
        self._links: dict[Address, list[Link]] = {}
        self._brokers: Mapping[int, Address] = {}
        self._suspects: dict[Address, str] = {}
        """Brokers that have not answered their last request, and why."""
        self._learning = asyncio.Lock()
        self._closed = False

    async def ask(self, node: int | None, request: Any, *, timeout: float | None = None) -> Any:
        """Return the response of the broker with this id, or of any broker.

        Raise a `WireError` if a retry may help: a broker that could not be reached is looked up again by the next call.
        """
        timeout = self._limited(timeout)
        link = await self._found(node, timeout)
        with self._watched(link):
            return await link.request(request, timeout=timeout)

    async def versions(self, node: int | None = None, *, timeout: float | None = None) -> Versions:
        """Return the versions of requests that the broker with this id supports, or any broker."""
        timeout = self._limited(timeout)
        link = await self._found(node, timeout)
        with self._watched(link):
            try:
                async with asyncio.timeout(timeout):
                    return await link.open()
            except TimeoutError as error:
                raise NotSentError(f"no connection to {link.address} within {timeout:.3g} s") from error

    async def exchange(self, node: int, key: int, build: Build, *, timeout: float) -> tuple[int, bytes]:
        """Build a request for a version that the broker supports, and send it. Return the version and the answer."""
        timeout = self._limited(timeout)
        link = await self._found(node, timeout)

        def frame(version: int, correlation_id: int) -> bytes:
            return build(version, correlation_id, self._client_id)

        with self._watched(link):
            return await link.exchange(key, frame, timeout=timeout)

    async def link(self, node: int) -> Link:
        """Return the least busy link to a broker. Use it at once: until then, other callers get the same link."""
        if node not in self._brokers:
            async with self._learning:
                if node not in self._brokers:
                    await self.metadata([])
        if node not in self._brokers:
            raise NotSentError(f"no broker of the cluster has the id {node}")
        return self._link(self._brokers[node])

    async def any_link(self) -> Link:
        """Return the least busy open link; without one, a link to the first broker that can be connected.

        Brokers that did not answer their last request come last.
        """
        self._check_open()
        links = [link for links in self._links.values() for link in links]
        if found := [link for link in links if link.is_open and link.address not in self._suspects]:
            return self._link(min(found, key=_load).address)
        known = dict.fromkeys((*self._brokers.values(), *self._bootstrap))
        return await first_of(sorted(known, key=self._suspects.__contains__), self._open)

    async def metadata(self, topics: Iterable[str] | None = None, *, timeout: float | None = None) -> Metadata:
        """Ask any broker about the cluster and these topics, or all. A topic that does not exist has an error code.

        No topic is created. Brokers before 0.11 create topics that a request names, so they are asked for all topics.
        """
        wanted = None if topics is None else sorted(set(topics))
        timeout = self._limited(timeout)
        link = await self._found(None, timeout)

        def frame(version: int, correlation_id: int) -> bytes:
            return codec.encode(_metadata_request(wanted, version), version, correlation_id, self._client_id)

        with self._watched(link):
            version, answer = await link.exchange(codec.METADATA, frame, timeout=timeout)
            found = _metadata(codec.decode(codec.MetadataRequest(), version, answer))
            if not found.brokers:  # it does not know the topics yet either
                raise NotSentError(f"the broker at {link.address} has just started, and does not know its cluster yet")
        self._learn(found.brokers)
        return found if wanted is None else found.only(wanted)

    async def close(self) -> None:
        """Close all connections. Requests without an answer fail."""
        self._closed = True
        for link in [link for links in self._links.values() for link in links]:
            link.close()
        self._links.clear()
        await asyncio.sleep(0)  # for the event loop to close the sockets

    def _limited(self, timeout: float | None) -> float:
        """Return the timeout of a request, in seconds."""
        return self._request_timeout if timeout is None else min(timeout, self._request_timeout)

    async def _found(self, node: int | None, timeout: float) -> Link:
        """Return a link to the broker with this id, or to any. Raise NotSentError after the timeout."""
        if node is not None and node in self._brokers:
            return self._link(self._brokers[node])
        try:
            async with asyncio.timeout(timeout):
                return await (self.any_link() if node is None else self.link(node))
        except TimeoutError as error:
            raise NotSentError(self._reasons()) from error

    def _reasons(self) -> str:
        known = dict.fromkeys((*self._brokers.values(), *self._bootstrap))
        reasons = [self._suspects.get(address) or _no_answer(address) for address in known]
        return "; ".join(dict.fromkeys(reasons[:_REASONS]))

    def _link(self, address: Address) -> Link:
        """Return an idle link, a new one, or the least busy one."""
        self._check_open()
        links = self._links.setdefault(address, [])
        for index, link in enumerate(links):
            if link.load == 0 and link.is_open:
                links.append(links.pop(index))  # so that idle links come first
                return link
        idle = [link for link in links if link.load == 0]
        if idle or len(links) >= self._most_links:
            return min(idle or links, key=_load)
        links.append(Link(address, self._security, client_id=self._client_id, connect_timeout=self._connect_timeout))
        return links[-1]

    async def _open(self, address: Address) -> Link:
        link = self._link(address)
        with self._watched(link):
            await link.open()
        return link

    @contextmanager
    def _watched(self, link: Link) -> Iterator[None]:
        """Note whether a broker answers. Forget the address of a broker that cannot be reached."""
        try:
            yield
        except NotSentError as error:
            self._suspects[link.address] = str(error)
            self._brokers = {node: where for node, where in self._brokers.items() if where != link.address}
            raise
        except (WireError, asyncio.CancelledError) as error:
            self._suspects[link.address] = str(error) or _no_answer(link.address)
            raise
        self._suspects.pop(link.address, None)

    def _learn(self, brokers: Mapping[int, Address]) -> None:
        """Replace the known brokers, and close idle links to removed brokers."""
        if not brokers:  # a broker that has just started knows no others
            return
        self._brokers = brokers
        for address in self._links.keys() - {*brokers.values(), *self._bootstrap}:
            for link in [link for link in self._links[address] if link.load == 0]:
                link.close()
                self._links[address].remove(link)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the connection to the brokers is closed: connect again")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _no_answer(address: Address) -> str:
    return f"no answer from {address}"


def _load(link: Link) -> tuple[int, bool]:
    """Return the sort key of a link: less busy links first, and of these the open ones."""
    return link.load, not link.is_open


def _metadata_request(topics: list[str] | None, version: int) -> Any:
    if topics is None or version < (_BY_NAME if topics else _NO_TOPICS):
        return codec.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    named = [codec.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return codec.MetadataRequest(topics=named, allow_auto_topic_creation=False)


def _metadata(found: Any) -> Metadata:
    return Metadata(
        {each.node_id: Address(each.host, each.port) for each in found.brokers},
        None if found.controller_id is None or found.controller_id < 0 else found.controller_id,
        found.cluster_id or None,
        {each.name: _topic(each) for each in found.topics if each.name is not None},
    )


def _topic(found: Any) -> Topic:
    leaders = {each.partition_index: each.leader_id for each in found.partitions}
    id = None if found.topic_id is None else base64.urlsafe_b64encode(found.topic_id.bytes).rstrip(b"=").decode()
    return Topic(leaders, id, found.error_code)


# An event loop on a thread, for callers without one.


_CLEAN_UP: Final = 5.0
"""In seconds, for tasks that were cancelled."""


class Runner:
    """Runs coroutines on its own event loop, in a daemon thread that the first call starts.

    The thread also ends if nobody refers to the runner anymore.

    A forked child cannot use the connections of its parent, so a call there raises UnavailableError.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting: Future[asyncio.AbstractEventLoop] | None = None
        self._lock = threading.RLock()  # a signal handler may call while the thread starts
        self._process = os.getpid()
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T], deadline: Deadline | None = None) -> T:
        """Return the result of a coroutine. Raise TimeoutError after the deadline.

        If the calling thread is interrupted, for example by Ctrl-C, the coroutine is cancelled and has ended when the
        exception arrives.
        """
        try:
            loop = self._started()
        except BaseException:
            coroutine.close()
            raise
        begun, ended = threading.Event(), threading.Event()
        running = asyncio.run_coroutine_threadsafe(_run(coroutine, deadline, begun, ended), loop)
        try:
            return running.result()
        except CancelledError:
            raise UnavailableError("the connection to the brokers was closed during the call: connect again") from None
        except BaseException:
            if not running.done():
                begun.wait(_CLEAN_UP)  # a task that is cancelled before it begins leaves its coroutine open
                running.cancel()
                ended.wait(_CLEAN_UP)
            raise

    def close(self) -> None:
        """Cancel all tasks, and end the thread. Does nothing in a forked child."""
        starting, thread = self._starting, self._thread
        self._closed = True
        if starting is None or os.getpid() != self._process:
            return
        _stop(starting)
        self._abandoned.detach()
        if thread is not None and thread.is_alive():
            thread.join(_CLEAN_UP)
        self._loop = self._starting = self._thread = None

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise UnavailableError("the connection to the brokers is closed: connect again")
        if os.getpid() != self._process:
            raise UnavailableError("the connection to the brokers belongs to the parent process: connect again")
        if self._loop is None:
            with self._lock:
                starting = self._start()
            self._loop = starting.result()
        return self._loop

    def _start(self) -> Future[asyncio.AbstractEventLoop]:
        """Start the thread, unless an interrupted call has. Every thread ends with the runner."""
        if self._starting is None or self._thread is None or not self._thread.is_alive():
            self._starting = Future()
            self._abandoned = weakref.finalize(self, _stop, self._starting)
            self._abandoned.atexit = False
            self._thread = threading.Thread(target=_serve, args=(self._starting,), name="zkgroups-kafka", daemon=True)
            self._thread.start()
        return self._starting


def _stop(starting: Future[asyncio.AbstractEventLoop]) -> None:
    """Stop the event loop of a thread, or as soon as it has one."""

    def stop(started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = started.result()
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.stop)

    starting.add_done_callback(stop)


async def _run(
    coroutine: Coroutine[Any, Any, T], deadline: Deadline | None, begun: threading.Event, ended: threading.Event
) -> T:
    begun.set()
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            return await coroutine
    finally:
        ended.set()


def _serve(started: Future[asyncio.AbstractEventLoop]) -> None:
    """Run an event loop until it is stopped, then cancel its tasks and close it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set_result, loop)
        loop.run_forever()
