"""Evaluate expressions in Java, with one JVM for a whole test run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zkgroups.testing.java import find_java, pyspark_jars

PROGRAM = Path(__file__).with_name("JavaMatches.java")
_COMPILER = "org.codehaus.janino.SimpleCompiler"


class Java:
    """A Java program that matches names with `java.util.regex`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def matches(self, regex: str, names: Sequence[str]) -> list[bool] | None:
        """Return the names that match completely; None if Java refuses the expression."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"x{regex.encode().hex()} {' '.join(names)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, "the JVM has ended"
        return None if answer == "refused" else [digit == "1" for digit in answer]


@contextmanager
def java() -> Iterator[Java]:
    """Run the program until the block ends."""
    jars = ":".join(map(str, pyspark_jars("janino", "commons-compiler")))
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m")
    command = [str(find_java()), *options, "-cp", jars, _COMPILER, str(PROGRAM), PROGRAM.stem]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Java(process)
        finally:
            process.kill()
