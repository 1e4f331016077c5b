"""`zkgroups context`: save options under a name, and switch between them. `global_options.py` reads the file."""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource

from .shared.global_options import NOT_SAVED, Command, Contexts, Group, file
from .shared.messages import say
from .shared.options import PREFIX, Options
from .shared.output import Column, Output, Row, Table
from .shared.parameter_types import usage_error

_CONTEXTS: Final = Table(
    "contexts",
    key="context",
    columns=(
        Column("CURRENT", "current", show=lambda value: "*" if value else ""),
        Column("CONTEXT", "context"),
        Column("ZOOKEEPER", "options.zookeeper"),
        Column("BOOTSTRAP-SERVER", "options.bootstrap_server"),
        Column("FILE", "file", wide=True),
    ),
)
_OPTIONS: Final = Table("options", key="option", columns=(Column("OPTION", "option"), Column("VALUE", "value")))


def _checked_name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not name or name != name.strip() or "]" in name or not name.isprintable():
        raise click.BadParameter(
            f"{name!r} cannot be the name of a context: use printable characters except ], and no spaces at the ends"
        )
    return name


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        return [name for name in Contexts().names() if name.startswith(incomplete)]
    except Exception:  # completion is silent
        return []


_name_argument = click.argument("name", metavar="NAME", callback=_checked_name, shell_complete=_complete)


class _ContextCommand(Command):
    """A command on the contexts themselves. It works without any of them, even if one is invalid."""

    uses_context = False


class _ContextGroup(Group):
    command_class = _ContextCommand


@click.group(cls=_ContextGroup)
def context() -> None:
    """Save options under a name, and switch between them.

    A context contains global options: addresses, users, and the paths of password and certificate files. The command
    line wins over the environment, and the environment over the context in use. But a context that is named with -c on
    the command line wins over the environment. Passwords are not saved.

    \b
    Example:
      zkgroups context add prod -z zk1:2181,zk2:2181/kafka -b kafka1:9092
      zkgroups context use prod
    """


@context.command()
@_name_argument
@click.pass_obj
def add(options: Options, name: str) -> None:
    """Save the global options of this command line as a context. Replace a context of the same name.

    \b
    Example:
      zkgroups context add prod -z zk1:2181,zk2:2181/kafka -b kafka1:9092
    """
    values = {
        key: _text(getattr(options, key))
        for key, source in options.given.items()
        if source is ParameterSource.COMMANDLINE and key not in NOT_SAVED
    }
    if not values:
        raise usage_error("no options to save: give at least one, e.g. -z HOST:PORT")
    replaced = Contexts().put(name, values)
    say(options, f"{'replaced' if replaced else 'added'} context {name} in {file()}")


@context.command()
@_name_argument
@click.pass_obj
def use(options: Options, name: str) -> None:
    """Use a context from now on, unless another one is named with -c.

    \b
    Example:
      zkgroups context use prod
    """
    contexts = Contexts()
    contexts.use(name)
    say(options, f"using context {name}")
    for key in contexts.get(name):
        if options.given.get(key) is ParameterSource.ENVIRONMENT:
            say(
                options,
                f"warning: {PREFIX}{key.upper()} is set in the environment and wins; unset it, or use -c {name}",
            )


@context.command("list")
@click.pass_obj
def list_contexts(options: Options) -> None:
    """List all contexts.

    \b
    Example:
      zkgroups context list
    """
    contexts = Contexts()
    if not contexts.names():
        say(options, "There are no contexts. To save one: zkgroups context add NAME -z HOST:PORT/CHROOT")
    Output(options).write(_CONTEXTS, [_row(contexts, name) for name in contexts.names()])


@context.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
@click.pass_obj
def show(options: Options, name: str | None) -> None:
    """Show the options of a context, by default of the one in use.

    \b
    Example:
      zkgroups context show prod
    """
    contexts = Contexts()
    name = name or options.context or contexts.current
    if name is None:
        raise usage_error("no context is in use: give a NAME, or choose a context with `zkgroups context use NAME`")
    Output(options).write(_OPTIONS, [{"option": key, "value": value} for key, value in contexts.get(name).items()])


@context.command()
@_name_argument
@click.pass_obj
def delete(options: Options, name: str) -> None:
    """Delete a context.

    \b
    Example:
      zkgroups context delete prod
    """
    Contexts().delete(name)
    say(options, f"deleted context {name}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(contexts: Contexts, name: str) -> Row:
    saved = contexts.get(name)
    shown = {"zookeeper": None, "bootstrap_server": None} | saved
    return {"context": name, "current": name == contexts.current, "options": shown, "file": str(file())}
