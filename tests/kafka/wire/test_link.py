"""One link, to servers that lie, break off, stand still, or come back."""

from __future__ import annotations

import asyncio
import gc
import struct
import warnings
from collections.abc import Iterator

import pytest

from zkgroups.exceptions import BrokersTooOldError, UnavailableError
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire import link as link_module
from zkgroups.kafka.wire.address import addresses
from zkgroups.kafka.wire.connection import Connection
from zkgroups.kafka.wire.errors import AnswerLostError, DamagedAnswerError, NotSentError, WireError
from zkgroups.kafka.wire.link import Link
from zkgroups.kafka.wire.sasl import Plain
from zkgroups.kafka.wire.security import Security
from zkgroups.testing import KafkaBroker

from .conftest import run
from .fake_broker import DESCRIBE, HOST, Asked, FakeBroker, Send, describe

LONGEST = 30.0
SOON = 0.1


def link_to(fake: FakeBroker) -> Link:
    return Link(fake.address, Security())


async def name(link: Link, group: str) -> str:
    """Ask about a group. The answer has its name."""
    [found] = (await link.request(describe(group), timeout=LONGEST)).groups
    return str(found.group_id)


def lies() -> Iterator[tuple[str, bytes]]:
    yield "negative length", struct.pack(">i", -1) + b"x" * 20
    yield "huge length", struct.pack(">i", 2**31 - 1) + b"x" * 20
    yield "wrong correlation id", struct.pack(">ii", 8, 77) + b"\0\0\0\0"
    yield "too short for a correlation id", struct.pack(">i", 2) + b"ab"
    yield "empty", struct.pack(">i", 0)
    yield "HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n"
    yield "TLS alert", b"\x15\x03\x03\x00\x02\x02\x50"
    yield "two answers", struct.pack(">ii", 4, 1) * 2


@pytest.mark.parametrize(("lie", "key"), [(lie, key) for _, lie in lies() for key in (DESCRIBE, codec.API_VERSIONS)])
def test_a_lie_is_an_error_and_the_next_request_is_answered(lie: bytes, key: int) -> None:
    async def use() -> None:
        async def lying(_: Asked, send: Send) -> None:
            await send(lie)

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[key] = lying
            with pytest.raises(WireError) as caught:
                await name(link, "billing")
            assert caught.value.sent == (key == DESCRIBE)
            fake.behaviours.clear()
            assert await name(link, "billing") == "billing"
            link.close()

    run(use())


def test_an_answer_to_another_request_is_an_error() -> None:
    async def use() -> None:
        async def lying(asked: Asked, send: Send) -> None:
            asked.id += 1
            await fake.answer(asked, send)

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[DESCRIBE] = lying
            with pytest.raises(DamagedAnswerError, match="not answer in the order of the requests"):
                await name(link, "billing")
            link.close()

    run(use())


def test_an_answer_that_lacks_a_value_is_an_error() -> None:
    async def use() -> None:
        async def lacking(asked: Asked, send: Send) -> None:
            await send(asked.frame(codec.DescribeGroupsResponse(groups=None)))

        async with FakeBroker() as fake:
            fake.behaviours[DESCRIBE] = lacking
            link = link_to(fake)
            with pytest.raises(DamagedAnswerError, match="lacks a value"):
                await name(link, "billing")
            link.close()

    run(use())


def test_garbage_in_an_answer_is_an_error() -> None:
    async def use() -> None:
        async def lying(asked: Asked, send: Send) -> None:
            body = struct.pack(">i", asked.id) + b"\0\0\0\0\0\xff\xff\xff\x0f" + b"x" * 50
            await send(struct.pack(">i", len(body)) + body)

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[DESCRIBE] = lying
            with pytest.raises(DamagedAnswerError, match=r"an answer to DescribeGroups .* cannot be read"):
                await name(link, "billing")
            link.close()

    run(use())


def test_the_answer_to_a_cancelled_request_is_skipped() -> None:
    async def use() -> None:
        free = asyncio.Event()

        async def slow(asked: Asked, send: Send) -> None:
            await free.wait()
            await fake.answer(asked, send)

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[DESCRIBE] = slow
            cancelled = [asyncio.create_task(name(link, f"cancelled-{n}")) for n in range(3)]
            while DESCRIBE not in fake.asked:
                await asyncio.sleep(0)
            for task in cancelled:
                task.cancel()
            assert {type(each) for each in await asyncio.gather(*cancelled, return_exceptions=True)} == {
                asyncio.CancelledError
            }
            others = [asyncio.create_task(name(link, f"other-{n}")) for n in range(3)]
            await asyncio.sleep(0)
            free.set()
            assert await asyncio.gather(*others) == ["other-0", "other-1", "other-2"]
            assert fake.connections == 1
            link.close()

    run(use())


