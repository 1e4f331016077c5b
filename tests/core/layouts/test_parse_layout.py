"""The text of layouts: what is accepted, and what the error says."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups.core.layouts.parse_layout import layout_of, parse_layout
from zkgroups.core.layouts.stored_number import Stored
from zkgroups.exceptions import InvalidOptionError

from .written import WRITERS

TEMPLATE = "/x/{group}/{topic}/{partition}"


@pytest.mark.parametrize(
    ("given", "text", "root"),
    [
        ("legacy", "legacy", "/consumers"),
        ("kafka-1.1.0", "kafka-1.1.0", "/consumers"),
        ("storm:/", "storm:/", "/"),
        ("storm:/a/b/", "storm:/a/b", "/a/b"),
        ("trident:/transactional", "trident:/transactional", "/transactional"),
        ("spark:/a --stored from", "spark:/a --stored from", "/a"),
        (TEMPLATE, TEMPLATE, "/x"),
        (f"{TEMPLATE} --stored next --value decimal", TEMPLATE, "/x"),
        (f"{TEMPLATE} --value json:at --stored last", f"{TEMPLATE} --stored last --value json:at", "/x"),
        (f"{TEMPLATE} --value regex:at --stored ([0-9]+)", f"{TEMPLATE} --value regex:at --stored ([0-9]+)", "/x"),
        ("/a b/{topic}_{partition}", "/a b/{topic}_{partition}", "/a b"),
    ],
)
def test_layouts_have_one_text(given: str, text: str, root: str) -> None:
    layout = parse_layout(given)
    assert (layout.text, layout.root) == (text, root)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "it must be legacy, kafka-1.1.0, storm:/PATH"),
        ("strom:/a", "or a path such as /x/{group}"),
        ("kafka-1.1.1", "it must be legacy"),
        ("storm", "it must be legacy"),
        ("storm:kafkastorm", "a path must begin with a slash"),
        ("storm:/a/{group}", "its path must not have {group}"),
        ("trident:/a//b", "has no characters"),
        ("storm:/a/../b", "is a relative path"),
        ("spark:/a", "--stored from or --stored until"),
        ("spark:/a --stored next", "--stored from or --stored until"),
        ("spark:/ --stored until", "it needs the path of a node"),
        ("spark:/a/{topic} --stored until", "its path must not have {topic}"),
        ("storm:/a --stored last", "the layout storm:/a always stores the next message"),
        ("legacy --value decimal", "only a path with fields has a format of values"),
        ("/x/{group}/{partition}", "the path needs {topic}"),
        ("/x/{group}/{topic}", "the path needs {partition}"),
        ("/{topic}/{partition}", "without {group}, it must begin with a name"),
        ("/x/{topic}/{topic}/{partition}", "each field may occur only once"),
        ("/x/{group}/{topic}{partition}", "two fields without a text between them"),
        ("/x/{group}.{topic}/{partition}", "has a group and a topic, so it does not say where one ends"),
        ("/x/{groups}/{topic}/{partition}", "{groups} is not a field"),
        ("/x/{topic/{partition}", "has a brace without its counterpart"),
        ("/x/{group}/{topic}/{partition}/{transaction}", "only trident has transactions"),
        (f"{TEMPLATE} --stored until", "its numbers are --stored next or --stored last"),
        (f"{TEMPLATE} --stored first", "it must be next, last, from or until"),
        (f"{TEMPLATE} --stored last --value decimal --stored last", "it has --stored twice"),
        ("/x/{group}/{topic}-{topic}/{partition}", "'{topic}-{topic}' has a field twice"),
        (f"{TEMPLATE} --stored last --stored last", "must not contain --stored"),
        (f"{TEMPLATE} --value regex:([0-9]+) --stored last --stored next", "it must not end with --stored"),
        (f"{TEMPLATE} --value int", "it must be decimal, json:FIELD or regex:EXPRESSION"),
        (f"{TEMPLATE} --value json:", "it must be decimal"),
        (f"{TEMPLATE} --value regex:(", "it is not an expression of RE2: missing )"),
        (f"{TEMPLATE} --value regex:(?=a)(.)", "it is not an expression of RE2: invalid perl operator"),
        (f"{TEMPLATE} --value regex:[0-9]+", "parentheses around the number"),
        (f"{TEMPLATE} --value regex:(a)([0-9]+)", "parentheses around the number, and no others"),
        (f"{TEMPLATE} --value regex:({'(a{100}){100}' * 3}){{100}}", "it is not an expression of RE2"),
    ],
)
def test_an_invalid_layout_is_refused_with_a_reason(given: str, message: str) -> None:
    with pytest.raises(InvalidOptionError) as error:
        parse_layout(given)
    assert message in str(error.value)


@given(
    st.text(max_size=40) | st.lists(st.sampled_from([*WRITERS, " --stored last", " --value ", "{x}", "/"])).map("".join)
)
@example(f"{TEMPLATE} --value regex:([0-9]+) --stored until --stored last")
def test_any_text_is_a_layout_or_refused(text: str) -> None:
    try:
        layout = parse_layout(text)
    except InvalidOptionError:
        return
    assert parse_layout(layout.text) == layout


def test_without_a_group_in_the_path_the_last_name_of_the_root_is_the_group() -> None:
    assert parse_layout("spark:/jobs/orders --stored until").own_group == "orders"
    assert parse_layout("/jobs/offsets/{topic}/{partition}").own_group == "offsets"
    assert parse_layout("/jobs/{group}/{topic}/{partition}").own_group is None


def test_the_parts_of_a_layout_may_be_given_one_by_one() -> None:
    layout = layout_of(TEMPLATE, stored="last", value="json:at")
    assert (layout.location, layout.stored) == (TEMPLATE, Stored.LAST)
    assert layout == parse_layout(f"{TEMPLATE} --stored last --value json:at")
