"""Calls of Kafka's own tool that set the offsets of groups from files, as a script for any shell."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Final

_LONGEST: Final = 100
_PLAIN: Final = re.compile(rf"(?!.*-[0-9a-f]{{12}}$)[a-z0-9_][a-z0-9._-]{{0,{_LONGEST - 1}}}")

_HEAD: Final = """\
#!/bin/sh
# Sets the offsets of consumer groups by Kafka's own tool, one call for each. What it would do is only shown:
#
#     sh {name}
#     sh {name} --execute
#
# KAFKA_CONSUMER_GROUPS names the tool, BOOTSTRAP_SERVER the brokers, COMMAND_CONFIG a file for TLS and logins.
# A group with live members is refused by the tool; members in ZooKeeper it does not see.

planned={brokers}
tool=${{KAFKA_CONSUMER_GROUPS:-kafka-consumer-groups.sh}}
brokers=${{BOOTSTRAP_SERVER:-$planned}}
mode=${{1:---dry-run}}
case $mode in --dry-run | --execute) ;; *) echo "usage: $0 [--dry-run | --execute]" >&2; exit 2 ;; esac
[ -n "$brokers" ] || {{ echo "$0: BOOTSTRAP_SERVER must name the brokers" >&2; exit 2; }}
# Java reads names by the locale.
case ${{LC_ALL:-${{LC_CTYPE:-${{LANG:-}}}}}} in *[Uu][Tt][Ff]*8*) ;; *) LC_ALL=C.UTF-8; export LC_ALL ;; esac
folder=$(dirname -- "$0")
failed=0

reset() {{
    "$tool" --bootstrap-server "$brokers" ${{COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"}} \\
        --reset-offsets --group "$1" --from-file "$folder/$2" "$mode" </dev/null || failed=1
}}

"""


def file_name(group: str) -> str:
    """What the file of a group is called: a name for every file system, different for different groups.

    >>> file_name("billing"), file_name("Billing: Süd")
    ('billing.csv', 'Billing_S_d-3d9107ed0504.csv')
    """
    if _PLAIN.fullmatch(group):
        return f"{group}.csv"
    readable = re.sub("[^A-Za-z0-9]+", "_", group)[:_LONGEST]
    return f"{readable}-{hashlib.sha256(group.encode()).hexdigest()[:12]}.csv"


def script(name: str, groups: Iterable[str], brokers: str | None) -> Iterator[str]:
    """The text of the script of that name, bit by bit: for each group a call with the file that lies beside it."""
    yield _HEAD.format(name=name, brokers=shlex.quote(brokers or ""))
    for group in groups:
        yield f"reset {shlex.quote(group)} {shlex.quote(file_name(group))}\n"
    yield "\nexit $failed\n"
