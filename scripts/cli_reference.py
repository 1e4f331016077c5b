"""Write docs/cli.md, the reference of the command line, from the commands themselves: `make docs`.

    python scripts/cli_reference.py [--check]

With --check nothing is written, and the exit code says whether the file is as it should be.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from zkgroups_cli.main import root
from zkgroups_cli.shared.exit_codes import ExitCode
from zkgroups_cli.shared.global_options import root_parameters
from zkgroups_cli.shared.options import PREFIX

FILE = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """# The zkgroups command

*Written by `make docs` from the commands, whose `--help` says the same.*
"""


def reference() -> str:
    """The whole file."""
    ctx = click.Context(root, info_name="zkgroups")
    blocks = [HEAD, *_synopsis(), *_text(root), *_global_options(), *_exit_codes()]
    for name, command in _commands(root, ctx):
        blocks += _command(command, click.Context(command, info_name=name, parent=ctx), level=2)
    return "\n".join(blocks).rstrip() + "\n"


def _commands(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield name, command


def _synopsis() -> list[str]:
    names = [f"- [`zkgroups {name}`](#zkgroups-{name})" for name in root.list_commands(click.Context(root))]
    return ["\n".join(names), ""]


def _command(command: click.Command, ctx: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {ctx.command_path}\n"
    if not isinstance(command, click.Group):
        yield f"```\n{_usage(command, ctx)}\n```\n"
    yield from _text(command)
    options = [each for each in command.params if isinstance(each, click.Option) and each.get_help_record(ctx)]
    rows = [_row(option, ctx) for option in options]
    if rows:
        yield _table(("option", "meaning"), rows)
    if isinstance(command, click.Group):
        for name, below in _commands(command, ctx):
            yield from _command(below, click.Context(below, info_name=name, parent=ctx), level + 1)


def _usage(command: click.Command, ctx: click.Context) -> str:
    return " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])


def _text(command: click.Command) -> Iterator[str]:
    """The paragraphs of the help; what stands after a \\b is kept as it is, and an example is one to copy."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if not paragraph.startswith("\b"):
            yield _escaped(" ".join(paragraph.split())) + "\n"
            continue
        first, *lines = paragraph.removeprefix("\b\n").splitlines()
        if first.startswith("Example"):
            yield "```sh\n" + inspect.cleandoc("\n".join(lines)) + "\n```\n"
        else:
            yield "```text\n" + "\n".join([first, *lines]) + "\n```\n"


def _row(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    option, meaning = parameter.get_help_record(ctx) or ("", "")
    return f"`{option.strip()}`", _escaped(meaning)


def _global_options() -> Iterator[str]:
    yield "## Global options\n"
    yield "They are accepted before and after the name of a command, from the environment, and from a context.\n"
    ctx = click.Context(root)
    rows = [(*_row(each, ctx), f"`{PREFIX}{str(each.name).upper()}`") for each in root_parameters()]
    yield _table(("option", "meaning", "environment"), rows)


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield _table(("code", "meaning"), [(str(code.value), _escaped(code.meaning)) for code in ExitCode])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    """What Markdown would take for a tag is none."""
    return re.sub(r"([<*_])", r"\\\1", text)


def main() -> int:
    """Write the file, or compare it."""
    text = reference()
    if "--check" in sys.argv[1:]:
        return 0 if FILE.exists() and FILE.read_text() == text else 1
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
