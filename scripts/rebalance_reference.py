"""Write docs/rebalance.md, how a member of a group rebalances, from the code that does it: `make docs`.

    python scripts/rebalance_reference.py [--check]

With --check nothing is written, and the exit code says whether the file is as it should be.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from zkgroups.core.rebalance import shared_plan, state_machine
from zkgroups.core.rebalance.state_machine import TRANSITIONS, State

FILE = Path(__file__).parent.parent / "docs" / "rebalance.md"

HEAD = """# How a member rebalances

*Written by `make docs` from [rebalance.py](../zkgroups/core/rebalance.py) and
[agreement.py](../zkgroups/core/agreement.py), which do it.*
"""

INTRODUCTION = """## What happens in which state

A row is what has happened, a column the state in which the member hears of it. The words name the method that answers;
where there are none, nothing changes.
"""


def reference() -> str:
    """The whole file."""
    blocks = [HEAD, "## The plan\n", inspect.cleandoc(shared_plan.__doc__ or "") + "\n"]
    blocks += ["## The member\n", _states(inspect.cleandoc(state_machine.__doc__ or "")) + "\n"]
    blocks += ["### What it hears\n", _meanings(_events()), "### What it asks for\n", _meanings(_actions())]
    return "\n".join([*blocks, INTRODUCTION, _table()]).rstrip() + "\n"


def _states(text: str) -> str:
    """The states, which are indented in the text, as the block that they are."""
    return (
        text.replace("    Out ", "```text\nOut ", 1).replace("\n    ", "\n").replace("the end\n", "the end\n```\n", 1)
    )


def _events() -> list[type]:
    found = [state_machine.Open, *(event for _state, event in TRANSITIONS)]
    return sorted(set(found), key=lambda kind: inspect.getsourcelines(kind)[1])


def _actions() -> list[type]:
    names = ("Register", "Look", "Claim", "AwaitFree", "Linger", "Begin", "Stop", "Release", "Drop", "Deregister")
    return [getattr(state_machine, name) for name in names]


def _meanings(kinds: list[type]) -> str:
    lines = [f"- **{kind.__name__}**: {' '.join(inspect.cleandoc(kind.__doc__ or '').split())}" for kind in kinds]
    return "\n".join(lines) + "\n"


def _table() -> str:
    states = [state for state in State if state is not State.CLOSED]
    rows = [("", *states), tuple("---" for _ in range(len(states) + 1))]
    for event in _events():
        rows.append((f"**{event.__name__}**", *(_answer(state, event) for state in states)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _answer(state: State, event: type) -> str:
    transition = TRANSITIONS.get((state, event))
    return "" if transition is None else transition.__name__.strip("_").replace("_", " ")


def main() -> None:
    """Write the file, or check it."""
    text = reference()
    if "--check" in sys.argv[1:]:
        sys.exit(FILE.read_text() != text)
    FILE.write_text(text)


if __name__ == "__main__":
    main()
