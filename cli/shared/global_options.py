"""The global options, saved contexts, and the classes of commands, which accept the options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from .messages import set_up_logging
from .options import PREFIX, Color, ExitCode, Format, Options
from .parameter_types import Duration, FilePath
from .signals import raise_on_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from configparser import ConfigParser


def _choice(names: type[Format] | type[Color]) -> click.Choice[str]:
    return click.Choice([name.value for name in names])


_FILE: Final[dict[str, Any]] = {"type": FilePath(path_type=Path), "metavar": "FILE"}
_DURATION: Final[dict[str, Any]] = {"type": Duration()}
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
        _DURATION
        | {
            "help": "The time limit for connecting and for each request. Without this option, connecting fails after "
            "1 s if all hosts are unknown or refuse connections."
        },
    ),
    (("--session-timeout",), _DURATION | {"help": "How long the ZooKeeper session survives a lost connection."}),
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
        """Return nothing: `_WithGlobalOptions` refers to the help of the root command."""


# Contexts: global options saved under a name.
#
# They are saved in `zkgroups/contexts.ini` in the user's configuration folder (XDG_CONFIG_HOME, by default
# ~/.config), or in the file named by ZKGROUPS_CONFIG. They contain no secrets: passwords come from files, the
# environment or a prompt.
#
# This is not click's `default_map`, because a context that is named on the command line wins over the environment,
# and because `--context` may stand after the name of the command.


FILE_VARIABLE: Final = "ZKGROUPS_CONFIG"
NOT_SAVED: Final = frozenset({"context", "output", "verbose", "quiet", "no_headers", "color"})
"""Options that depend on the run or on personal taste."""

_CHOICE: Final = "zkgroups"
_CURRENT: Final = "context"
_PREFIX: Final = "context "


def file() -> Path:
    """Return the path of the file that holds all contexts. It need not exist."""
    from pathlib import Path

    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".config") / "zkgroups" / "contexts.ini"


class Contexts:
    """The saved contexts, read when created. Each change reads the file again and rewrites it, under a lock."""

    def __init__(self) -> None:
        self._file = file()
        self._parser = self._read()

    def _read(self) -> ConfigParser:
        from configparser import ConfigParser, Error

        parser = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        try:
            with contextlib.suppress(FileNotFoundError), self._file.open(encoding="utf-8") as saved:
                parser.read_file(saved)  # `read` would ignore a forbidden file
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{self._file} cannot be read: it is not UTF-8 at byte {error.start}") from None
        except (Error, OSError) as error:
            raise click.UsageError(f"{self._file} cannot be read: {str(error).splitlines()[0]}") from error
        return parser

    def names(self) -> list[str]:
        """Return the names of all contexts, sorted."""
        return sorted(name.removeprefix(_PREFIX) for name in self._parser.sections() if name.startswith(_PREFIX))

    @property
    def current(self) -> str | None:
        """The context in use."""
        return self._parser.get(_CHOICE, _CURRENT, fallback=None)

    def get(self, name: str) -> dict[str, str]:
        """Return the options of a context as text."""
        if name not in self.names():
            raise click.UsageError(f"context {name!r} does not exist; `zkgroups context list` shows all")
        return dict(self._parser[_PREFIX + name])

    def put(self, name: str, values: dict[str, str]) -> bool:
        """Save a context. Return True if it replaced one of the same name."""
        with self._changing():
            replaced = name in self.names()
            self._parser[_PREFIX + name] = values
        return replaced

    def use(self, name: str) -> None:
        """Use a context from now on."""
        with self._changing():
            self.get(name)
            self._parser[_CHOICE] = {_CURRENT: name}

    def delete(self, name: str) -> None:
        """Delete a context."""
        with self._changing():
            self.get(name)
            self._parser.remove_section(_PREFIX + name)
            if self.current == name:
                self._parser.remove_section(_CHOICE)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Read the contexts again, and save them at the end. Other processes wait, so that no change is lost."""
        from .private_files import locked, make_private_folder

        make_private_folder(self._file.absolute().parent)
        with locked(self._file.with_name(f".{self._file.name}.lock")):
            self._parser = self._read()
            yield
            self._save()

    def _save(self) -> None:
        """Replace the file atomically: a process that is killed leaves the old file or the new one."""
        from io import StringIO

        from .private_files import replace_file

        text = StringIO()
        self._parser.write(text)
        try:
            replace_file(self._file, text.getvalue())
        except OSError as error:
            from zkgroups.exceptions import StorageError  # `zkgroups --help` does not need it

            raise StorageError(f"{self._file} could not be written: {error.strerror}; nothing was changed") from error


def apply_context(options: Options) -> None:
    """Set the options of the context that were given neither on the command line nor in the environment.

    A context that is named on the command line wins over the environment.
    """
    if options.context is None and not file().exists():
        return
    contexts = Contexts()
    name = contexts.current if options.context is None else options.context
    if name is None:
        return
    typed = {key for key, source in options.given.items() if source is ParameterSource.COMMANDLINE}
    wins = typed if "context" in typed else options.given.keys()
    for key, text in contexts.get(name).items():
        if key not in wins:
            setattr(options, key, _value(name, key, text))
            options.given[key] = ParameterSource.DEFAULT_MAP


def _value(name: str, key: str, text: str) -> Any:
    """Convert the text of an option to its type."""
    if key in NOT_SAVED or (found := parameter(key)) is None:
        raise click.UsageError(f"{file()}: context {name!r} has an unknown option {key!r}: delete that line")
    try:
        return found.type.convert(text, found, None)
    except click.UsageError as error:
        raise click.UsageError(f"{file()}: {key} of context {name!r}: {error.format_message()}") from error


class _WithHelp(click.Command):
    def get_help_option_names(self, _ctx: click.Context) -> list[str]:
        """Return both names, also in a context without settings: click keeps the option that it has made first."""
        return ["-h", "--help"]


class _WithGlobalOptions(_WithHelp):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += command_parameters()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. When a shell completes the value of an option, parse only the words before it."""
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            args = args[:-1]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and refer to the global ones."""
        super().format_options(ctx, formatter)
        with formatter.section("Global options, here or before the command"):
            formatter.write_text("-z HOSTS/CHROOT, -o FORMAT, --timeout DURATION, and all others of zkgroups --help")


class Command(_WithGlobalOptions):
    """A command that takes the global options."""

    uses_context = True

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the options of the saved context."""
        raise_on_ctrl_c()
        options = ctx.ensure_object(Options)
        if self.uses_context:
            apply_context(options)
        set_up_logging(options)
        return super().invoke(ctx)


class CommandGroup(_WithHelp, click.Group):
    """A group of commands. `lazy` maps the names of commands to `module:attribute`, imported on demand.

    Without a command on the command line it prints its help. (The way click does this differs between versions.)
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the table."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, importing it if necessary."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. The error for an unknown name suggests a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if similar := get_close_matches(args[0], self.list_commands(ctx), n=1):
                message = f"No such command {args[0]!r}. Did you mean {similar[0]!r}?"
                raise click.UsageError(message, ctx) from error
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, or print the help."""
        if args or ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        click.echo(ctx.get_help(), err=True)
        raise click.exceptions.Exit(ExitCode.USAGE)


class Group(_WithGlobalOptions, CommandGroup):
    """A group of commands that accepts the global options, as its commands do."""

    command_class = Command
