"""The global options: declared once, accepted before and after the name of a command, each also by environment.

Every command and every group of commands takes them. What stands later on the command line wins over what stands
earlier, that over the environment, and that over the context (`saved_contexts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from .exit_codes import ExitCode
from .input_files import FilePath
from .messages import settle
from .saved_contexts import fill_in

PREFIX: Final = "ZKGROUPS_"
"""What the environment variables begin with."""

SECRETS: Final = ("password", "tls-key-password")
"""The secrets that may be given in the environment, or in a file, e.g. with --password-file."""


def secret_variable(name: str) -> str:
    """Return the environment variable of a secret.

    >>> secret_variable("tls-key-password")
    'ZKGROUPS_TLS_KEY_PASSWORD'
    """
    return PREFIX + name.upper().replace("-", "_")


class Format(StrEnum):
    """How data is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    NAME = "name"


class Color(StrEnum):
    """When to use colour: `auto` is on a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Options:
    """The global options of one run, by the names they have on the command line."""

    zookeeper: str | None = None
    bootstrap_server: str | None = None
    command_config: Path | None = None
    context: str | None = None
    output: str | None = None
    no_headers: bool = False
    read_only: bool = False
    timeout: float = 10.0
    session_timeout: float = 30.0
    digest_user: str | None = None
    sasl_user: str | None = None
    password_file: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_key_password_file: Path | None = None
    no_tls_hostname_check: bool = False
    verbose: int = 0
    quiet: bool = False
    color: str = Color.AUTO.value
    given: dict[str, ParameterSource] = field(default_factory=dict)
    """Where each option came from that was given at all."""


def _choice(names: type[Format] | type[Color]) -> click.Choice[str]:
    return click.Choice([name.value for name in names])


_FILE: Final[dict[str, Any]] = {"type": FilePath(path_type=Path), "metavar": "FILE"}
_SECONDS: Final[dict[str, Any]] = {"type": float, "metavar": "SECONDS"}
_FLAG: Final[dict[str, Any]] = {"is_flag": True}

_DECLARATIONS: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (("-z", "--zookeeper"), {"metavar": "HOSTS/CHROOT", "help": "Where ZooKeeper is: zk1:2181,zk2:2181/kafka."}),
    (
        ("-b", "--bootstrap-server"),
        {"metavar": "HOST:PORT,...", "help": "Where Kafka's brokers are, for what only they know."},
    ),
    (("--command-config",), _FILE | {"help": "Properties of a Kafka client, for TLS and logins at the brokers."}),
    (
        ("-c", "--context"),
        {"metavar": "NAME", "help": "The saved options to use, instead of those chosen by `zkgroups context use`."},
    ),
    (
        ("-o", "--output"),
        {
            "type": _choice(Format),
            "help": "How data is written; a table by default. In CSV, text that begins with =, +, - or @ gets a "
            "leading apostrophe, or spreadsheets would take it for a formula.",
        },
    ),
    (("--no-headers",), _FLAG | {"help": "Leave the first line out of tables and CSV."}),
    (("--read-only",), _FLAG | {"help": "Refuse to write anything; a server that has lost its quorum will do."}),
    (
        ("--timeout",),
        _SECONDS
        | {"help": "For the connection, and for each request. If given, also wait for hosts that cannot be reached."},
    ),
    (("--session-timeout",), _SECONDS | {"help": "How long our session outlives its connection."}),
    (("--digest-user",), {"metavar": "NAME", "help": "Who we are to ACLs of the scheme digest."}),
    (("--sasl-user",), {"metavar": "NAME", "help": "Who we are by SASL DIGEST-MD5."}),
    (
        ("--password-file",),
        _FILE | {"help": "The user's password. Without it $ZKGROUPS_PASSWORD, or a question on the terminal."},
    ),
    (("--tls",), _FLAG | {"help": "Connect by TLS."}),
    (("--tls-ca",), _FILE | {"help": "The authority to trust, as PEM."}),
    (("--tls-cert",), _FILE | {"help": "Our own certificate, as PEM, which may hold the key, too."}),
    (("--tls-key",), _FILE | {"help": "The key of our certificate, as PEM."}),
    (
        ("--tls-key-password-file",),
        _FILE | {"help": "The password of the key. Without it $ZKGROUPS_TLS_KEY_PASSWORD."},
    ),
    (("--no-tls-hostname-check",), _FLAG | {"help": "Accept a server's certificate for another host name."}),
    (("-v", "--verbose"), {"count": True, "help": "Show what libraries log; -vv shows tracebacks, too."}),
    (("-q", "--quiet"), _FLAG | {"help": "Say nothing on stderr but errors."}),
    (("--color",), {"type": _choice(Color), "help": "Colour in tables."}),
)


def root_parameters() -> list[click.Parameter]:
    """The global options as the root declares them: with defaults, environment and help."""
    return [_AtRoot(names, **_root_attributes(names[-1]), **more) for names, more in _DECLARATIONS]


def _root_attributes(option: str) -> dict[str, Any]:
    name = option.removeprefix("--").replace("-", "_")
    default = getattr(Options(), name)
    return {
        "default": default,
        "show_default": bool(default),
        "envvar": PREFIX + name.upper(),
        "expose_value": False,
        "callback": _remember,
    }


def parameter(name: str) -> click.Parameter | None:
    """The global option that has this name in `Options`."""
    return next((each for each in root_parameters() if each.name == name), None)


_PASSED_ON: Final = {
    "zookeeper": "-z",
    "context": "-c",
    "digest_user": "--digest-user",
    "sasl_user": "--sasl-user",
    "password_file": "--password-file",
}
"""What a line needs that is to be typed for the same server."""


def as_typed(options: Options) -> list[str]:
    """What this command line says of the server, for another one: what is in the environment still is."""
    return [
        word
        for name, option in _PASSED_ON.items()
        if options.given.get(name) is ParameterSource.COMMANDLINE
        for word in (option, str(getattr(options, name)))
    ]


def _later_parameters() -> list[click.Parameter]:
    return [_Repeated(names, expose_value=False, callback=_remember, **more) for names, more in _DECLARATIONS]


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    name = str(parameter.name)
    source = ctx.get_parameter_source(name)
    if source is not None and source is not ParameterSource.DEFAULT:
        options = ctx.ensure_object(Options)
        setattr(options, name, value)
        options.given[name] = source


class _AtRoot(click.Option):
    """A global option where it is explained. Its variable has the same name, so that the help need not repeat it."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Both ways to give it, as nobody remembers what is in the environment."""
        return f"{super().get_error_hint(ctx)} (or {self.envvar})"


