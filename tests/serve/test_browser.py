"""The page in a real browser: it opens, sorts, filters, follows members, survives restarts, and is accessible.

All tests share one browser, one ZooKeeper and one server. The server sweeps so seldom that only live changes, or
reconnects, can bring news within a test.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import pytest
from selenium.webdriver.common.keys import Keys

from zkgroups import Generation, Member, Registry, TopicPartition
from zkgroups.testing import ZooKeeperServer
from zkgroups.testing.local_server import reserve

from ..cli.running import COMMAND, environment
from .browser import Browser, browser
from .pictures import HOSTILE

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

NAMES = [name.replace("/", "|") for name in HOSTILE]
SELDOM = "3600"


@dataclass
class Served:
    """The command in a process, always on the same port."""

    zookeeper: str
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listen = f"127.0.0.1:{self.port}"
        command = [COMMAND, "-z", self.zookeeper, "--timeout", "20", "serve", "--listen", listen, "--every", SELDOM]
        self.process = subprocess.Popen(
            [*command, "--cluster", "prod <eu>"], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{self.url}\n"

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(30) == 143
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as found:
        yield found


@pytest.fixture(scope="module")
def registry(server: ZooKeeperServer) -> Iterator[Registry]:
    """Groups with and without offsets, and a topic with six partitions."""
    with Registry.connect(server.address) as found:
        partitions = {str(number): [1] for number in range(6)}
        node = json.dumps({"version": 1, "partitions": partitions}).encode()
        found.client.create("/brokers/topics/orders", node, makepath=True)
        for name in ("alpha", "beta", *NAMES):
            found.group(name).offsets.set_many({TopicPartition("orders", number): 10 for number in range(3)})
        found.client.create("/consumers/broken/offsets/orders/0", b"x", makepath=True)
        yield found


@pytest.fixture(scope="module")
def served(server: ZooKeeperServer, registry: Registry) -> Iterator[Served]:
    port = reserve()
    found = Served(server.address, port.number)
    found.start()
    yield found
    found.stop()
    port.release()


@pytest.fixture
def page(window: Browser, served: Served) -> Iterator[Browser]:
    """The first page, on a wide screen. At the end, nothing must be on the console."""
    window.emulate()
    window.open(served.url)
    window.until(lambda: "alpha" in window.groups)
    window.complaints()
    yield window
    assert window.complaints() == []


def test_the_page_shows_the_groups_the_worst_first(page: Browser) -> None:
    assert page.groups[0] == "broken"
    assert set(page.groups) >= {"alpha", "beta"}
    assert page.find(".cluster").text == "prod <eu>"
    assert page.texts(".sources li")[1] == "ZooKeeper answers"
    assert page.texts("script:not([src])") == []


def test_it_sorts_filters_and_searches_and_the_address_keeps_that(page: Browser) -> None:
    page.find("thead a[href='/?sort=group']").click()
    page.until(lambda: page.groups == sorted(page.groups))
    page.find("thead a[href='/?sort=-group']").click()
    page.until(lambda: page.groups == sorted(page.groups, reverse=True))
    page.find(".filters a[href*='status=UNKNOWN']").click()
    page.until(lambda: "broken" in page.groups and "status=UNKNOWN" in page.address)
    page.press("/")
    page.driver.switch_to.active_element.send_keys("BROK")
    page.until(lambda: page.groups == ["broken"] and "q=BROK" in page.address)
    assert page.driver.switch_to.active_element.get_attribute("value") == "BROK", "the text being typed stays"
    address = page.address
    page.driver.refresh()
    page.until(lambda: page.groups == ["broken"])
    assert page.address == address
    page.driver.back()
    page.until(lambda: len(page.groups) > 1 or page.address != address)


def test_the_keyboard_opens_a_group_and_returns(page: Browser) -> None:
    page.press("j")
    page.press("j")
    chosen = page.texts("tr.current th a")
    assert chosen == [page.groups[1]]
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: page.texts("h1") == chosen)
    page.press("u")
    page.until(lambda: len(page.groups) > 1)


def test_a_hostile_name_is_only_text(page: Browser) -> None:
    """`test_pages.py` shows the same for all pages. Only a browser has a title and follows the links."""
    for name in NAMES:
        shown = name.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b")
        next(each for each in page.all("table.groups th a") if each.text == shown).click()
        page.until(lambda shown=shown: page.texts("h1") == [shown])
        assert page.driver.title == f"{shown} – zkgroups"
        page.driver.back()
        page.until(lambda: "alpha" in page.groups)


def owners(page: Browser) -> list[str]:
    """The owner of each partition in the strip."""
    return [text.partition(": ")[2] for text in page.texts(".strip li .hidden")]


def test_it_follows_a_rebalance_of_real_members(page: Browser, served: Served, registry: Registry) -> None:
    group = registry.group(f"live-{uuid4().hex[:8]}")
    with ExitStack() as stack:
        for expected, id in ((["anna"], "anna"), (["anna", "ben"], "ben")):
            member = stack.enter_context(Member(group, ["orders"], id=id))
            generations = iter(member.generations())
            stack.callback(member.stop)

            def work(generations: Iterator[Generation] = generations) -> None:
                for generation in generations:
                    generation.wait()

            thread = threading.Thread(target=work)
            thread.start()
            stack.callback(thread.join)
            stack.callback(member.stop)
            if id == "anna":
                page.until(lambda: group.name in page.groups)
                page.open(f"{served.url}/groups/{group.name}")
            page.until(lambda expected=expected: {name.partition("-")[0] for name in owners(page)} == set(expected))
            assert len(owners(page)) == 6
    page.until(lambda: not page.texts("tr[data-key=anna]"))
    page.until(lambda: any("left" in text for text in page.texts(".events li")))


def test_it_survives_a_restart_of_the_server(page: Browser, served: Served, registry: Registry) -> None:
    served.stop()
    page.until(lambda: "connecting again" in "".join(page.texts(".stream")))
    registry.group("while-away").offsets.set(TopicPartition("orders", 0), 10)
    served.start()
    page.until(lambda: "while-away" in page.groups and page.texts(".stream") == [""])
    failed = [text for text in page.complaints() if "ERR_CONNECTION_REFUSED" not in text and "ERR_" not in text]
    assert failed == [], "only the failed attempts to connect are on the console"


@pytest.mark.parametrize(("dark", "width"), [(False, 390), (True, 1280)])
def test_axe_finds_no_violation(page: Browser, served: Served, dark: bool, width: int) -> None:
    page.emulate(dark=dark, width=width)
    for path in ("/", "/groups/broken", "/groups/alpha", "/topics", "/topics/orders", "/groups/nothing"):
        page.open(served.url + path)
        page.until(lambda: page.texts("h1"))
        assert page.violations() == [], path
        wide = page.driver.execute_script("return document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{path} is wider than the screen"
    page.driver.get_log("browser")  # the missing page is reported as an error
