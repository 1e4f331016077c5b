"""`zkgroups spark-package`: what Spark ships to workers that do not have zkgroups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from zkgroups.exceptions import StorageError

from .shared.engine_options import installed
from .shared.global_options import Command
from .shared.messages import say
from .shared.options import Options
from .shared.output import Column, Output, Table
from .shared.parameter_types import FilePath
from .shared.private_files import file_exists

_PACKAGES: Final = Table("packages", key="name", columns=(Column("PACKAGE", "name"), Column("VERSION", "version")))


@click.command(cls=Command)
@click.argument("file", metavar="FILE", type=FilePath(dir_okay=False, path_type=Path))
@click.pass_obj
def spark_package(options: Options, file: Path) -> None:
    """Write zkgroups and the packages it needs to a zip file, for Spark workers that do not have them.

    Spark copies FILE to its workers, if the setting spark.submit.pyFiles names it. The name must end with .zip. The
    workers need pyarrow, and the version of Python that runs this command; spark.pyspark.python is the name of that
    Python on all machines. Write the file on a machine of the same kind as the workers.

    \b
    Example:
      zkgroups spark-package zkgroups.zip
      zkgroups -z zk1:2181/kafka snapshot hdfs:///data/groups --master spark://master:7077
      --conf spark.submit.pyFiles=zkgroups.zip --conf spark.pyspark.python=python3.11
    """
    with installed("spark"):
        from zkgroups.spark.worker_package import write_worker_package
    try:
        written = write_worker_package(file)
    except FileExistsError as error:
        raise file_exists(file) from error
    except OSError as error:
        raise StorageError(f"{file} could not be written: {error.strerror}") from error
    Output(options).write(_PACKAGES, [{"name": name, "version": at} for name, at in written.packages.items()])
    python = "python{}.{}".format(*sys.version_info)
    say(options, f"Use it with --conf spark.submit.pyFiles={file} --conf spark.pyspark.python={python}")
