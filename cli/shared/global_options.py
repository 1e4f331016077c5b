"""The declarations of the global options, which are accepted before and after the name of a command.

A value later on the command line wins over an earlier one, the command line over the environment, and the environment
over the saved context (`contexts_file.py`). The environment variables are declared one by one: click's
`auto_envvar_prefix` would also give one to every option of every command, so that a variable could turn a dry run into
`--execute`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from .input_files import FilePath
from .options import PREFIX, Color, Format, Options


def _choice(names: type[Format] | type[Color]) -> click.Choice[str]:
    return click.Choice([name.value for name in names])


_FILE: Final[dict[str, Any]] = {"type": FilePath(path_type=Path), "metavar": "FILE"}
_SECONDS: Final[dict[str, Any]] = {"type": float, "metavar": "SECONDS"}
_FLAG: Final[dict[str, Any]] = {"is_flag": True}

_DECLARATIONS: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (
        ("-z", "--zookeeper"),
        {
            "metavar": "HOSTS/CHROOT",
            "help": "The ZooKeeper servers with the chroot, e.g. zk1:2181,zk2:2181/kafka.",
        },
    ),
    (
        ("-b", "--bootstrap-server"),
        {"metavar": "HOST:PORT,...", "help": "The Kafka brokers, for log ends and for offsets committed to Kafka."},
    ),
    (
        ("--command-config",),
        _FILE | {"help": "A properties file of the Kafka client, e.g. for TLS and SASL."},
    ),
    (
        ("-c", "--context"),
        {
            "metavar": "NAME",
            "help": "The context (saved options) to use, instead of the one chosen by `zkgroups context use`.",
        },
    ),
    (
        ("-o", "--output"),
        {
            "type": _choice(Format),
            "help": "The output format; by default a table. In CSV, text that begins with =, +, - or @ gets a leading "
            "apostrophe, because spreadsheets would read it as a formula.",
        },
    ),
    (("--no-headers",), _FLAG | {"help": "Omit the header line of tables and CSV."}),
    (("--read-only",), _FLAG | {"help": "Refuse every write. Also accept a server that has lost its quorum."}),
    (
        ("--timeout",),
        _SECONDS
        | {
            "help": "The time limit for connecting and for each request. Without this option, connecting fails after "
            "1 s if all hosts are unknown or refuse connections."
        },
    ),
    (("--session-timeout",), _SECONDS | {"help": "How long the ZooKeeper session survives a lost connection."}),
    (("--digest-user",), {"metavar": "NAME", "help": "The user for ACLs of the scheme digest."}),
    (("--sasl-user",), {"metavar": "NAME", "help": "The user for SASL DIGEST-MD5."}),
    (
        ("--password-file",),
        _FILE | {"help": "The user's password. Default: $ZKGROUPS_PASSWORD, or a prompt on a terminal."},
    ),
    (("--tls",), _FLAG | {"help": "Connect to ZooKeeper with TLS."}),
    (("--tls-ca",), _FILE | {"help": "The certificate authority to trust (PEM)."}),
    (("--tls-cert",), _FILE | {"help": "The client certificate (PEM). The file may also contain the key."}),
    (("--tls-key",), _FILE | {"help": "The key of the client certificate (PEM)."}),
    (
        ("--tls-key-password-file",),
        _FILE | {"help": "The password of the key. Default: $ZKGROUPS_TLS_KEY_PASSWORD."},
    ),
    (("--no-tls-hostname-check",), _FLAG | {"help": "Accept a server certificate for another host name."}),
    (("-v", "--verbose"), {"count": True, "help": "Show the log messages of libraries; -vv also shows tracebacks."}),
    (("-q", "--quiet"), _FLAG | {"help": "Print only errors on stderr."}),
    (("--color",), {"type": _choice(Color), "help": "When to color tables."}),
)


def root_parameters() -> list[click.Parameter]:
    """Return the global options for the root command, with defaults, environment variables and help."""
    return [_RootOption(names, **_root_attributes(names[-1]), **more) for names, more in _DECLARATIONS]


def command_parameters() -> list[click.Parameter]:
    """Return the global options for a command. Its help does not list them again."""
    return [_HiddenOption(names, expose_value=False, callback=_save_value, **more) for names, more in _DECLARATIONS]


def parameter(name: str) -> click.Parameter | None:
    """Return the global option with this name in `Options`."""
    return next((each for each in root_parameters() if each.name == name), None)


_OF_SERVER: Final = {
    "zookeeper": "-z",
    "context": "-c",
    "digest_user": "--digest-user",
    "sasl_user": "--sasl-user",
    "password_file": "--password-file",
}


def as_typed(options: Options) -> list[str]:
    """Return the options of this command line that name the server, for a suggested command line.

    Options from the environment are left out, because they also apply to the suggested one.
    """
    return [
        word
        for name, option in _OF_SERVER.items()
        if options.given.get(name) is ParameterSource.COMMANDLINE
        for word in (option, str(getattr(options, name)))
    ]


def _root_attributes(option: str) -> dict[str, Any]:
    name = option.removeprefix("--").replace("-", "_")
    default = getattr(Options(), name)
    return {
        "default": default,
        "show_default": bool(default),
        "envvar": PREFIX + name.upper(),
        "expose_value": False,
        "callback": _save_value,
    }


def _save_value(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    name = str(parameter.name)
    source = ctx.get_parameter_source(name)
    if source is not None and source is not ParameterSource.DEFAULT:
        options = ctx.ensure_object(Options)
        setattr(options, name, value)
        options.given[name] = source


class _RootOption(click.Option):
    """A global option with its help. Its environment variable has the same name, so the help does not repeat it."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Name the environment variable as well, because the bad value may come from there."""
        return f"{super().get_error_hint(ctx)} (or {self.envvar})"


class _HiddenOption(click.Option):
    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing: `command_classes.py` refers to the help of the root command."""
