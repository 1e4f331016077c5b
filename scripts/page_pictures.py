"""Take pictures of the page of `zkgroups serve` for the guides: `make docs`.

    PYTHONPATH=. python scripts/page_pictures.py

They show real groups on real servers (`page_scene.py`), in headless Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from page_scene import scene

from tests.serve.browser import Browser, browser
from zkgroups.testing.local_server import reserve

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
SETTLED: Final = 75.0
"""In seconds: until then the groups that stopped count as stopped, and rates are known."""


class Picture(NamedTuple):
    """A picture: the path of the page, the size of the screen, and the theme."""

    path: str
    width: int
    height: int
    dark: bool = False


PICTURES: Final = {
    "page": Picture("/", 1280, 660),
    "page-dark": Picture("/", 1280, 660, dark=True),
    "page-group": Picture("/groups/payments-export", 1280, 1000),
    "page-phone": Picture("/groups/billing", 390, 760),
}


def take(window: Browser, address: str, name: str, picture: Picture) -> None:
    """Take one picture."""
    window.emulate(dark=picture.dark, width=picture.width, height=picture.height)
    window.open(address + picture.path)
    window.until(lambda: window.texts("h1"))
    time.sleep(2)  # for the stream to send the page once more
    window.driver.save_screenshot(str(FOLDER / f"{name}.png"))


def main() -> None:
    port = reserve()
    listen = f"127.0.0.1:{port.number}"
    with scene() as found, browser() as window:
        zkgroups = Path(sys.executable).with_name("zkgroups")
        command = [zkgroups, "-z", found.zookeeper, "-b", found.brokers, "serve", "--listen", listen, "--every", "5"]
        with subprocess.Popen([*command, "--cluster", "prod-eu1"], stdout=subprocess.DEVNULL) as process:
            try:
                time.sleep(SETTLED)
                for name, picture in PICTURES.items():
                    take(window, f"http://{listen}", name, picture)
            finally:
                process.terminate()
    port.release()


if __name__ == "__main__":
    main()
