"""The versions that the gateway reports to clients: the broker and the gateway must both support a version.

Produce is offered only up to version 9, so the feature `transaction.version` must be 1. With 2, a producer would need
later versions of Produce to add partitions to its transaction.
"""

from __future__ import annotations

from typing import Any, Final

from ...kafka.wire import codec
from ...kafka.wire.error_codes import Code
from .offered_apis import OFFERED

_TRANSACTIONS: Final = "transaction.version"
_LAST_TRANSACTION_VERSION: Final = 1


def limit_versions(answer: Any) -> None:
    """Remove everything that is not offered from the answer of a broker to ApiVersions."""
    answer.api_keys = [each for each in answer.api_keys if _limited(each)]
    for feature in answer.finalized_features or ():
        if feature.name == _TRANSACTIONS:
            feature.max_version_level = min(feature.max_version_level, _LAST_TRANSACTION_VERSION)
            feature.min_version_level = min(feature.min_version_level, _LAST_TRANSACTION_VERSION)


def _limited(api: Any) -> bool:
    """Limit the versions of one kind of request. Return False if none is left."""
    found = OFFERED.get(api.api_key)
    if found is None:
        return False
    api.min_version = max(api.min_version, found.first)
    api.max_version = min(api.max_version, found.last)
    return bool(api.min_version <= api.max_version)


def unknown_version() -> Any:
    """Return the answer to ApiVersions in a version that is not offered. It must be encoded in version 0."""
    ours = OFFERED[codec.API_VERSIONS]
    known = codec.ApiVersionsResponse.ApiVersion(
        api_key=codec.API_VERSIONS, min_version=ours.first, max_version=ours.last
    )
    return codec.ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[known])


def layout(answer: Any, version: int) -> int:
    """Return the version in which an answer to ApiVersions is written. Errors have the layout of version 0."""
    return 0 if answer.error_code else version
