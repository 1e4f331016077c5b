"""A local S3 server, and the settings and jars with which Spark uses it."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

from zkgroups.testing import maven
from zkgroups.testing.child_process import ChildProcess
from zkgroups.testing.java import pyspark_jars

from ...environments import python_with
from ...testing.waiting import eventually

MOTO = "moto[server]>=5.1,<6"
BUCKET = "zkgroups"

SDK = "2.35.4"
"""The release of Amazon's SDK that hadoop-aws is built with. Its parts have 20 MB, its bundle 600 MB."""
ACCELERATOR = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"
PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client")


def s3a_jars() -> tuple[Path, ...]:
    """Return the jars that Spark needs for s3a."""
    [hadoop] = pyspark_jars("hadoop-client-api")
    release = hadoop.stem.rpartition("-")[2]
    own = maven.fetch(f"org.apache.hadoop:hadoop-aws:{release}", ACCELERATOR, dependencies=False)
    return own + maven.fetch(*(f"software.amazon.awssdk:{part}:{SDK}" for part in PARTS))


def s3a_settings(address: str) -> dict[str, str]:
    """Return the settings for a server at this address."""
    access = {
        "endpoint": address,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": "nobody",
        "secret.key": "nothing",
        "attempts.maximum": "1",
        "retry.limit": "1",
    }
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in access.items()}
    return settings | {"spark.jars": ",".join(map(str, s3a_jars()))}


class Store:
    """A running server with one bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.address = ""

    def __enter__(self) -> Self:
        server = Path(__file__).with_name("server.py")
        log = self._folder / "s3.log"
        process = self._stack.enter_context(ChildProcess([str(python_with(MOTO)), str(server)], log=log))
        eventually(lambda: re.search(r"^\d+$", log.read_text(), re.MULTILINE) or not process.running, timeout=60)
        found = re.search(r"^\d+$", log.read_text(), re.MULTILINE)
        assert found is not None, process.tail()
        self.address = f"http://127.0.0.1:{found[0]}"
        _send("PUT", f"{self.address}/{BUCKET}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def allow(address: str, writes: int | None) -> int:
    """Let a server refuse all requests after that many writes; None ends that. Return the number of writes so far."""
    return int(json.loads(_send("POST", f"{address}/-/{'all' if writes is None else writes}")))


def _send(method: str, url: str) -> bytes:
    with urlopen(Request(url, method=method), timeout=60) as answer:
        return bytes(answer.read())
