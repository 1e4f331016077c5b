"""Tell the server what happened before its start, from snapshots or from an audit."""

from __future__ import annotations

from ...exceptions import MissingDependencyError
from .cluster_state import ClusterState


def prime(state: ClusterState, destination: str) -> int:
    """Add the last commits in a folder to the past of all groups. Return their number."""
    try:
        from ...snapshots.recent_commits import recent_commits
    except ModuleNotFoundError as error:
        raise MissingDependencyError("--history needs pyarrow: pip install 'zkgroups[snapshots]'") from error
    count = 0
    for sweep in recent_commits(destination):
        for commit in sweep.commits:
            state.add_past(commit.group, commit.at, commit.as_read(), sweep.ms)
            count += 1
    return count
