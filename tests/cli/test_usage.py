"""Command lines that are refused: each with exit code 2 and a sentence that helps, before anything is connected."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from .conftest import Zkgroups
from .running import run

SNAPSHOT = "--at needs --from-snapshot DEST"
GROUP_FOR_A_FOLDER = "may be the name of a group"
NOT_AN_EXPRESSION = "not a regular expression"
IN_KAFKA = "offsets reset g --all-topics"
PLAN = "migrate plan ./x --all -b k:1"
LISTEN = "gateway --listen 127.0.0.1:19092 -b k:1 --memory"

REFUSED: list[tuple[str, str]] = [
    # The global options.
    ("groups list -z ''", "zookeeper is '', but it must be like host:port,host:port/chroot"),
    ("groups list -z a:b:c", "'a:b:c'"),
    ("groups list -z zookeeper://zk1:2181", "but it takes no scheme: leave out 'zookeeper://'"),
    ("groups list --timeout 5x", "'5x', but it must be like 7d, 12h, 30m, 90s, P7D or PT2H30M"),
    ("groups list --session-timeout 301", "301"),
    ("groups list -o xml", "'xml' is not one of"),
    ("groups list --color red", "'red' is not one of"),
    ("groups list --digest-user ops", "user 'ops' needs a password: give --password-file, or set ZKGROUPS_PASSWORD"),
    ("groups list --digest-user a --password-file /no/such", "but it cannot be read: No such file"),
    ("groups list --digest-user a --password-file /dev/zero", "but it cannot be read: it is longer than"),
    ("groups list --digest-user a --sasl-user b", "--sasl-user is 'b', but --digest-user is set, too"),
    ("groups list --password-file /dev/null", "but it needs a --digest-user or a --sasl-user"),
    ("groups list --tls --tls-key-password-file /dev/zero", "but it cannot be read: it is longer than"),
    ("groups list --tls-ca ca.pem", "ca.pem', but it needs --tls"),
    ("groups list --no-tls-hostname-check", "--no-tls-hostname-check: it needs --tls"),
    ("groups list --tls --tls-ca /no/such.pem", "the file does not exist"),
    (f"groups list --tls --tls-key {__file__}", "certificate"),
    ("groups list -c ''", "context '' does not exist"),
    ("context use nope", "context 'nope' does not exist"),
    ("context add x", "option"),
    ("context add 'a]b' -z zk1:2181", "a]b"),
    # Commands, options and arguments that do not exist or are missing.
    ("offset list", "Did you mean 'offsets'?"),
    ("groups describ", "Did you mean 'describe'?"),
    ("xyzzy", "No such command 'xyzzy'."),
    ("groups list --stat Empty", "No such option '--stat'. Did you mean '--state'?"),
    ("groups list --yes", "zkgroups: No such option '--yes'.\n"),
    ("groups list more", "unexpected extra argument"),
    ("groups describe", "zkgroups: GROUP is missing"),
    ("groups create", "zkgroups: GROUP is missing"),
    ("release billing orders 0", "zkgroups: --expect-owner is missing"),
    ("migrate switch billing", "zkgroups: --to is missing: kafka or zookeeper"),
    ("offsets export", "no group is chosen"),
    ("offsets adopt", "no group is chosen"),
    # Groups.
    ("groups list --groups '('", NOT_AN_EXPRESSION),
    ("groups list --state Fine", "'Fine' is not one of"),
    ("groups create 'a\x1b[2Jb'", "cannot be a group name: it "),
    ("groups delete ''", "cannot be a group name: it "),
    ("groups describe g --watch --interval 0", "--interval"),
    ("groups prune", "--older-than is missing"),
    ("groups prune --older-than 90", "it must be like 7d"),
    ("groups prune --older-than 0s --execute", "--execute needs --export FILE, to save the deleted offsets"),
    ("groups prune --older-than 0s --export ''", "the name is empty"),
    ("doctor --execute", "--repair"),
    ("lag billing", "zkgroups: lag needs the Kafka brokers: give -b HOST:PORT"),
    ("lag billing -b k:1 --fail-over-age 1d", "--time"),
    ("lag -b k:1 --topic a/b", "'b' is not the number of a partition"),
    # Partitions and claims.
    ("release billing .. 0 --expect-owner anna", "'..'"),
    ("release billing orders 0 --expect-owner a/b", "contains a slash"),
    ("release billing orders 0 --expect-owner a --expect-session 12g", "'12g' is not a session id"),
    ("release billing orders 0 --expect-owner a --expect-session 0x10000000000000000", "is not a session id"),
    ("claim invoices orders", "name the partitions of 'orders', such as orders:0,1"),
    ("claim invoices orders/0 1", "give the partitions of 'orders' either with the topic or after it"),
    ("claim invoices orders 0 --", "command"),
    ("claim invoices orders 0 -- no-such-command", "command 'no-such-command' was not found in PATH"),
    ("consume g t -b k:1 -o table", "give -o jsonl or -f FORMAT"),
    ("consume g t -b k:1 -f %q", "%q is not one of"),
    ("consume g t -b k:1 --max-messages 0", "--max-messages"),
    ("consume g t -b k:1 --offsets both", "give --truth together with --offsets both"),
    # Offsets.
    ("offsets set g orders 01 5", "'01'"),
    ("offsets set g orders 0 5.0", "'5.0'"),
    ("offsets set g orders 0 9223372036854775808", "9223372036854775808"),
    ("offsets set g orders 0 5 --expect -1", "-1"),
    ("offsets set g orders 5", "PARTITION"),
    ("offsets set g a/b 0 5", "'b' is not the number of a partition"),
    ("offsets diff g @", "the name is empty"),
    ("offsets diff @/nowhere @/nowhere --group g", "/nowhere cannot be read"),
    ("offsets delete g", "--all-topics"),
    ("offsets delete g --all-topics --topic orders", "--topic"),
    ("offsets delete g --all-topics --undo-file ''", "the name is empty"),
    (IN_KAFKA, "give exactly one target: --to-earliest, --to-latest,"),
    (f"{IN_KAFKA} --to-current --to-offset 0", "give exactly one target"),
    ("offsets reset g --to-offset 0", "either --topic"),
    (f"{IN_KAFKA} --topic orders --to-offset 0", "either --topic"),
    ("offsets reset --all-topics --to-offset 0", "no group is chosen"),
    (f"{IN_KAFKA} --to-datetime tomorrow", "Invalid value for '--to-datetime': the time is"),
    (f"{IN_KAFKA} --by-duration '7 days'", "Invalid value for '--by-duration': the duration is"),
    (f"{IN_KAFKA} --shift-by x", "--shift-by"),
    (f"{IN_KAFKA} --to-earliest", "--to-earliest needs the Kafka brokers"),
    (f"{IN_KAFKA} --to-datetime 2026-01-31T12:00", "--to-datetime needs the Kafka brokers"),
    (f"{IN_KAFKA} --to-offset 9 --forward", "--to-offset always moves both ways"),
    ("offsets reset g --from-file ''", "the name is empty"),
    ("offsets reset g --from-file /nowhere/plan.csv", "/nowhere/plan.csv cannot be read: No such file"),
    ("offsets import ''", "the name is empty"),
    ("offsets import /dev/zero", "/dev/zero cannot be read: it is longer than 256 MiB: split it"),
    ("offsets reset billing --from-file /dev/zero", "/dev/zero cannot be read: it is longer than 256 MiB: split it"),
    # Offsets of other systems, of snapshots and of audits.
    ("offsets get --layout strom:/x", "layout is 'strom:/x', but it must be legacy, kafka-1.1.0"),
    ("offsets get --layout spark:/x", "--stored from or --stored until"),
    ("offsets get --stored last", "--stored and --value need --layout"),
    ("offsets get --layout '/x/{group}/{topic}/{partition}' --value 'regex:('", "it is not an expression of RE2"),
    ("layouts detect nowhere", "nowhere"),
    ("offsets export --from-snapshot d", "no group is chosen"),
    ("offsets export g --at latest", SNAPSHOT),
    ("offsets export g --cluster blue", "--cluster needs --from-snapshot DEST"),
    ("offsets export g --from-snapshot d --at someday", "'someday' is neither latest, previous, the name of"),
    ("offsets import --master local", "--master needs --from-snapshot DEST"),
    ("offsets import file --from-snapshot d", "cannot be combined with FILE or --format"),
    ("offsets import --topic t", "--groups and --topic need --from-snapshot"),
    ("offsets import --group a --group b", "a file without groups belongs to one group"),
    ("offsets import --from-snapshot ''", "the name is empty"),
    ("offsets reset g --to-snapshot d", "choose the topics"),
    (f"{IN_KAFKA} --to-snapshot d --to-latest", "give exactly one target: --"),
    (f"{IN_KAFKA} --to-latest --at latest", "--at needs --to-snapshot DEST"),
    (f"{IN_KAFKA} --to-latest --from-audit d", "--from-audit needs --to-datetime TIME or"),
    ("snapshot ''", "the name is empty"),
    ("snapshot d --topics '*'", "topics is '*', but it is not a regular expression"),
    ("snapshot d --parallelism 0", "--parallelism"),
    ("snapshot d --conf spark.x", "'spark.x' is not like KEY=VALUE"),
    ("snapshot d --zxid 7", "it needs a dataDir"),
    ("snapshots list", "DEST"),
    ("snapshots list d --conf a=1 --engine local", "--master and --conf need --engine spark"),
    ("snapshots verify s3a://b/d --engine local", "use --engine spark for s3a://b/d"),
    ("snapshots diff d previous someday", "'someday' is neither latest, previous"),
    ("snapshots diff d --only moved,lost", "'lost' is not one of moved, unchanged, went-back, new, gone, unreadable"),
    ("snapshots plot d g out.pdf", "out.pdf must end in .svg or .png"),
    ("snapshots plot d g nowhere/out.svg", "the folder nowhere does not exist"),
    ("audit d --every -1", "-1 is not a duration of 0 s or more"),
    ("audit d --from-data-dir /backup", "--from-data-dir needs --show"),
    ("audit d --chroot /x", "--chroot needs --from-data-dir"),
    ("audit d --show --once", "--once does nothing with --show"),
    ("audit d --parallelism 2 --engine local", "--parallelism needs --engine spark"),
    ("audit s3a://b/audit --engine local", "--engine local needs a folder on this machine: use --engine spark"),
    ("history offsets --from-data-dir d --since tomorrow", "it must be a time like 2026-01-31T12:00, yesterday, 2h"),
    ("history offsets --from-data-dir d --session x", "'x' is not a session id"),
    ("history offsets --from-data-dir d --chroot kafka", "chroot is 'kafka', but it must be a path such as /kafka"),
    # Migrations.
    ("migrate plan ./x --all", "a plan needs the Kafka brokers: give -b HOST:PORT, or --without-brokers"),
    ("migrate plan ./x -b k:1", "choose the groups: either --groups REGEX, or --all"),
    ("migrate plan ./x --groups '(' -b k:1", NOT_AN_EXPRESSION),
    ("migrate plan billing", GROUP_FOR_A_FOLDER),
    (f"{PLAN} --rename a", "'a' is not of the form OLD=NEW"),
    (f"{PLAN} --rename a=b --rename a=c", "group 'a' has two new names: give it only one"),
    (f"{PLAN} --rename-regex '(' b", "it is not a regular expression"),
    (f"{PLAN} --skip-stale", "--skip-stale needs --stale-after"),
    (f"{PLAN} --at latest", "--at needs --from-snapshot"),
    (f"{PLAN} --from-snapshot d --layout storm:/s", "--layout cannot be combined with --from-snapshot"),
    ("migrate apply billing --execute", GROUP_FOR_A_FOLDER),
    ("migrate apply ./x", "migrate apply needs the Kafka brokers"),
    ("migrate apply ./x -b k:1 --engine local --master local", "--master and --conf need --engine spark"),
    ("migrate show hdfs://nn/x --engine local", "--engine local needs a folder on this machine"),
    # Servers.
    ("gateway --listen 127.0.0.1:1 --memory", "needs the Kafka brokers"),
    ("gateway --listen a:1,b:2 -b k:1 --memory", "one address"),
    (f"{LISTEN} --broker-ports 5", "19100-19199"),
    (f"{LISTEN} --broker-ports 19000-19199", "must not contain"),
    *((f"{LISTEN} --advertise {host}", f"'{host}' is not the name of a host") for host in ("a:9092", "0.0.0.0", "::")),
    (f"{LISTEN} --group '('", "group"),
    (f"{LISTEN} --listen-key setup.cfg", "--listen-cert"),
    (f"{LISTEN} --listen-cert setup.cfg", "cannot be read"),
    ("zookeeper --port 65536", "65536"),
    ("zookeeper --data-dir ''", "the name is empty"),
    ("completion dash", "'dash' is not one of"),
]
"""A command line, and a part of its error."""


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_command_line_that_cannot_work_is_refused_with_a_sentence(line: str, said: str) -> None:
    ended = run(*shlex.split(line), env={"ZKGROUPS_ZOOKEEPER": "127.0.0.1:1"})
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: ")
    assert said in ended.err
    assert len(ended.err.splitlines()) <= 2
    assert "\x1b" not in ended.err


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    ended = run("groups", "create", b"a\xffb", env={"ZKGROUPS_ZOOKEEPER": "127.0.0.1:1"})
    assert (ended.code, "cannot be a group name: it " in ended.err) == (2, True)


def test_a_missing_address_and_a_wrong_value_in_the_environment_are_named() -> None:
    assert "give -z HOST:PORT/CHROOT, or set ZKGROUPS_ZOOKEEPER" in run("groups", "list").err
    ended = run("groups", "list", "-z", "127.0.0.1:1", env={"ZKGROUPS_TIMEOUT": "soon"})
    assert (ended.code, "ZKGROUPS_TIMEOUT" in ended.err, "'soon'" in ended.err) == (2, True, True)


@pytest.mark.zookeeper
@pytest.mark.usefixtures("billing")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("groups describe xyz", "group 'xyz' does not exist: check the name and the address\n"),
        ("claim biling orders 1", "; did you mean 'billing'?; `zkgroups groups create biling` creates it\n"),
        (
            "members show billing carl",
            "group 'billing' has no instance 'carl': `zkgroups members list billing` shows them",
        ),
        ("members evict billing carl", "group 'billing' has no instance 'carl': `zkgroups members list billing` shows"),
        (
            "offsets reset billing --topic order --to-offset 5",
            "group 'billing' has no offsets of topic 'order'; it has: orders",
        ),
        ("offsets delete billing order 1", "group 'billing' has no offsets of order:1; it has: orders"),
        ("release billing orders 1 --expect-owner anna", "orders/1 is not claimed by any instance"),
        ("consume billing nowhere -b 127.0.0.1:1", "topic 'nowhere' does not exist: check the name and the address"),
        ("groups explain billing --without carl", "carl"),
        ("layouts detect /nowhere", "/nowhere does not exist"),
        ("offsets get --layout storm:/nowhere", "/nowhere does not exist"),
    ],
)
def test_what_does_not_exist_is_exit_code_3_with_a_sentence_that_helps(
    zkgroups: Zkgroups, line: str, said: str
) -> None:
    ended = zkgroups(*line.split())
    assert (ended.code, ended.out) == (3, "")
    assert said in ended.err


# Packages that are not installed

SPARK = "this needs Spark; from the checkout: pip install '.[spark]'"
ARROW = "this command needs Arrow; from the checkout: pip install '.[{}]'"


@pytest.mark.parametrize(
    ("line", "module", "said"),
    [
        ("demo", "pyspark", "the demo needs more packages; from the checkout: pip install '.[testing,spark,kafka,"),
        ("snapshots list s3a://bucket/d", "pyspark", SPARK),
        ("offsets export g --from-snapshot d", "pyarrow", ARROW.format("snapshots")),
        ("snapshots plot d g out.svg", "pyarrow", ARROW.format("plot")),
        (
            "snapshots plot d g out.svg",
            "matplotlib",
            "a plot needs matplotlib; from the checkout: pip install '.[plot]",
        ),
        ("migrate apply ./x -b k:1 --engine local", "pyarrow", "pip install '.[migrate]'"),
    ],
)
def test_the_error_names_the_missing_package_to_install(tmp_path: Path, line: str, module: str, said: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')")
    env = {"PYTHONPATH": str(tmp_path), "ZKGROUPS_ZOOKEEPER": "127.0.0.1:1", "ZKGROUPS_TIMEOUT": "0.5"}
    ended = run(*line.split(), env=env)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
