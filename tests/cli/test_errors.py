"""One table turns every error into an exit code and a sentence."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
from contextlib import suppress

import click
import pytest
from zkgroups_cli.shared.errors import Tally, exit_code, report, sentence
from zkgroups_cli.shared.messages import PatientHandler
from zkgroups_cli.shared.signals import Terminated

from zkgroups import exceptions
from zkgroups.exceptions import ConflictError, NotFoundError, UnavailableError, ZkgroupsException

from .conftest import Zkgroups

BRANCHES = {
    "InvalidInputError": 2,
    "NotFoundError": 3,
    "RefusedError": 4,
    "ConflictError": 5,
    "AccessError": 6,
    "UnavailableError": 7,
    "ClaimTimeout": 8,
    "MalformedNodeError": 10,
    "MissingDependencyError": 2,
}
EXCEPTIONS_TO_THE_RULE = {"InterruptedDeleteError": 9, "DamagedDataError": 10, "DamagedFileError": 10}


def errors_of_the_library() -> list[type[ZkgroupsException]]:
    kinds = (kind for _, kind in inspect.getmembers(exceptions, inspect.isclass))
    return [kind for kind in kinds if issubclass(kind, ZkgroupsException)]


def expected(kind: type[ZkgroupsException]) -> int:
    if kind.__name__ in EXCEPTIONS_TO_THE_RULE:
        return EXCEPTIONS_TO_THE_RULE[kind.__name__]
    return next((BRANCHES[above.__name__] for above in kind.__mro__ if above.__name__ in BRANCHES), 1)


@pytest.mark.parametrize("kind", errors_of_the_library(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_library_has_the_code_of_its_branch(kind: type[ZkgroupsException]) -> None:
    assert exit_code(kind.__new__(kind)) == expected(kind)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (click.UsageError("wrong"), 2),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
        (OSError(28, "No space left on device"), 1),
        (ZeroDivisionError("x"), 1),
    ],
    ids=repr,
)
def test_other_exceptions_have_exit_codes_too(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_a_note_on_an_error_is_part_of_its_sentence() -> None:
    error = NotFoundError("there is nothing")
    error.add_note("and letting go failed")
    assert sentence(error) == "there is nothing; and letting go failed"


def test_an_unexpected_error_is_a_sentence_that_names_the_traceback_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ZeroDivisionError("x"), verbose=0) == 1
    assert capsys.readouterr().err == "zkgroups: unexpected ZeroDivisionError: x (-vv shows the traceback)\n"


def test_the_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise NotFoundError("there is nothing")
    except NotFoundError as error:
        report(error, verbose=2)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_cannot_send_escape_sequences_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(NotFoundError("\x1b[2Jgone\u202e"), verbose=0)
    assert capsys.readouterr().err == "zkgroups: \\x1b[2Jgone\\u202e\n"


def code_of(*errors: ZkgroupsException | None) -> int:
    tally = Tally()
    for error in errors:
        with tally.attempt():
            if error is not None:
                raise error
    try:
        tally.finish()
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def test_if_all_fail_the_first_error_decides_the_code_and_if_some_do_it_is_partial() -> None:
    assert code_of() == 0
    assert code_of(None, None) == 0
    assert code_of(NotFoundError("a"), ConflictError("b")) == 3
    assert code_of(ConflictError("b"), NotFoundError("a")) == 5
    assert code_of(None, NotFoundError("a")) == code_of(NotFoundError("a"), None) == 9


def test_a_lost_connection_ends_the_work_on_all_groups() -> None:
    with pytest.raises(UnavailableError), Tally().attempt():
        raise UnavailableError("gone")


DIGEST = "you gave the digest user 'ops'; ZooKeeper does not check digest passwords, so the password may be wrong"


@pytest.mark.zookeeper
def test_a_wrong_digest_password_is_suggested(zkgroups: Zkgroups, secret: str) -> None:
    for command in (("groups", "describe"), ("offsets", "get"), ("groups", "delete")):
        refused = zkgroups(*command, secret, "--digest-user", "ops", ZKGROUPS_PASSWORD="wrong")
        assert (refused.code, refused.err.splitlines()[0].endswith(DIGEST)) == (6, True)


@pytest.mark.parametrize(("module", "extra"), [("kafka.errors", "kafka"), ("confluent_kafka", "consumer")])
def test_a_missing_extra_is_a_usage_error(capsys: pytest.CaptureFixture[str], module: str, extra: str) -> None:
    assert report(ModuleNotFoundError(f"No module named {module!r}", name=module), verbose=0) == 2
    assert f"; from the checkout: pip install '.[{extra}]'\n" in capsys.readouterr().err
    assert report(ModuleNotFoundError("No module named 'zkgroups.nothing'", name="zkgroups.nothing"), verbose=0) == 1


def test_lines_that_nobody_reads_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with os.fdopen(reader, "rb", buffering=0) as read, os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logger = logging.Logger("kazoo.client")
        logger.addHandler(PatientHandler())
        nobody_reads = threading.Thread(
            target=lambda: [logger.info("line %d", number) for number in range(3)], daemon=True
        )
        nobody_reads.start()
        nobody_reads.join(30)
        assert not nobody_reads.is_alive()
        os.set_blocking(reader, False)
        while read.read(65536):
            pass
        logger.info("line 3")
        assert read.read().decode().splitlines() == [
            "zkgroups: 3 lines of the log were left out, because nobody read stderr",
            "line 3",
        ]
