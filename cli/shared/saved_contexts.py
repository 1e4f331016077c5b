"""Contexts: options saved under a name, so that they need not be given again.

They are in `zkgroups/contexts.ini` in the user's folder for configuration (XDG_CONFIG_HOME, by default ~/.config), or
in the file that ZKGROUPS_CONFIG names. No secret is among them: passwords come from files, the environment or a
terminal.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from configparser import ConfigParser
    from pathlib import Path

    from .options import Options

FILE_VARIABLE: Final = "ZKGROUPS_CONFIG"
NOT_SAVED: Final = frozenset({"context", "output", "verbose", "quiet", "no_headers", "color"})
"""Options of one run, or of one's taste."""

_CHOICE: Final = "zkgroups"
_CURRENT: Final = "context"
_PREFIX: Final = "context "


def file() -> Path:
    """Where contexts are kept."""
    from pathlib import Path

    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".config") / "zkgroups" / "contexts.ini"


class Contexts:
    """What is in the file."""

    def __init__(self) -> None:
        from configparser import ConfigParser, Error

        import click

        self._file = file()
        self._parser: ConfigParser = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        try:
            with contextlib.suppress(FileNotFoundError), self._file.open(encoding="utf-8") as saved:
                self._parser.read_file(saved)  # `read` takes a file that may not be read for none
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{self._file} cannot be read: it is not UTF-8 at byte {error.start}") from None
        except (Error, OSError) as error:
            raise click.UsageError(f"{self._file} cannot be read: {str(error).splitlines()[0]}") from error

    def names(self) -> list[str]:
        """All that there are, sorted."""
        return sorted(name.removeprefix(_PREFIX) for name in self._parser.sections() if name.startswith(_PREFIX))

    @property
    def current(self) -> str | None:
        """The one that is used where none is named."""
        return self._parser.get(_CHOICE, _CURRENT, fallback=None)

    def get(self, name: str) -> dict[str, str]:
        """The options of one, as they are written on a command line."""
        import click

        if name not in self.names():
            raise click.UsageError(f"there is no context {name!r}: zkgroups context list")
        return dict(self._parser[_PREFIX + name])

    def put(self, name: str, values: dict[str, str]) -> None:
        """Save one, over what has that name."""
        self._parser[_PREFIX + name] = values
        self._save()

    def use(self, name: str) -> None:
        """Use it from now on where none is named."""
        self.get(name)
        self._parser[_CHOICE] = {_CURRENT: name}
        self._save()

    def delete(self, name: str) -> None:
        """Forget one."""
        self.get(name)
        self._parser.remove_section(_PREFIX + name)
        if self.current == name:
            self._parser.remove_section(_CHOICE)
        self._save()

    def _save(self) -> None:
        """Replace the file as a whole: a run that is killed leaves the old one or the new one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        with scratch.open("w", encoding="utf-8") as out:
            self._parser.write(out)
        scratch.replace(self._file)


def apply_context(options: Options) -> None:
    """Take from the context what was given neither on the command line nor by environment.

    A context that is itself named on the command line counts more than the environment: who types its name means it.
    """
    if options.context is None and not file().exists():
        return
    contexts = Contexts()
    name = contexts.current if options.context is None else options.context
    if name is None:
        return
    from click.core import ParameterSource

    typed = {key for key, source in options.given.items() if source is ParameterSource.COMMANDLINE}
    counts_more = typed if "context" in typed else options.given.keys()
    for key, text in contexts.get(name).items():
        if key not in counts_more:
            setattr(options, key, _value(name, key, text))
            options.given[key] = ParameterSource.DEFAULT_MAP


def _value(name: str, key: str, text: str) -> Any:
    """What the option's own type makes of the text."""
    import click

    from .global_options import parameter

    if key in NOT_SAVED or (found := parameter(key)) is None:
        raise click.UsageError(f"{file()}: context {name!r} has an option {key!r}, which there is not")
    try:
        return found.type.convert(text, found, None)
    except click.UsageError as error:
        raise click.UsageError(f"{file()}: {key} of context {name!r}: {error.format_message()}") from error
