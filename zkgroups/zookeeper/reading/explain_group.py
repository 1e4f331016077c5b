"""Read the nodes of a group that explain where its partitions are."""

from __future__ import annotations

from collections.abc import Collection

from ...core.rebalance.explanation import GroupExplanation, explain
from ...core.rebalance.shared_plan import SharedPlan, decode_plan
from ...core.znodes.paths import GroupPaths
from ...exceptions import GroupNotFoundError, NoPermissionError, NotRegisteredError
from ..registry import Registry
from ..session.registry_context import context_of
from . import group_reader


def explain_group(
    registry: Registry, group: str, *, without: Collection[str] = (), foreign: str | None = None
) -> GroupExplanation:
    """Explain a group. Raise an error for a missing group, a forbidden node, and an unknown instance in `without`."""
    [view] = group_reader.read_groups(context_of(registry), [group], with_offsets=False)
    if not view.exists:
        raise GroupNotFoundError(group)
    if view.hidden:
        raise NoPermissionError(view.hidden[0].path)  # a plan without it would be wrong
    registered = {each.id for each in view.instances}
    for id in without:
        if id not in registered:
            raise NotRegisteredError(group, id)
    plan, ids_zxid = _written_plan(registry, GroupPaths(group))
    return explain(view, written=plan, ids_zxid=ids_zxid, without=without, foreign=foreign)


def _written_plan(registry: Registry, paths: GroupPaths) -> tuple[SharedPlan | None, int]:
    """Return the shared plan, and when an instance last registered or left: the plan is only for these instances."""
    context, client = context_of(registry), registry.client
    node = context.session.get(paths.owners, deadline=context.deadline())
    stat = context.session.call(lambda: client.exists_async(paths.ids), paths.ids, context.deadline())
    return None if node is None else decode_plan(node.data), 0 if stat is None else int(stat.pzxid)
