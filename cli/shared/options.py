"""The values of the global options in one run, which `global_options.py` declares, and the exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from click.core import ParameterSource


PREFIX: Final = "ZKGROUPS_"
"""The prefix of the environment variables."""


class Format(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    JSONL = "jsonl"
    CSV = "csv"
    NAME = "name"


class Color(StrEnum):
    """When to use colour: `auto` means on a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Options:
    """The global options of one run, under their names on the command line."""

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
    """The options that were given, with their source."""


class ExitCode(IntEnum):
    """An exit code. `zkgroups --help` prints its `meaning`."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Create an integer with a meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done"
    UNEXPECTED = 1, "unexpected error; -vv shows the traceback"
    USAGE = 2, "usage error, e.g. an invalid name"
    NOT_FOUND = 3, "not found"
    REFUSED = 4, "refused: live instances, an unexpected state, or possible loss of data"
    CONFLICT = 5, "conflict: claimed by another instance, or changed meanwhile"
    AUTH = 6, "authentication failed, or permission missing"
    UNAVAILABLE = 7, "no connection, session expired, or outcome unknown"
    TIMED_OUT = 8, "timed out waiting for a partition"
    PARTIAL = 9, "partly done: some steps failed"
    FINDINGS = 10, "a check found a problem, or the requested znode is unreadable"
    INTERRUPTED = 130, "interrupted by Ctrl-C; claims were released"
    TERMINATED = 143, "terminated by SIGTERM; claims were released"
