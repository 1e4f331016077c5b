"""One link, to servers that lie, break off, stand still, or come back, in simulated time."""

from __future__ import annotations

import asyncio
import gc
import struct
import warnings

import pytest

from zkgroups.exceptions import BrokersTooOldError, UnavailableError
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire import link as link_module
from zkgroups.kafka.wire.connection import Connection
from zkgroups.kafka.wire.errors import AnswerLostError, DamagedAnswerError, NotSentError, WireError
from zkgroups.kafka.wire.link import Link
from zkgroups.kafka.wire.login import Plain
from zkgroups.kafka.wire.security import Security

from .conftest import run
from .fake_broker import DESCRIBE, Asked, FakeBroker, Send, describe, never, with_fakes, with_link

LONGEST = 30.0


async def name(link: Link, group: str = "billing") -> str:
    """Ask about a group. The answer has its name."""
    [found] = (await link.request(describe(group), timeout=LONGEST)).groups
    return str(found.group_id)


LIES = {
    "negative length": struct.pack(">i", -1) + b"x" * 20,
    "huge length": struct.pack(">i", 2**31 - 1) + b"x" * 20,
    "wrong correlation id": struct.pack(">ii", 8, 77) + b"\0\0\0\0",
    "too short for a correlation id": struct.pack(">i", 2) + b"ab",
    "empty": struct.pack(">i", 0),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "TLS alert": b"\x15\x03\x03\x00\x02\x02\x50",
    "two answers": struct.pack(">ii", 4, 1) * 2,
}


@pytest.mark.parametrize("key", [DESCRIBE, codec.API_VERSIONS])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@with_link
async def test_a_lie_is_an_error_and_the_next_request_is_answered(
    fake: FakeBroker, link: Link, lie: bytes, key: int
) -> None:
    async def lying(_: Asked, send: Send) -> None:
        await send(lie)

    fake.behaviours[key] = lying
    with pytest.raises(WireError) as caught:
        await name(link)
    assert caught.value.sent == (key == DESCRIBE)
    fake.behaviours.clear()
    assert await name(link) == "billing"


@with_link
async def test_answers_that_do_not_fit_their_request_are_errors(fake: FakeBroker, link: Link) -> None:
    async def to_another(asked: Asked, send: Send) -> None:
        asked.id += 1
        await fake.answer(asked, send)

    async def lacking(asked: Asked, send: Send) -> None:
        await send(asked.frame(codec.DescribeGroupsResponse(groups=None)))

    async def garbage(asked: Asked, send: Send) -> None:
        body = struct.pack(">i", asked.id) + b"\0\0\0\0\0\xff\xff\xff\x0f" + b"x" * 50
        await send(struct.pack(">i", len(body)) + body)

    for lie, words in (
        (to_another, "not answer in the order of the requests"),
        (lacking, "lacks a value"),
        (garbage, r"an answer to DescribeGroups .* cannot be read"),
    ):
        fake.behaviours[DESCRIBE] = lie
        with pytest.raises(DamagedAnswerError, match=words):
            await name(link)


@with_link
async def test_the_answer_to_a_cancelled_request_is_skipped(fake: FakeBroker, link: Link) -> None:
    free = asyncio.Event()

    async def slow(asked: Asked, send: Send) -> None:
        await free.wait()
        await fake.answer(asked, send)

    fake.behaviours[DESCRIBE] = slow
    cancelled = [asyncio.create_task(name(link, f"cancelled-{n}")) for n in range(3)]
    while DESCRIBE not in fake.asked:
        await asyncio.sleep(0.01)
    for task in cancelled:
        task.cancel()
    assert {type(each) for each in await asyncio.gather(*cancelled, return_exceptions=True)} == {asyncio.CancelledError}
    others = [asyncio.create_task(name(link, f"other-{n}")) for n in range(3)]
    await asyncio.sleep(0)
    free.set()
    assert await asyncio.gather(*others) == ["other-0", "other-1", "other-2"]
    assert fake.connections == 1


@with_link
async def test_a_request_without_an_answer_ends_its_connection(fake: FakeBroker, link: Link) -> None:
    assert await name(link) == "billing"
    fake.behaviours[DESCRIBE] = never
    with pytest.raises(AnswerLostError, match=r"no answer from .* within 0.1 s") as caught:
        await link.request(describe("billing"), timeout=0.1)
    assert caught.value.sent
    fake.behaviours.clear()
    assert await name(link) == "billing"
    assert fake.connections == 2


@with_fakes
async def test_a_server_that_stands_still_is_not_connected(fake: FakeBroker) -> None:
    fake.behaviours[codec.API_VERSIONS] = never
    link = Link(fake.address, Security(), connect_timeout=0.1)
    with pytest.raises(NotSentError, match=r"no connection to .* within 0.1 s") as caught:
        await link.request(describe("billing"), timeout=LONGEST)
    assert not caught.value.sent


@with_link
async def test_a_connection_that_the_broker_closed_is_opened_again(fake: FakeBroker, link: Link) -> None:
    for _ in range(3):
        assert await name(link) == "billing"
        fake.cut()
        while link.is_open:
            await asyncio.sleep(0.01)
    assert fake.connections == 3
    link.close()
    with pytest.raises(UnavailableError, match="closed"):
        await name(link)


@with_link
async def test_requests_in_flight_fail_when_the_link_is_closed(fake: FakeBroker, link: Link) -> None:
    fake.behaviours[DESCRIBE] = never
    asked = asyncio.create_task(name(link))
    while DESCRIBE not in fake.asked:
        await asyncio.sleep(0.01)
    link.close()
    with pytest.raises(AnswerLostError, match="it was closed"):
        await asked


