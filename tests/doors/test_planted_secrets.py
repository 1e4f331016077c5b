"""Secrets are planted in every place that may hold one, and then searched for in everything that zkgroups leaves.

The password of a user of ZooKeeper, the password of a key, the password of a user of the brokers: they are searched for
in the output with all of the log, the command lines and environments of all processes, temporary files, the event log
of Spark, plans, reports, Parquet and saved offsets.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote_plus

import pyarrow.parquet as parquet
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.cli.running import COMMAND, TIMEOUT, Ended, environment
from tests.kafka.conftest import PASSWORD as OF_THE_BROKERS
from tests.kafka.test_logins import properties_of
from tests.releases import needs_tls
from tests.spark.processes import descendants
from tests.testing.test_zookeeper_server import certificate
from zkgroups import Registry, Sasl, Tls, TopicPartition
from zkgroups.testing import KafkaBroker, ZooKeeperServer
from zkgroups.testing import zookeeper_server as server_side

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1000), needs_tls]

OF_THE_USER = "planted-7d1f-of-the-user"
OF_THE_KEY = "planted-93c2-of-the-key"
SECRETS = (OF_THE_USER, OF_THE_KEY, OF_THE_BROKERS)
GROUP, TOPIC = "billing", "planted"


def spellings(secret: str) -> set[bytes]:
    """The secret as it is, and as programs encode it."""
    data = secret.encode()
    escaped = repr(secret)[1:-1], quote_plus(secret), data.hex(), base64.b64encode(data).decode(), ascii(secret)[1:-1]
    return {data, secret.encode("utf-16-le"), *(each.encode() for each in escaped)}


FORBIDDEN = frozenset[bytes]().union(*map(spellings, SECRETS))


def leaks(text: bytes | str) -> list[bytes]:
    data = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    return [each for each in FORBIDDEN if each in data]


def talk(log: str) -> str:
    """What the command itself says, without the log of Spark."""
    return "\n".join(line for line in log.splitlines() if not re.match(r"[0-9/]{8} |\s|zkgroups: (INFO|WARN)", line))


class Witness:
    """Looks for secrets in the processes that this one starts, and in temporary files while they exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = threading.Event()
        self._seen: set[tuple[Any, ...]] = set()
        self._thread = threading.Thread(target=self._watch)
        self.found: list[str] = []
        self.processes: set[str] = set()
        self.files: set[str] = set()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            for pid in descendants(os.getpid()):
                for part in ("cmdline", "environ"):
                    with suppress(OSError):
                        data = Path(f"/proc/{pid}/{part}").read_bytes()
                        self.processes.add(
                            Path(os.fsdecode(data.partition(b"\0")[0])).name if part == "cmdline" else ""
                        )
                        self.found += [f"{part} of {data[:300]!r}" for _ in leaks(data)]
            self.look_at_files()

    def look_at_files(self) -> None:
        found = [Path(folder, name) for folder, _, names in os.walk(self._folder) for name in names]
        for file in found:
            with suppress(OSError):
                status = file.stat()
                version = (str(file), status.st_size, status.st_mtime_ns)
                if file.is_file() and version not in self._seen and status.st_size < 1 << 26:
                    self._seen.add(version)
                    self.files.add(file.name)
                    self.found += [f"file {file}: {each!r}" for each in leaks(file.read_bytes())]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


class Scene:
    """Servers that need all of the secrets, a group, and files with the secrets, in a folder of their own."""

    def __init__(self, zookeeper: ZooKeeperServer, broker: KafkaBroker, files: Path, folder: Path) -> None:
        self.folder = folder
        self.outputs: list[Ended] = []
        self._properties = properties_of(files, "anna")
        self._options = [
            *("-z", zookeeper.secure_address, "--tls", "--tls-ca", files / "ca.pem", "--tls-cert", files / "cert.pem"),
            *("--tls-key", files / "key.pem", "--tls-key-password-file", files / "key-password"),
            *(
                "--sasl-user",
                "alice",
                "--password-file",
                files / "password",
                "-vv",
                "--timeout",
                "60",
                "--session-timeout",
                "200",
            ),
            *("-b", broker.sasl_address, "--command-config", self._properties),
        ]

    def run(self, *arguments: Any, code: int = 0, **env: str) -> None:
        self._run([COMMAND, *map(str, [*self._options, *arguments])], code, env)

    def spark(self, *commands: Sequence[Any]) -> None:
        """Run commands with Spark, its whole log, and its event log."""
        events = self.folder / "events"
        events.mkdir()
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file:{events}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.log.level": "DEBUG",
            "spark.sql.maxMetadataStringLength": "10000",
        }
        asked = {"settings": settings, "commands": [list(map(str, [*self._options, *each])) for each in commands]}
        self._run([sys.executable, "-m", "tests.doors.spark_commands", json.dumps(asked)], 0, {})

    def _run(self, command: Sequence[str], code: int, more: Mapping[str, str]) -> None:
        env = environment({"TMPDIR": str(self.folder), "SPARK_LOCAL_DIRS": str(self.folder), **more})
        done = subprocess.run(command, env=env, capture_output=True, timeout=10 * TIMEOUT)
        ended = Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        assert ended.code == code, f"{ended.out}\n{talk(ended.err)}"
        self.outputs.append(ended)


