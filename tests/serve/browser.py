"""A real browser: headless Chromium, driven through ChromeDriver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from zkgroups.testing import missing

AXE = Path(__file__).parent.parent.parent / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
LONGEST = 60.0


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements. In one call, because a page may change between two."""
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    @property
    def groups(self) -> list[str]:
        """The groups in the table, in order."""
        return self.texts("table.groups th[scope=row] a")

    @property
    def address(self) -> str:
        """The path and the parameters of the page."""
        found: str = self.driver.execute_script("return location.pathname + location.search")
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true, with whatever the page does meanwhile."""
        WebDriverWait(self.driver, LONGEST, poll_frequency=0.02).until(lambda _: condition())

    def press(self, keys: str) -> None:
        self.find("body").send_keys(keys)

    def emulate(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Prefer a theme, and have a screen of this size."""
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def complaints(self) -> list[str]:
        """The warnings and errors on the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def violations(self) -> list[str]:
        """What axe-core finds on the page."""
        if not AXE.exists():
            missing("web", "axe-core is not installed: run `scripts/setup web`, which needs npm")
        # The page forbids foreign scripts, so it is run by the debugger.
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
        found: Any = self.driver.execute_async_script("const done = arguments[0]; axe.run(document).then(done)")
        return [f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in found["violations"]]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        missing("web", "chromium and chromedriver are not installed (on Debian: apt install chromium chromium-driver)")
    chromium, driver_path = programs
    os.environ["SE_OFFLINE"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        driver.set_script_timeout(LONGEST)
        yield Browser(driver)
    finally:
        driver.quit()
