"""`zkgroups serve`: metrics and a live page of all groups, from sweeps in the background."""

from __future__ import annotations

from importlib.util import find_spec

from ..exceptions import MissingDependencyError


def check_installed() -> None:
    """Raise MissingDependencyError if the packages of the server are missing."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise MissingDependencyError(
            "this command needs starlette and uvicorn; from the checkout: pip install '.[serve]'"
        )
