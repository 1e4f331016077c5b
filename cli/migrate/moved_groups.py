"""`zkgroups migrate status` without a plan: the groups that `migrate switch` has moved, or is moving."""

from __future__ import annotations

from typing import Final

from zkgroups.core.times import utc
from zkgroups.core.znodes.group_route import GroupRoute

from ..shared.connect import connected
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table

_MOVED: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("STATE", "state", styles={"kafka": "green"}),
        Column("SINCE", "since_ms", show=utc),
        Column("ON-BROKERS", "holders", show=lambda holders: ", ".join(holders)),
    ),
)


def show_moved_groups(options: Options) -> None:
    """Show each group with a route, and who uses the brokers for it."""
    from zkgroups.zookeeper.admin.group_routes import permit_holders
    from zkgroups.zookeeper.ownership.route_nodes import read_routes
    from zkgroups.zookeeper.session.registry_context import context_of

    with connected(options) as registry:
        context = context_of(registry)
        found = sorted(read_routes(context).items())
        rows = [_row(group, route, permit_holders(context, group)) for group, (route, _version) in found]
    Output(options).write(_MOVED, rows)
    if not rows:
        say(options, "No group was moved with `migrate switch`.")


def _row(group: str, route: object, holders: list[str]) -> Row:
    known = route if isinstance(route, GroupRoute) else None
    return {
        "group": group,
        "state": "unreadable" if known is None else str(known.state),
        "since_ms": None if known is None else known.since_ms,
        "holders": holders,
    }
