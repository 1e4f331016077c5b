"""The command group `zkgroups migrate`."""

from __future__ import annotations

import click

from ..shared.global_options import Group
from .apply_verify_rollback import apply, rollback, status, verify
from .follow import follow
from .group import group, switch, unmark
from .plan import export, plan, show


@click.group(cls=Group)
def migrate() -> None:
    """Move groups to Kafka's committed offsets: plan, apply, verify, roll back.

    A plan is a folder with a decision and a reason for each offset. No command writes offsets without --execute.
    `apply` writes only groups that have not changed since the plan: no registered instance, no member on the brokers,
    no new commit. Every step can be repeated after a crash. Needs a Kafka client and Arrow; from the
    checkout: pip install '.[migrate]'. For large plans also install '.[spark]': see --engine.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --groups 'bill.*'
      zkgroups migrate show /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan --execute
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan
    """


for command in (plan, show, apply, verify, rollback, status, group, follow, export, switch, unmark):
    migrate.add_command(command)
