"""`zkgroups migrate`: groups moved to Kafka's own offsets, and back."""

from __future__ import annotations

import click

from ..shared.command_classes import Group
from .apply_verify_rollback import apply, rollback, status, verify
from .export import export
from .follow import follow
from .group import group
from .plan import plan, show
from .unmark import unmark


@click.group(cls=Group)
def migrate() -> None:
    """Move groups to Kafka's own offsets: plan, apply, verify, and roll back.

    A plan is a folder, with what is to be written for each offset, and why. Nothing is written before
    `apply --execute`, and then only where all is still as planned: nobody is registered, nobody reads on the brokers,
    no offset has moved. Every step can be killed and run again. It needs Spark, and a Kafka client:
    pip install 'zkgroups[spark,kafka]'

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan
      zkgroups migrate show /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan --execute
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan
    """


for command in (plan, show, apply, verify, rollback, status, group, follow, export, unmark):
    migrate.add_command(command)
