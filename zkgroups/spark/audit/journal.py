"""The rows of an audit as tables of Spark. `zkgroups/audit/journal.py` describes the files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...audit.journal import COMMITS as COMMITS_FOLDER
from ...audit.journal import CURE, Journal
from ...audit.pieces import Piece
from ...core.audit_columns import COMMITS, STANDING
from ..source.tables import spark_schema
from ..storage.spark_folder import SparkFolder
from ..storage.writing import write_and_list

COMMIT_SCHEMA: Final = spark_schema(COMMITS)
STANDING_SCHEMA: Final = spark_schema(STANDING)

_ROWS_OF_A_FILE: Final = 1_000_000


class SparkJournal(SparkFolder, Journal):
    """The folder of one audit, with its rows as tables of Spark."""

    def read(self, pieces: Iterable[Piece]) -> DataFrame:
        """Return the commits of pieces, after a check that their files are there."""
        return self.read_folders([(COMMITS_FOLDER, piece.name) for piece in pieces], COMMIT_SCHEMA, CURE)

    def known(self, first: int) -> DataFrame | None:
        """Return commits, with the last one of each partition, without those before the batch `first`; None if none."""
        folders = self.known_folders()
        if not folders:
            return None
        return self.read_folders(folders, STANDING_SCHEMA, CURE).where(f.col("batch") >= first)

    def write_commits(self, rows: DataFrame, count: int, piece: Piece) -> None:
        """Add a piece."""
        with self.new_piece(piece) as path:
            write_and_list(rows.coalesce(_files(count)), path)

    def write_standing(self, rows: DataFrame, batch: int) -> None:
        """Add the last commit of each partition."""
        with self.new_standing(batch) as path:
            write_and_list(rows.coalesce(_files(rows.count())), path)


def _files(rows: int) -> int:
    return -(-rows // _ROWS_OF_A_FILE) or 1
