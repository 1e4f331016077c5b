"""One table turns every error into an exit code and a sentence."""

from __future__ import annotations

import inspect

import click
import pytest
from zkgroups_cli.shared.errors_to_exit_codes import Tally, exit_code, report, sentence
from zkgroups_cli.shared.exit_codes import ExitCode
from zkgroups_cli.shared.signals import Terminated

from zkgroups import exceptions
from zkgroups.exceptions import ConflictError, NotFoundError, UnavailableError, ZkgroupsException

from .running import run

BRANCHES = {
    "InvalidInputError": 2,
    "NotFoundError": 3,
    "RefusedError": 4,
    "ConflictError": 5,
    "AccessError": 6,
    "UnavailableError": 7,
    "ClaimTimeout": 8,
    "MalformedNodeError": 10,
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


def test_the_exit_codes_have_fixed_numbers() -> None:
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 130, 143]


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("offsets", "import", ""),
        ("offsets", "import", "--from-snapshot", ""),
        ("offsets", "reset", "billing", "--from-file", ""),
        ("offsets", "reset", "billing", "--all-topics", "--to-snapshot", ""),
        ("offsets", "reset", "billing", "--all-topics", "--by-duration", "PT1H", "--from-audit", ""),
        ("offsets", "delete", "billing", "--all-topics", "--undo-file", ""),
        ("offsets", "diff", "billing", "@"),
        ("groups", "prune", "--older-than", "1d", "--export", ""),
        ("snapshot", ""),
        ("snapshot", "d", "--from-data-dir", ""),
        ("snapshots", "list", ""),
        ("snapshots", "plot", "d", "billing", ""),
        ("audit", ""),
        ("migrate", "plan", "p", "--from-snapshot", ""),
        ("migrate", "apply", ""),
        ("migrate", "export", "p", ""),
        ("zookeeper", "--data-dir", ""),
        ("groups", "list", "--password-file", ""),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_neither_a_file_nor_the_current_folder(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, env={"ZKGROUPS_ZOOKEEPER": "127.0.0.1:1"})
    assert (ended.code, ended.out) == (2, "")
    assert "the name is empty" in ended.err


def test_a_lost_connection_ends_the_work_on_all_groups() -> None:
    with pytest.raises(UnavailableError), Tally().attempt():
        raise UnavailableError("gone")
