"""Contexts: global options saved under a name.

They are saved in `zkgroups/contexts.ini` in the user's configuration folder (XDG_CONFIG_HOME, by default ~/.config), or
in the file named by ZKGROUPS_CONFIG. They contain no secrets: passwords come from files, the environment or a prompt.

This is not click's `default_map`, because a context that is named on the command line wins over the environment, and
because `--context` may stand after the name of the command.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from .global_options import parameter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from configparser import ConfigParser
    from pathlib import Path

    from .options import Options

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
