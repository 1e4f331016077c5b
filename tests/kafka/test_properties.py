"""Properties of Kafka clients: read like Java, and refused without showing secrets; and a missing client."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers, read_properties
from zkgroups.kafka.properties import parse

PASSWORD = 'the-s3cret; of "anna'
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required username=anna password='{}';"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1\nb : 2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a\nb=\n", {"a": "", "b": ""}),
        ("# a=1\n! b=2\n  # c=3\n\n   \nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("a=one,\\\n    two,\\\n\tthree\nb=2", {"a": "one,two,three", "b": "2"}),
        ("a=one\\\n# two\nb=2", {"a": "one# two", "b": "2"}),
        ("a=end\\\\\nb=2", {"a": "end\\", "b": "2"}),
        ("a=end\\", {"a": "end"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ('a=\\t\\n\\r\\f\\u00e9\\\\ \\x\\"', {"a": '\t\n\r\fé\\ x"'}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("  a=1", {"a": "1"}),
        ("\ufeffa=1", {"a": "1"}),
        ("=1\na=2", {"a": "2"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, settings: dict[str, str]) -> None:
    assert parse(text) == settings


def test_the_repr_of_brokers_contains_no_secrets() -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(PASSWORD),
    }
    with Brokers.connect("127.0.0.1:1", properties=login) as brokers:
        assert repr(brokers) == "<Brokers 127.0.0.1:1>"
        assert "s3cret" not in repr(vars(brokers))


def test_a_given_address_overrides_the_address_in_the_file() -> None:
    with Brokers.connect("127.0.0.1:1", properties={"bootstrap.servers": "kafka1:9092"}) as brokers:
        assert repr(brokers) == "<Brokers 127.0.0.1:1>"
        assert brokers._cluster.bootstrap == "127.0.0.1:1"


def test_a_file_is_read_as_utf_8_and_otherwise_as_latin_1(tmp_path: Path) -> None:
    for encoding in ("utf-8", "latin-1"):
        path = tmp_path / encoding
        path.write_bytes("sasl.password=größe".encode(encoding))
        assert read_properties(path) == {"sasl.password": "größe"}
        assert read_properties(str(path)) == {"sasl.password": "größe"}


def test_an_unreadable_properties_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"none\.properties.*No such file"):
        read_properties(tmp_path / "none.properties")
    with pytest.raises(InvalidOptionError, match="Is a directory"):
        read_properties(tmp_path)


def test_the_error_for_another_file_format_shows_none_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xeds3cret\xff s3cret\ns3cret\n\xe9s3cret=s3cret")

    with pytest.raises(InvalidOptionError) as caught:
        BrokerOptions("127.0.0.1:1", str(tmp_path / "store.jks")).connect()

    assert "s3cret" not in "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))


def test_a_file_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"/dev/zero.* it cannot be read: it is longer than 65536 bytes"):
        read_properties("/dev/zero")


# Without kafka-python, or with another package of its name, users are told what to install


PROGRAM = """
from zkgroups.exceptions import MissingDependencyError
from zkgroups.kafka import Brokers
try:
    Brokers.connect("127.0.0.1:1")
except MissingDependencyError as error:
    print(error)
"""
OTHERS = {
    "missing": {"__init__.py": "raise ModuleNotFoundError(\"No module named 'kafka'\", name='kafka')"},
    "for an old Python": {"__init__.py": "def send(async): pass"},
    "with other modules": {
        "__init__.py": "",
        "protocol/__init__.py": "",
        "protocol/metadata.py": "MetadataRequest = []",
    },
    "a module": {"../kafka.py": ""},
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS.keys())
def test_another_package_named_kafka_is_not_mistaken_for_the_client(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / "kafka" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == (
        "this needs kafka-python 3.0.5 or newer, and no other package with a module named kafka; "
        "from the checkout: pip install '.[kafka]'\n"
    )