@with_link
async def test_a_request_that_the_broker_does_not_support_is_not_sent(fake: FakeBroker, link: Link) -> None:
    async def few(asked: Asked, send: Send) -> None:
        api = codec.ApiVersionsResponse.ApiVersion
        await send(asked.frame(codec.ApiVersionsResponse(api_keys=[api(api_key=15, min_version=90, max_version=99)])))

    fake.behaviours[codec.API_VERSIONS] = few
    with pytest.raises(BrokersTooOldError, match="have no common version of DescribeGroups requests"):
        await name(link)
    assert fake.asked == [codec.API_VERSIONS]


@with_link
async def test_a_slow_broker_is_not_taken_for_an_old_one(fake: FakeBroker, link: Link) -> None:
    async def slow(asked: Asked, send: Send) -> None:
        await asyncio.sleep(1.5)
        await fake.answer(asked, send)

    fake.behaviours = dict.fromkeys((codec.API_VERSIONS, codec.METADATA), slow)
    assert (await link.open()).release is None
    assert await name(link) == "billing"


@pytest.mark.filterwarnings("error")
def test_a_connection_that_is_cancelled_at_any_moment_leaves_no_socket_open() -> None:
    """On real sockets, which report that they were left open."""

    async def use() -> None:
        async with FakeBroker() as fake:
            for steps in range(20):
                opening = asyncio.create_task(Connection.open(fake.address, None))
                for _ in range(steps):
                    await asyncio.sleep(0)
                if not opening.cancel():
                    (await opening).close()
                await asyncio.wait([opening])

    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what the tests before have left
    run(use())
    gc.collect()  # a socket that is open reports it, and the test fails


@with_fakes
async def test_a_login_counts_from_before_it_began_so_that_it_is_repeated_in_time(
    fake: FakeBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker counts from its answer, which may arrive here much later."""
    lifetime, loop = 10.0, asyncio.get_running_loop()

    async def late(*_: object) -> float:
        await asyncio.sleep(2.0)
        return lifetime

    monkeypatch.setattr(link_module, "log_in", late)
    link = Link(fake.address, Security(login=Plain("anna", "secret")))
    await link.open()
    assert link._expires < loop.time() - 1.9 + lifetime * link_module._SESSION_SHARE
    link.close()


async def lists(asked: Asked, send: Send) -> None:
    await send(asked.frame(codec.ListGroupsResponse(groups=[])))


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("lost", [2, 3])
@with_link
async def test_a_broker_whose_versions_are_lost_several_times_is_not_taken_for_an_old_one(
    fake: FakeBroker, link: Link, lost: int, damaged: bool
) -> None:
    """An old broker is asked for offsets in a way that makes a newer broker report none."""

    async def losing(asked: Asked, send: Send) -> None:
        if fake.asked.count(codec.API_VERSIONS) > lost:
            await fake.answer(asked, send)
            return
        if damaged and fake.asked.count(codec.API_VERSIONS) > 1:
            await send(struct.pack(">ii", 5, asked.id) + b"\0")
        raise ConnectionError

    fake.behaviours = {codec.API_VERSIONS: losing, codec.LIST_GROUPS: lists}
    assert await release_of(link) is None
    assert await name(link) == "billing"


async def release_of(link: Link) -> str | None:
    """Ask until the broker is known."""
    while True:
        try:
            return (await link.open()).release
        except NotSentError:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(("release", "answered"), [("0.9", (16, codec.METADATA)), ("0.8", (codec.METADATA,))])
@with_link
async def test_a_broker_that_reports_no_versions_is_known_by_its_answers(
    fake: FakeBroker, link: Link, release: str, answered: tuple[int, ...], closes: bool
) -> None:
    async def silent(asked: Asked, send: Send) -> None:
        if closes:
            raise ConnectionError
        await never(asked, send)

    fake.behaviours = dict.fromkeys((codec.API_VERSIONS, 16), silent)
    if 16 in answered:
        fake.behaviours[16] = lists
    assert await release_of(link) == release
    assert len((await link.request(codec.MetadataRequest(topics=None))).brokers) == 1
    if release == "0.8":
        with pytest.raises(BrokersTooOldError):
            await name(link)


class Cutter:
    """Passes on bytes between a client and a broker, and cuts the connection after some of them."""

    def __init__(self, fake: FakeBroker, at: int, *, requests: bool) -> None:
        self._target, self._left, self._requests = fake.address, at, requests
        self.fired = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(self._pass(reader, there[1], self._requests)),
            asyncio.create_task(self._pass(there[0], writer, not self._requests)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for each in (writer, there[1]):
            each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        while data := await reader.read(1 << 16):
            if counted and not self.fired:
                writer.write(data[: self._left])
                self._left -= len(data)
                if self._left < 0:
                    self.fired = True
                    await asyncio.sleep(0.01)
                    return
            else:
                writer.write(data)


@pytest.mark.parametrize("requests", [True, False])
@with_fakes
async def test_a_connection_that_breaks_at_any_byte_is_an_error_and_then_repaired(
    fake: FakeBroker, *, requests: bool
) -> None:
    """Connect, and ask twice: at some byte the run is not cut anymore."""

    async def was_cut(at: int) -> bool:
        cutter = Cutter(fake, at, requests=requests)
        async with await asyncio.start_server(cutter.serve, fake.address.host, 0) as server:
            link = Link(fake.address._replace(port=server.sockets[0].getsockname()[1]), Security())
            for group in ("billing", "other"):
                for _ in range(2):
                    try:
                        assert await name(link, group) == group
                        break
                    except WireError:
                        assert cutter.fired
                else:
                    pytest.fail(f"not repaired after the cut at byte {at}")
            link.close()
        return cutter.fired

    at = 0
    while await was_cut(at):
        at += 1 if at < 60 else 3
    assert at > 80
