"""Everything that the guides name exists: files, links, tests, commands, options, findings, states, codes."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import click
import pytest
import yaml
from zkgroups_cli.main import root
from zkgroups_cli.shared.options import ExitCode, Options

import zkgroups
from zkgroups import exceptions
from zkgroups.core.doctor.all_checks import CHECKS, LOG_CHECKS, STATUS_CHECKS
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.obstacles import NEXT_STEPS, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.znodes.states import GroupState, InstanceState

from .guides import GUIDES, ROOT, blocks, read

CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(guide: str) -> str:
    """The text of a guide without its blocks."""
    return FENCED.sub("", read(guide))


def rows(guide: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head, and without backticks."""
    text = read(guide).split(f"{heading}\n", 1)[1]
    lines = text[text.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("guide", GUIDES)
def test_every_link_has_a_target(guide: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(guide)):
        path, _, anchor = target.partition("#")
        file = (ROOT / guide).parent / path if path else ROOT / guide
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


@pytest.mark.parametrize("guide", GUIDES)
def test_every_path_exists(guide: str) -> None:
    for name in CODE.findall(prose(guide)):
        path = name.partition("::")[0]
        if re.fullmatch(r"(zkgroups|cli|tests|docs|benchmarks|scripts)/[\w./]*", path):
            assert (ROOT / path).exists(), name


@pytest.mark.parametrize("guide", GUIDES)
def test_every_dotted_name_exists(guide: str) -> None:
    for name in re.findall(r"`(zkgroups(?:\.\w+)+)", prose(guide)):
        if name not in LOGGERS | HEADERS:
            assert _exists(name), name


LOGGERS = {
    f"zkgroups.{name}"
    for name in (
        "claim",
        "consumer",
        "kafka",
        "librdkafka",
        "member",
        "migration",
        "serve",
        "session",
        "spark",
        "watch",
    )
}
# Of dead letters: see zkgroups/messages/dead_letters.py.
HEADERS = {f"zkgroups.{name}" for name in ("topic", "partition", "offset", "timestamp", "group", "attempts", "error")}


def _exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return _has(found, parts[end:])
    return False


def _has(found: Any, names: list[str]) -> bool:
    return not names or (hasattr(found, names[0]) and _has(getattr(found, names[0]), names[1:]))


OBJECTS: dict[str, type] = {
    "claim": zkgroups.Claim,
    "event": zkgroups.MemberEvent,
    "generation": zkgroups.Generation,
    "group": zkgroups.Consumergroup,
    "instance": zkgroups.Instance,
    "member": zkgroups.Member,
    "registry": zkgroups.Registry,
}
"""The classes of the names that the guides use for objects."""


@pytest.mark.parametrize("guide", GUIDES)
def test_every_attribute_exists(guide: str) -> None:
    for name, attribute in re.findall(r"`(\w+)\.(\w+)", prose(guide)):
        owner = OBJECTS.get(name) or getattr(zkgroups, name, None) or getattr(exceptions, name, None)
        if inspect.isclass(owner) and not hasattr(owner, attribute) and (name, attribute) != ("group", "id"):
            source = "".join(inspect.getsource(each) for each in owner.__mro__ if each.__module__ != "builtins")
            assert f"self.{attribute} " in source, f"{name}.{attribute}"


@pytest.mark.parametrize("guide", GUIDES)
def test_every_error_exists(guide: str) -> None:
    for name in re.findall(r"`(?:\w+\.)?([A-Z]\w+(?:Error|Timeout))\b", prose(guide)):
        assert hasattr(exceptions, name), name


def test_the_options_to_tune_are_options_of_a_member() -> None:
    options = {row[0] for row in rows("docs/consumers.md", "## Tuning")} - {"session_timeout` (of `Registry.connect`)"}
    assert options
    assert options <= inspect.signature(zkgroups.Member).parameters.keys()


def _commands(guide: str) -> Iterator[str]:
    """Every `zkgroups` command that a guide names, in a block or in its text."""
    for block in blocks(guide):
        if block.language == "console":
            yield from (line for command, _ in block.commands for line in re.split(r"\|\||[|;<>]| -- ", command))
    yield from (name for name in CODE.findall(prose(guide)))


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_and_option_exists(guide: str) -> None:
    for line in _commands(guide):
        if re.match(r"\s*zkgroups [a-z-]", line) and "…" not in line:
            words = shlex.split(line.partition(" -- ")[0])[1:]
            command, arguments = _resolved(words)
            options = {word.partition("=")[0] for word in arguments if re.match(r"-[a-z-]", word)}
            assert options <= _options(command) | _options(root), line


def _resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = root
    rest = list(words)
    while rest and isinstance(command, click.Group):
        if rest[0].startswith("-"):  # a global option, and perhaps its value
            word = rest.pop(0)
            if word not in FLAGS:
                rest.pop(0)
            continue
        found = command.get_command(click.Context(command), rest.pop(0))
        assert found is not None, words
        command = found
    return command, [word for word in words if word.startswith("-")]


FLAGS = {"--read-only", "--tls", "--no-headers", "-v", "-q"}


@cache
def _options(command: click.Command) -> set[str]:
    names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return names | {"--help"}


def test_every_option_that_the_guides_name_is_an_option_of_some_command() -> None:
    known = set().union(*(_options(command) for command in _all_commands(root)))
    for guide in GUIDES:
        for name in CODE.findall(prose(guide)):
            if re.fullmatch(r"--[a-z-]+", name.split(" ")[0]):
                assert name.split(" ")[0].partition("=")[0] in known, f"{guide}: {name}"


def _all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from _all_commands(found)


def test_the_tree_lists_every_package_and_every_module_beside_them() -> None:
    [tree] = [block.text for block in blocks("docs/architecture.md") if block.text.startswith("zkgroups/")]
    paths, above = set(), [""]
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth + 1 :] = [above[depth] + line.split()[0]]
        paths.add(above[-1])
    assert all((ROOT / path).exists() for path in paths), paths
    packages = {path.parent for top in ("zkgroups", "cli") for path in (ROOT / top).rglob("__init__.py")}
    assert {f"{path.relative_to(ROOT).as_posix()}/" for path in packages} <= paths
    modules = {path for top in ("zkgroups", "cli") for path in (ROOT / top).glob("[!_]*.py")}
    assert {path.relative_to(ROOT).as_posix() for path in modules} <= paths


