"""Guess which layouts a tree has, from some of its nodes.

A node that looks like an offset of a known system names its layout. Other nodes with a number become a path with
fields. Two paths that differ in one name belong to two groups, so that name becomes `{group}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...input_errors import InvalidOptionError
from ..znodes.paths import CONSUMERS, Part
from . import legacy, spark, storm, template, trident
from .layout import Layout, Stored
from .template import layout_of


class SampledNode(NamedTuple):
    """A node of the tree."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class DetectedLayout:
    """A layout that some nodes have.

    - `layout`: the layout, for reading with this connection.
    - `name`: the layout as the options have it.
    - `options`: the options to give, after `-z` with the chroot.
    - `chroot`: the chroot below that of the connection, for groups of Kafka.
    - `example`: a node that has it.
    - `note`: what to check, or to choose.
    """

    layout: Layout
    name: str
    options: tuple[str, ...]
    example: SampledNode
    chroot: str = ""
    note: str = ""


_CHOOSE: Final = "choose the end of a batch that the job stores: from or until"
_CHECK: Final = "a guess: check the fields of the path, and whether the number is the next message or the last one"


class _Guess(NamedTuple):
    """A layout before its groups are known: a kind with a path, and a format of values."""

    kind: str
    path: str
    value: str = ""


def detect(nodes: Iterable[SampledNode], topics: Collection[str]) -> list[DetectedLayout]:
    """Return the layouts of these nodes, each once. `topics` are the names of Kafka's topics, as far as known."""
    guesses: dict[_Guess, SampledNode] = {}
    for node in nodes:
        guess = _guess(node.path.strip("/").split("/"), node.data, topics)
        if guess is not None:
            guesses.setdefault(guess, node)
    systems = tuple(f"{guess.path}/" for guess in guesses if guess.kind in ("storm", "trident") and guess.path != "/")
    for guess, node in list(guesses.items()):
        if guess.kind == "template" and node.path.startswith(systems):
            del guesses[guess]  # a node that belongs to them, but holds no offset
    found = []
    for guess, node in sorted(_with_groups(guesses).items()):
        with suppress(InvalidOptionError):  # a path that does not say which group it belongs to
            found.append(_detected(guess, node))
    return found


def _guess(names: list[str], data: bytes, topics: Collection[str]) -> _Guess | None:
    if (of_kafka := legacy.recognize(names)) is not None:
        chroot, directory = of_kafka
        is_known = directory in (Part.OFFSETS, legacy.DIRECTORY)
        return _Guess(directory, chroot) if is_known else None
    if legacy.is_other_node(names):
        return None
    if (root := trident.recognize(names, data)) is not None:
        return _Guess("trident", root)
    if (root := storm.recognize(names, data)) is not None:
        return _Guess("storm", root)
    if (root := spark.recognize(names, data)) is not None and root != "/":
        return _Guess("spark", root)
    found = template.recognize(names, data, topics)
    return None if found is None else _Guess("template", *found)


def _with_groups(guesses: Mapping[_Guess, SampledNode]) -> dict[_Guess, SampledNode]:
    """Replace paths that differ in one name by a path with `{group}` in its place."""
    counts = Counter(each for guess in guesses for each in _with_group(guess))
    found: dict[_Guess, SampledNode] = {}
    for guess, node in guesses.items():
        likeliest = max(_with_group(guess), key=counts.__getitem__, default=guess)
        found.setdefault(likeliest if counts[likeliest] > 1 else guess, node)
    return found


def _with_group(guess: _Guess) -> list[_Guess]:
    """Return the guess with `{group}` in the place of each of its names, one at a time."""
    if guess.kind not in ("spark", "template"):
        return []
    names = guess.path.split("/")
    places = [place for place, name in enumerate(names) if name and "{" not in name]
    return [guess._replace(path="/".join([*names[:at], "{group}", *names[at + 1 :]])) for at in places]


def _detected(guess: _Guess, node: SampledNode) -> DetectedLayout:
    match guess.kind:
        case Part.OFFSETS | legacy.DIRECTORY:
            known = legacy.LEGACY if guess.kind == Part.OFFSETS else legacy.KAFKA_1_1_0
            path = f"{guess.path}{CONSUMERS}/{{group}}/{guess.kind}/{{topic}}/{{partition}}"
            layout = layout_of(path) if guess.path else known
            options = () if known == legacy.LEGACY else ("--layout", known.text)
            return DetectedLayout(layout, known.text, options, node, guess.path)
        case "spark":
            layout = layout_of(f"spark:{guess.path}", stored=Stored.UNTIL)
            words = ("--layout", layout.location, "--stored", "from|until")
            return DetectedLayout(layout, layout.location, words, node, note=_CHOOSE)
        case "template":
            layout = layout_of(guess.path, value=guess.value)
            value = () if guess.value == "decimal" else ("--value", guess.value)
            return DetectedLayout(layout, layout.location, ("--layout", layout.location, *value), node, note=_CHECK)
    layout = layout_of(f"{guess.kind}:{guess.path}")
    return DetectedLayout(layout, layout.text, ("--layout", layout.text), node)
