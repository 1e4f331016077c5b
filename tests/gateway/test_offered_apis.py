"""The offer to clients: requests, their versions, and features."""

from __future__ import annotations

import pytest

from zkgroups.gateway.protocol.api_versions import layout, limit_versions, unknown_version
from zkgroups.gateway.protocol.offered_apis import FETCH, OFFERED, PRODUCE, Handling, offered
from zkgroups.gateway.protocol.permissions import NEEDED, WRITES
from zkgroups.kafka.wire import codec

NEXT_GENERATION = [68, 69, *range(76, 81), *range(88, 93)]
OF_BROKERS = [4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 70, 73, 81, 82]


def reported(*ranges: tuple[int, int, int], transactions: int | None = None) -> object:
    api, feature = codec.ApiVersionsResponse.ApiVersion, codec.ApiVersionsResponse.FinalizedFeatureKey
    found = [
        feature(name=name, max_version_level=level, min_version_level=level)
        for name, level in (("metadata.version", 25), ("transaction.version", transactions))
        if level is not None
    ]
    keys = [api(api_key=key, min_version=first, max_version=last) for key, first, last in ranges]
    return codec.ApiVersionsResponse(error_code=0, api_keys=keys, finalized_features=found)


def limited(*ranges: tuple[int, int, int]) -> dict[int, tuple[int, int]]:
    answer = reported(*ranges)
    limit_versions(answer)
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@pytest.mark.parametrize("key", [*NEXT_GENERATION, *OF_BROKERS, 25, 28, 38, 71, 72, 1000, -1])
def test_requests_that_are_not_understood_are_hidden(key: int) -> None:
    assert offered(key, 0) is None
    assert limited((key, 0, 3)) == {}


def test_versions_with_addresses_of_new_leaders_are_hidden() -> None:
    assert limited((PRODUCE, 0, 13), (FETCH, 4, 18), (55, 0, 2)) == {PRODUCE: (0, 9), FETCH: (4, 15), 55: (0, 1)}


def test_a_request_of_which_the_broker_has_only_newer_versions_is_hidden() -> None:
    assert limited((FETCH, 16, 18), (3, 0, 9)) == {3: (0, 9)}


def test_versions_that_the_broker_does_not_have_are_not_added() -> None:
    assert limited((codec.JOIN_GROUP, 0, 2)) == {codec.JOIN_GROUP: (0, 2)}


@pytest.mark.parametrize(("level", "left"), [(2, 1), (1, 1), (0, 0)])
def test_transactions_that_need_later_versions_of_produce_are_hidden(level: int, left: int) -> None:
    answer = reported(transactions=level)
    limit_versions(answer)
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
    assert levels == {"metadata.version": (25, 25), "transaction.version": (left, left)}


def test_an_answer_with_an_error_is_written_in_version_0() -> None:
    assert layout(unknown_version(), 4) == 0
    assert layout(codec.ApiVersionsResponse(error_code=0, api_keys=[]), 4) == 4
    assert [(each.api_key, each.max_version) for each in unknown_version().api_keys] == [(codec.API_VERSIONS, 4)]


def test_every_request_that_is_read_can_be_decoded_in_every_version() -> None:
    read = {key: each for key, each in OFFERED.items() if each.handling in (Handling.GROUPS, Handling.CHANGE_ANSWER)}
    assert read.keys() == codec.SERVED.keys()
    for key, each in read.items():
        assert (codec.SERVED[key].first, codec.SERVED[key].last) == (each.first, each.last)


def test_every_request_about_groups_needs_a_permission() -> None:
    assert {key for key, each in OFFERED.items() if each.handling is Handling.GROUPS} == NEEDED.keys()
    assert NEEDED.keys() >= WRITES
