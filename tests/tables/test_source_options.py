"""The options of the data source: parsing, validation, error messages and secrets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import Digest, Registry, Sasl
from zkgroups.core.table_columns import HistoryTable, Table
from zkgroups.exceptions import InvalidInputError, InvalidOptionError
from zkgroups.tables.source_options import MAX_PARALLELISM, HistoryOptions, SourceOptions, Starting

EVERY = {
    "zookeeper": "zk1:2181,zk2/kafka",
    "table": "members",
    "cluster": "main",
    "groups": "bill.*",
    "topics": "orders|refunds",
    "parallelism": "7",
    "timeout": "2.5",
    "sessionTimeout": "12",
    "readOnly": "true",
    "digestUser": "ops",
    "passwordFile": "/run/secrets/zk",
    "tls": "true",
    "tlsCa": "/ca.pem",
    "tlsCert": "/cert.pem",
    "tlsKey": "/key.pem",
    "tlsKeyPasswordFile": "/run/secrets/key",
    "tlsHostnameCheck": "false",
}
PARSED = SourceOptions(
    zookeeper="zk1:2181,zk2/kafka",
    table=Table.MEMBERS,
    cluster="main",
    groups="bill.*",
    topics="orders|refunds",
    parallelism=7,
    timeout=2.5,
    session_timeout=12.0,
    read_only=True,
    digest_user="ops",
    password_file="/run/secrets/zk",
    tls=True,
    tls_ca="/ca.pem",
    tls_cert="/cert.pem",
    tls_key="/key.pem",
    tls_key_password_file="/run/secrets/key",
    tls_hostname_check=False,
)


@pytest.mark.parametrize("spelled", [str, str.swapcase])
def test_every_option_is_known_in_any_case(spelled: type[str]) -> None:
    assert SourceOptions.parse({spelled(option): text for option, text in EVERY.items()}) == PARSED
    sasl = {"digestUser": "saslUser"}
    by_sasl = {spelled(sasl.get(option, option)): text for option, text in EVERY.items()}
    assert SourceOptions.parse(by_sasl) == replace(PARSED, digest_user=None, sasl_user="ops")


def test_the_docstring_of_the_class_explains_every_option() -> None:
    told = set(re.findall(r"\w+", SourceOptions.__doc__ or ""))
    assert {*EVERY, "saslUser"} <= told


def test_values_are_accepted_in_any_case() -> None:
    assert SourceOptions.parse({"zookeeper": "zk1", "readOnly": "TRUE", "table": "OWNERS"}) == SourceOptions(
        zookeeper="zk1", read_only=True, table=Table.OWNERS
    )


NAMES = st.none() | st.text(min_size=1, max_size=20)
SECONDS = st.floats(0.001, 300)
AUTH = (
    st.fixed_dictionaries({})
    | st.fixed_dictionaries(
        {}, optional={"digest_user": st.text(max_size=9), "password_file": st.text(max_size=9)}
    ).filter(lambda given: "password_file" not in given or "digest_user" in given)
    | st.fixed_dictionaries({"sasl_user": st.text(max_size=9)}, optional={"password_file": st.text(max_size=9)})
)
TLS = st.just({}) | st.fixed_dictionaries(
    {"tls": st.just(True)},
    optional=dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "tls_key_password_file"), st.text(max_size=9))
    | {"tls_hostname_check": st.booleans()},
)
OPTIONS = st.builds(
    lambda auth, tls, **others: SourceOptions(**others, **auth, **tls),
    AUTH,
    TLS,
    zookeeper=st.sampled_from(["zk1", "zk1:2181,[::1]:7/a/ü"]),
    table=st.sampled_from(Table),
    cluster=NAMES,
    groups=NAMES.map(lambda name: name and re.escape(name)),
    topics=NAMES.map(lambda name: name and re.escape(name)),
    parallelism=st.none() | st.integers(1, MAX_PARALLELISM),
    timeout=SECONDS | st.just(0.0),
    session_timeout=SECONDS,
    read_only=st.booleans(),
    starting_zxid=st.sampled_from(Starting) | st.integers(0, 2**63 - 1),
    start_over=st.booleans(),
)


@given(OPTIONS)
def test_parse_reverses_as_text(options: SourceOptions) -> None:
    text = options.as_text()
    assert SourceOptions.parse(text) == options
    assert all(type(value) is str for value in text.values())


def test_defaults_are_not_part_of_the_text() -> None:
    assert SourceOptions(zookeeper="zk1").as_text() == {"zookeeper": "zk1"}


REFUSED = {
    "no such option": ({"groop": "x"}, r"option is 'groop', but no such option exists"),
    "a password": ({"password": "hunter2"}, r"option is 'password', but options are visible in plans and logs: put"),
    "another": ({"tlsKeyPASSWORD": "hunter2"}, r"option is 'tlsKeyPASSWORD', but options are visible in plans"),
    "what load() was given": (
        {"path": "zk1"},
        r"option is 'path', but load\(\) takes no path: use option\(\"zookeeper\"",
    ),
    "an unknown table": ({"table": "groups"}, r"table is 'groups', but it must be one of offsets, owners, members"),
    "no hosts": ({"zookeeper": " "}, r"zookeeper is ' ', but it must be like host:port,host:port/chroot"),
    "no port": ({"zookeeper": "zk1:x"}, r"zookeeper is 'zk1:x', but it must be like .*'zk1:x' is not a host and port"),
    "no task": ({"parallelism": "0"}, r"parallelism is 0, but it must be from 1 to 1024"),
    "too many": ({"parallelism": "1025"}, r"parallelism is 1025, but it must be from 1 to 1024"),
    "far too many": ({"parallelism": "9" * 5_000}, r"parallelism is '9{195}\.\.\., but it must be a whole number"),
    "half a task": ({"parallelism": "1.5"}, r"parallelism is '1\.5', but it must be a whole number from 1 to 1024"),
    "no ASCII": ({"parallelism": "٣"}, r"parallelism is '٣', but it must be a whole number"),
    "no time": ({"timeout": "soon"}, r"timeout is 'soon', but it must be a number of seconds"),
    "not a number": ({"timeout": "nan"}, r"timeout is nan, but it must be a number of seconds, 0 or more"),
    "before now": ({"timeout": "-1"}, r"timeout is -1\.0, but it must be a number of seconds, 0 or more"),
    "no session": ({"sessionTimeout": "0"}, r"sessionTimeout is 0\.0, but it must be over 0 and at most \d+ seconds"),
    "an endless one": ({"sessionTimeout": "inf"}, r"sessionTimeout is inf, but it must be over 0 and at most \d+"),
    "maybe": ({"readOnly": "maybe"}, r"readOnly is 'maybe', but it must be true or false"),
    "empty": ({"tls": ""}, r"tls is '', but it must be true or false"),
    "an expression": ({"groups": "a("}, r"groups is 'a\(', but it is not a regular expression: missing \)"),
    "a deep one": (
        {"topics": "(" * 9_999 + ")" * 9_999},
        r"topics is '\({195}\.\.\., but it is not a regular expression",
    ),
    "two users": ({"digestUser": "a", "saslUser": "b"}, r"saslUser is 'b', but digestUser is set, too: set only one"),
    "whose?": ({"passwordFile": "/x"}, r"passwordFile is '/x', but it needs a digestUser or a saslUser"),
    "no tls": ({"tlsCa": "/x"}, r"tlsCa is '/x', but it needs tls"),
    "nor here": ({"tlsKeyPasswordFile": "/x", "tls": "false"}, r"tlsKeyPasswordFile is '/x', but it needs tls"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_options_are_refused_in_one_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        SourceOptions.parse({"zookeeper": "zk1"} | given)
    assert re.match(said, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "owners"}, "zookeeper is not given, but it must be the address of ZooKeeper"),
        ({"dataDir": "/d", "zookeeper": "zk:1"}, "dataDir is '/d', but zookeeper is set, too"),
        ({"zookeeper": "zk:1", "chroot": "/kafka"}, "chroot is '/kafka', but it needs a dataDir"),
        ({"zookeeper": "zk:1", "zxid": "7"}, "zxid is 7, but it needs a dataDir"),
        ({"zookeeper": "zk:1", "dataLogDir": "/l"}, "dataLogDir is '/l', but it needs a dataDir"),
        ({"dataDir": "/d", "chroot": "kafka"}, "chroot is 'kafka', but it must be a path"),
        ({"dataDir": "/d", "zxid": "latest"}, "zxid is 'latest', but it must be"),
    ],
    ids=str,
)
def test_a_server_or_a_data_directory_is_read(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        SourceOptions.parse(options)
    assert str(caught.value).startswith(said)


def test_a_data_directory_is_parsed_like_other_options() -> None:
    options = SourceOptions(data_dir="/d", data_log_dir="/l", chroot="/kafka/", zxid=0x1F)
    assert options.as_text() == {"dataDir": "/d", "dataLogDir": "/l", "chroot": "/kafka/", "zxid": "31"}
    assert SourceOptions.parse(options.as_text() | {"zxid": "0x1f"}) == options
    assert options.shown_cluster == "/d/kafka"
    with pytest.raises(InvalidOptionError, match="this operation needs a server"):
        options.connect()


def test_a_cluster_is_named_after_its_normalized_address() -> None:
    named = {SourceOptions(zookeeper=hosts).shown_cluster for hosts in ("zk1,zk2/kafka", " zk1,zk2/kafka/ ")}
    assert named == {"zk1,zk2/kafka"}
    assert SourceOptions(zookeeper="zk1", cluster="main").shown_cluster == "main"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "commits"}, "dataDir is not given, but commits are read from transaction logs"),
        ({"table": "commits", "dataDir": "/d", "zookeeper": "zk:1"}, "option is 'zookeeper', but no such option"),
        ({"table": "commits", "dataDir": "/d", "chroot": "kafka"}, "chroot is 'kafka', but it must be a path"),
        ({"table": "commits", "dataDir": "/d", "since": "2h"}, "since is '2h', but it must be a time like"),
        ({"table": "commits", "dataDir": "/d", "until": "7"}, "until is '7', but it must be a time like"),
        ({"table": "commits", "dataDir": "/d", "groups": "("}, "groups is '(', but it is not a regular expression"),
        ({"table": "commits", "dataDir": "/d", "parallelism": "0"}, "parallelism is 0, but it must be from 1"),
    ],
    ids=str,
)
def test_invalid_options_of_a_history_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        HistoryOptions.parse(options)
    assert str(caught.value).startswith(said)


def test_options_of_a_history_are_parsed() -> None:
    given = {"Table": "Ownership", "DATADIR": "/d", "chroot": "/kafka/", "parallelism": "7"}
    options = HistoryOptions.parse(given)
    assert options == HistoryOptions(table=HistoryTable.OWNERSHIP, data_dir="/d", chroot="/kafka/", parallelism=7)
    assert options.shown_cluster == "/d/kafka"


# Secrets


def test_a_password_is_read_on_connecting_and_is_not_part_of_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    digest = SourceOptions(zookeeper="zk1", digest_user="ops", password_file=str(file))
    sasl = SourceOptions(zookeeper="zk1", sasl_user="ops")
    file.write_text("hünter2 \n", encoding="utf-8")
    monkeypatch.setenv("ZKGROUPS_PASSWORD", "of the environment")
    assert digest._auth() == [Digest("ops", "hünter2 ")]
    assert sasl._auth() == [Sasl("ops", "of the environment")]
    for options in (digest, sasl):
        for shown in (repr(options), str(options.as_text()), repr(options._auth())):
            assert "nter2" not in shown
            assert "of the environment" not in shown


def test_an_endless_password_file_is_refused() -> None:
    options = SourceOptions(zookeeper="zk1", digest_user="ops", password_file="/dev/zero")
    with pytest.raises(InvalidOptionError, match=r"/dev/zero.* it cannot be read: .*it is longer than"):
        options._auth()


def test_the_password_of_a_key_comes_from_its_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\r\n")
    monkeypatch.setenv("ZKGROUPS_TLS_KEY_PASSWORD", "of the environment")
    options = SourceOptions(zookeeper="zk1", tls=True, tls_cert="/c", tls_key="/k")
    by_file = replace(options, tls_key_password_file=str(file))
    for each, password in ((options, "of the environment"), (by_file, "hunter2")):
        tls = each._tls()
        assert tls is not None
        assert tls.key_password == password
        assert password not in repr(tls)
    assert SourceOptions(zookeeper="zk1")._tls() is None


def test_a_missing_password_is_reported_before_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZKGROUPS_PASSWORD", raising=False)
    options = SourceOptions(zookeeper="127.0.0.1:1", digest_user="ops")
    with pytest.raises(
        InvalidInputError,
        match="user 'ops' needs a password: give passwordFile, or set ZKGROUPS_PASS",
    ):
        options.connect()


@pytest.mark.parametrize("held", [None, b"hunter\xff2"], ids=["no file", "no text"])
def test_an_unreadable_file_is_named_without_its_contents(tmp_path: Path, held: bytes | None) -> None:
    file = tmp_path / "password"
    if held is not None:
        file.write_bytes(held)
    options = SourceOptions(zookeeper="127.0.0.1:1", digest_user="ops", password_file=str(file))
    with pytest.raises(InvalidOptionError, match=r"passwordFile is '.*/password', but it ") as caught:
        options.connect()
    told = f"{caught.value} {caught.value.__cause__}"
    assert "hunter" not in told
    assert "0xff" not in told


@pytest.mark.zookeeper
def test_each_connection_has_its_own_session(zookeeper_hosts: str) -> None:
    options = SourceOptions(zookeeper=zookeeper_hosts, timeout=5.0)
    with options.connect() as one, options.connect() as other:
        assert isinstance(one, Registry)
        assert one._context.session.id != other._context.session.id
