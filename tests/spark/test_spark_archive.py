"""Java would ignore the archive of Spark's classes, without a word, if Spark started Java in another way."""

from __future__ import annotations

import os
import subprocess

from zkgroups.testing.java import find_java

from ..spark_archive import VARIABLE, class_path


def test_spark_starts_java_with_the_class_path_of_the_archive_and_with_options_of_the_environment() -> None:
    jars = class_path()[-1]
    launcher = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
    env = os.environ | {"SPARK_HOME": str(jars.parent.parent), "SPARK_SCALA_VERSION": "2.13", VARIABLE: "-Dsome=thing"}
    done = subprocess.run([find_java(), "-cp", jars, *launcher], env=env, capture_output=True, text=True, check=True)
    _, *command = done.stdout.split("\0")
    assert command[command.index("-cp") + 1] == os.pathsep.join(map(str, class_path()))
    assert "-Dsome=thing" in command