def test_a_request_without_an_answer_ends_its_connection() -> None:
    async def use() -> None:
        async def never(_asked: Asked, _send: Send) -> None:
            await asyncio.Event().wait()

        async with FakeBroker() as fake:
            link = link_to(fake)
            assert await name(link, "billing") == "billing"
            fake.behaviours[DESCRIBE] = never
            with pytest.raises(AnswerLostError, match=r"no answer from .* within 0.1 s") as caught:
                await link.request(describe("billing"), timeout=SOON)
            assert caught.value.sent
            fake.behaviours.clear()
            assert await name(link, "billing") == "billing"
            assert fake.connections == 2
            link.close()

    run(use())


def test_a_server_that_stands_still_is_not_connected() -> None:
    async def use() -> None:
        async def never(_asked: Asked, _send: Send) -> None:
            await asyncio.Event().wait()

        async with FakeBroker() as fake:
            fake.behaviours[codec.API_VERSIONS] = never
            link = Link(fake.address, Security(), connect_timeout=SOON)
            with pytest.raises(NotSentError, match=r"no connection to .* within 0.1 s") as caught:
                await link.request(describe("billing"), timeout=LONGEST)
            assert not caught.value.sent
            link.close()

    run(use())


def test_a_connection_that_the_broker_closed_is_opened_again() -> None:
    async def use() -> None:
        async with FakeBroker() as fake:
            link = link_to(fake)
            for _ in range(3):
                assert await name(link, "billing") == "billing"
                fake.cut()
                while link.is_open:
                    await asyncio.sleep(0)
            assert fake.connections == 3
            link.close()
            with pytest.raises(UnavailableError, match="closed"):
                await name(link, "billing")

    run(use())


def test_requests_in_flight_fail_when_the_link_is_closed() -> None:
    async def use() -> None:
        async def never(_asked: Asked, _send: Send) -> None:
            await asyncio.Event().wait()

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[DESCRIBE] = never
            asked = asyncio.create_task(name(link, "billing"))
            while DESCRIBE not in fake.asked:
                await asyncio.sleep(0)
            link.close()
            with pytest.raises(AnswerLostError, match="it was closed"):
                await asked

    run(use())


def test_a_request_that_the_broker_does_not_support_is_not_sent() -> None:
    async def use() -> None:
        async def few(asked: Asked, send: Send) -> None:
            api = codec.ApiVersionsResponse.ApiVersion
            await send(
                asked.frame(codec.ApiVersionsResponse(api_keys=[api(api_key=15, min_version=90, max_version=99)]))
            )

        async with FakeBroker() as fake:
            link = link_to(fake)
            fake.behaviours[codec.API_VERSIONS] = few
            with pytest.raises(BrokersTooOldError, match="have no common version of DescribeGroups requests"):
                await name(link, "billing")
            assert fake.asked == [codec.API_VERSIONS]
            link.close()

    run(use())


def test_a_slow_broker_is_not_taken_for_an_old_one() -> None:
    async def use() -> None:
        async def slow(asked: Asked, send: Send) -> None:
            await asyncio.sleep(1.5)
            await fake.answer(asked, send)

        async with FakeBroker() as fake:
            fake.behaviours[codec.API_VERSIONS] = slow
            fake.behaviours[codec.METADATA] = slow
            link = link_to(fake)
            assert (await link.open()).release is None
            assert await name(link, "billing") == "billing"
            link.close()

    run(use())


@pytest.mark.filterwarnings("error")
def test_a_connection_that_is_cancelled_at_any_moment_leaves_no_socket_open() -> None:
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


