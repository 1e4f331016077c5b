"""The log on stderr: lines that nobody reads are left out."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress

import pytest
from zkgroups_cli.shared.log_handler import PatientHandler


def test_lines_that_nobody_reads_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with os.fdopen(reader, "rb", buffering=0) as read, os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logger = logging.Logger("kazoo.client")
        logger.addHandler(PatientHandler())
        nobody_reads = threading.Thread(
            target=lambda: [logger.info("line %d", number) for number in range(3)], daemon=True
        )
        nobody_reads.start()
        nobody_reads.join(30)
        assert not nobody_reads.is_alive()
        os.set_blocking(reader, False)
        while read.read(65536):
            pass
        logger.info("line 3")
        assert read.read().decode().splitlines() == [
            "zkgroups: 3 lines of the log were left out, because nobody read stderr",
            "line 3",
        ]