@pytest.fixture
def scene(tmp_path: Path, own: KafkaBroker) -> Iterator[Scene]:
    files, folder = tmp_path / "secrets", tmp_path / "left"
    files.mkdir()
    folder.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(files / "ca.pem"))
    server = certificate(authority, "127.0.0.1", files / "server.pem")
    ours = authority.issue_cert("me@example.org")
    ours.cert_chain_pems[0].write_to_path(str(files / "cert.pem"))
    key = load_pem_private_key(ours.private_key_pem.bytes(), None)
    encrypted = BestAvailableEncryption(OF_THE_KEY.encode())
    (files / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
    (files / "key-password").write_text(OF_THE_KEY)
    (files / "password").write_text(OF_THE_USER)
    own.create_topic(TOPIC)
    own.write(TOPIC, 0, 10)
    secure = server_side.Tls(Path(server), files / "ca.pem")
    with ZooKeeperServer(tls=secure, sasl=server_side.Sasl({"alice": OF_THE_USER})) as zookeeper:
        tls = Tls(files / "ca.pem", files / "cert.pem", files / "key.pem", OF_THE_KEY)
        with Registry.connect(
            zookeeper.secure_address, tls=tls, auth=[Sasl("alice", OF_THE_USER)], timeout=60
        ) as registry:
            registry.client.ensure_path("/brokers/ids")
            registry.client.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
            registry.group(GROUP).offsets.set(TopicPartition(TOPIC, 0), 0)
            registry.group("other").offsets.set(TopicPartition(TOPIC, 0), 0)
        yield Scene(zookeeper, own, files, folder)


def test_no_secret_is_in_anything_that_the_command_and_spark_leave(scene: Scene) -> None:
    left = scene.folder
    with Witness(left) as witness:
        scene.run("context", "add", "here", ZKGROUPS_CONFIG=str(left / "contexts.ini"))
        scene.run("claim", GROUP, TOPIC, "0", "--", "sh", "-c", "sleep 0.3; env; tr '\\0' ' ' < /proc/$PPID/cmdline")
        scene.run(
            "offsets", "reset", GROUP, "--all-topics", "--to-offset", "1", "--execute", "--undo-file", left / "undo"
        )
        scene.run("offsets", "import", left / "undo", "--backward", "--execute")
        scene.run("lag", GROUP)
        scene.run("migrate", "plan", left / "plan", "--engine", "local", "--groups", GROUP)
        with_spark = ("--engine", "spark", "--groups", "other")
        scene.spark(
            ("snapshot", left / "snapshots", "--engine", "spark"),
            ("audit", left / "audit", "--once", "--engine", "spark"),
            ("migrate", "plan", left / "other plan", *with_spark),
            ("migrate", "apply", left / "other plan", "--engine", "spark", "--execute"),
        )
        damage(scene)
    witness.look_at_files()
    assert witness.found == []
    assert "java" in witness.processes
    for ended in scene.outputs:
        assert leaks(ended.out + ended.err) == []
    log = "".join(ended.err for ended in scene.outputs)
    assert " DEBUG " in log
    assert "Traceback" in log
    events = b"".join(each.read_bytes() for each in (left / "events").rglob("*") if each.is_file())
    assert b"SparkListenerJobStart" in events
    assert b"physicalPlanDescription" in events
    rows = [parquet.read_table(each).to_pylist() for each in left.rglob("*.parquet")]
    assert len(rows) > 4
    assert leaks(repr(rows)) == []


def damage(scene: Scene) -> None:
    """Let commands fail, with tracebacks, at each of the secrets."""
    wrong = scene.folder.parent / "secrets" / "wrong.properties"
    wrong.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.pasword={OF_THE_BROKERS}\n{OF_THE_USER}={OF_THE_KEY}\n")
    scene.run("--command-config", wrong, "lag", GROUP, code=2)
    scene.run("--tls-key-password-file", scene.folder.parent / "secrets" / "password", "groups", "list", code=2)
    # Servers before 3.9 accept an unknown user with the password of the user who logged in last.
    rejected = ("--password-file", scene.folder.parent / "secrets" / "key-password")
    scene.run(*rejected, "groups", "list", code=6)
    scene.run(*rejected, "--sasl-user", "nobody", "groups", "list", code=6)