def test_the_guarantees_list_every_promise_and_every_failure() -> None:
    text = read("docs/guarantees.md")
    promises = text.split("## Promises")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", promises, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert [row[0] for row in rows("docs/guarantees.md", "## Failures")] == [str(number) for number in range(1, 30)]


def proofs() -> dict[str, tuple[list[str], str]]:
    """The tests that prove each promise and failure, and the changes of the code under which they were seen to fail."""
    promises = {f"rule {row[0]}": row for row in rows("docs/guarantees.md", "## Proofs")}
    failures = {f"failure {row[0]}": row for row in rows("docs/guarantees.md", "## Failures")}
    return {
        name: (CODE.findall(f"`{row[-2]}`"), row[-1].rstrip(" |")) for name, row in {**promises, **failures}.items()
    }


def test_every_promise_and_every_failure_has_tests() -> None:
    assert len(proofs()) == 10 + 29
    for name, (found, _changes) in proofs().items():
        assert found, name
        for proof in found:
            path, _, pattern = proof.partition("::")
            names = re.findall(r"def (test_\w+)\(", (ROOT / path).read_text())
            assert any(fnmatchcase(each, pattern or "*") for each in names), f"{name}: {proof}"


def test_every_test_of_a_promise_or_failure_is_named_in_the_guarantees() -> None:
    text = read("docs/guarantees.md")
    for file in (ROOT / "tests").rglob("test_*.py"):
        for kind in set(re.findall(r"def test_((?:failure|rule)_\d+)_", file.read_text())):
            path = file.relative_to(ROOT).as_posix()
            assert f"`{path}::test_{kind}_*`" in text or f"`{path}`" in text, f"{path}: {kind}"


def test_every_promise_and_every_failure_names_the_changes_under_which_its_tests_fail() -> None:
    """`make proofs` makes these changes."""
    recorded = tomllib.loads((ROOT / "scripts/proofs.toml").read_text())["proof"]
    for name, (found, changes) in proofs().items():
        own = [proof for proof in recorded if proof["row"] == name]
        assert changes == "; ".join(proof["change"] for proof in own), name
        assert own, name
        for path in " ".join(proof["tests"] for proof in own).split():
            assert not path.endswith(".py") or path in {each.partition("::")[0] for each in found}, f"{name}: {path}"
    assert {proof["row"] for proof in recorded} == proofs().keys()


def test_every_recorded_change_can_be_made() -> None:
    """Otherwise `make proofs` and `make mutate` would prove nothing about code that has changed since."""
    for proof in tomllib.loads((ROOT / "scripts/proofs.toml").read_text())["proof"]:
        for edit in proof["edit"]:
            assert read(edit["file"]).count(edit["old"]) == 1, f"{proof['row']}: {proof['change']}"
    for survivor in tomllib.loads((ROOT / "scripts/survivors.toml").read_text())["survivor"]:
        assert survivor["old"] in read(survivor["file"]), f"{survivor['file']}: {survivor['in']}"


def test_every_finding_of_the_doctor_is_explained() -> None:
    explained = {code: severity for code, severity, *_ in rows("docs/operations.md", "## Doctor")}
    assert explained == {check.code: check.severity.value for check in (*CHECKS, *LOG_CHECKS, *STATUS_CHECKS)}


def test_every_exit_code_is_explained() -> None:
    assert [int(row[0]) for row in rows("docs/operations.md", "## Exit codes")] == [code.value for code in ExitCode]


def test_every_state_is_explained() -> None:
    assert {row[0] for row in rows("docs/operations.md", "## States")} == set(GroupState)
    instances = read("docs/operations.md").split("Of an instance:")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `(\w+)`", instances, re.MULTILINE)) == set(InstanceState)
    assert {row[0] for row in rows("docs/migration.md", "## States of a group")} == set(MigrationStage)


def test_every_reason_of_a_plan_is_explained() -> None:
    explained = {reason: action for reason, action, _ in rows("docs/migration.md", "### Reasons")}
    assert explained.keys() == {str(reason) for reason in Reason}
    assert set(explained.values()) == set(Action)


def test_the_gateway_in_the_compose_file_has_valid_options_and_all_files_that_it_needs() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gateway"]
    _zkgroups, name, *words = shlex.split(service["command"])
    command = root.get_command(click.Context(root), name)
    assert command is not None
    options = command.make_context(name, [*words], obj=Options()).obj
    published = {port.split(":")[1] for port in service["ports"]}
    assert published == {words[1].rpartition(":")[2], *words[3].split("-")}
    assert f"-b {options.bootstrap_server} -z {options.zookeeper}" in service["command"]
    copied = re.findall(r"^COPY (.*) \S+$", service["build"]["dockerfile_inline"], re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())


def test_the_runbook_says_what_to_do_about_every_kind_of_obstacle() -> None:
    listed = {kind.replace(" ", "-"): step for kind, _, step in rows("docs/migration.md", "### Obstacles")}
    assert listed == {kind: NEXT_STEPS[kind] for kind in ObstacleKind}