class _Repeated(click.Option):
    """A global option after the name of a command; it is explained at the root, and only named again here."""

    def get_help_record(self, ctx: click.Context) -> None:
        """Nothing: see `_WithGlobalOptions.format_options`."""


class _WithGlobalOptions(click.Command):
    """What a command and a group of commands have in common."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _later_parameters()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; where a shell asks for the value of an option, all that stands before it counts."""
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            args = args[:-1]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What is special to the command, and a reminder of the global options."""
        super().format_options(ctx, formatter)
        with formatter.section("Global options, here or before the command"):
            formatter.write_text("-z HOSTS/CHROOT, -o FORMAT, --timeout SECONDS, and all others of zkgroups --help")


class Command(_WithGlobalOptions):
    """A command that takes the global options."""

    uses_context = True

    def invoke(self, ctx: click.Context) -> Any:
        """Run it: from here on all options are known."""
        options = ctx.ensure_object(Options)
        if self.uses_context:
            fill_in(options)
        settle(options)
        return super().invoke(ctx)


class CommandGroup(click.Group):
    """A group of commands that shows its help where no command was named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; but click's own way to show the help differs from version to version."""
        if args or ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        click.echo(ctx.get_help(), err=True)
        raise click.exceptions.Exit(ExitCode.USAGE)


class Group(_WithGlobalOptions, CommandGroup):
    """A group of commands that takes the global options, and so do its commands."""

    command_class = Command