def test_a_login_counts_from_before_it_began_so_that_it_is_repeated_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker counts from its answer, which may arrive here much later."""
    ended = lifetime = 10.0

    async def late(*_: object) -> float:
        nonlocal ended
        await asyncio.sleep(0.2)
        ended = asyncio.get_running_loop().time()
        return lifetime

    async def use() -> None:
        async with FakeBroker() as fake:
            link = Link(fake.address, Security(login=Plain("anna", "secret")))
            await link.open()
            assert link._expires < ended - 0.1 + lifetime * link_module._SESSION_SHARE
            link.close()

    monkeypatch.setattr(link_module, "log_in", late)
    run(use())


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("lost", [2, 3])
def test_a_broker_whose_versions_are_lost_several_times_is_not_taken_for_an_old_one(lost: int, damaged: bool) -> None:
    """An old broker is asked for offsets in a way that makes a newer broker report none."""

    async def use() -> None:
        async def losing(asked: Asked, send: Send) -> None:
            if fake.asked.count(codec.API_VERSIONS) > lost:
                await fake.answer(asked, send)
                return
            if damaged and fake.asked.count(codec.API_VERSIONS) > 1:
                await send(struct.pack(">ii", 5, asked.id) + b"\0")
            raise ConnectionError

        async def lists(asked: Asked, send: Send) -> None:
            await send(asked.frame(codec.ListGroupsResponse(groups=[])))

        async with FakeBroker() as fake:
            fake.behaviours = {codec.API_VERSIONS: losing, codec.LIST_GROUPS: lists}
            link = link_to(fake)
            for _ in range(2 * lost):
                try:
                    assert (await link.open()).release is None
                    break
                except NotSentError:
                    pass
            assert await name(link, "billing") == "billing"
            link.close()

    run(use())


async def release_of(link: Link) -> str | None:
    """Ask until the broker is known. One that takes longer than a second for an answer is not taken for an old one."""
    while True:
        try:
            return (await link.open()).release
        except NotSentError:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("release", "answered"), [("0.9", (16, codec.METADATA)), ("0.8", (codec.METADATA,))])
@pytest.mark.parametrize("closes", [True, False])
def test_a_broker_that_reports_no_versions_is_known_by_its_answers(
    release: str, answered: tuple[int, ...], closes: bool
) -> None:
    async def use() -> None:
        async def silent(_asked: Asked, _send: Send) -> None:
            if closes:
                raise ConnectionError
            await asyncio.Event().wait()

        async def lists(asked: Asked, send: Send) -> None:
            await send(asked.frame(codec.ListGroupsResponse(groups=[])))

        async with FakeBroker() as fake:
            fake.behaviours = dict.fromkeys((codec.API_VERSIONS, 16), silent)
            if 16 in answered:
                fake.behaviours[16] = lists
            link = link_to(fake)
            assert await release_of(link) == release
            assert len((await link.request(codec.MetadataRequest(topics=None))).brokers) == 1
            if release == "0.8":
                with pytest.raises(BrokersTooOldError):
                    await name(link, "billing")
            link.close()

    run(use())


_LEAST = 80
_VERSIONS_FROM, _VERSIONS_TO = 20, 400
"""In the long answer with versions, every seventh byte is enough."""


class Cutter:
    """Passes on bytes between a client and a broker, and cuts the connection after some of them."""

    def __init__(self, target: str, at: int, *, requests: bool) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._left = at
        self._requests = requests
        self.fired = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ways, writers = [], [writer]
        try:
            there = await asyncio.open_connection(self._host, self._port)
            writers.append(there[1])
            ways.append(asyncio.create_task(self._pass(reader, there[1], self._requests)))
            ways.append(asyncio.create_task(self._pass(there[0], writer, not self._requests)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for each in writers:
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        while data := await reader.read(1 << 16):
            if counted and not self.fired:
                writer.write(data[: self._left])
                await writer.drain()
                self._left -= len(data)
                if self._left < 0:
                    self.fired = True
                    return
            else:
                writer.write(data)


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("requests", [True, False])
def test_a_connection_that_breaks_at_any_byte_is_an_error_and_then_repaired(
    kafka_broker: KafkaBroker, requests: bool
) -> None:
    """Connect, and ask twice: at some byte the run is not cut anymore."""

    async def cut_at(at: int) -> bool:
        cutter = Cutter(kafka_broker.address, at, requests=requests)
        async with await asyncio.start_server(cutter.serve, HOST, 0) as server:
            link = Link(addresses(f"{HOST}:{server.sockets[0].getsockname()[1]}")[0], Security())
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
            await asyncio.sleep(0)
        return cutter.fired

    async def use() -> None:
        at = 0
        while await cut_at(at):
            at += 7 if _VERSIONS_FROM < at < _VERSIONS_TO and not requests else 1
        assert at > _LEAST

    run(use())
