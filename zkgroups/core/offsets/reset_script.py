"""A shell script that sets the offsets of groups from files, with Kafka's own tool."""

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
# Sets the offsets of consumer groups with Kafka's own tool, one call per group. The first line is a dry run:
#
#     sh {name}
#     sh {name} --execute
#
# Environment: KAFKA_CONSUMER_GROUPS is the tool, BOOTSTRAP_SERVER the brokers, COMMAND_CONFIG a file for TLS and SASL.
# The tool refuses a group with live members in Kafka, but it does not see members in ZooKeeper.

planned={brokers}
tool=${{KAFKA_CONSUMER_GROUPS:-kafka-consumer-groups.sh}}
brokers=${{BOOTSTRAP_SERVER:-$planned}}
mode=${{1:---dry-run}}
case $mode in --dry-run | --execute) ;; *) echo "usage: $0 [--dry-run | --execute]" >&2; exit 2 ;; esac
[ -n "$brokers" ] || {{ echo "$0: BOOTSTRAP_SERVER must name the brokers" >&2; exit 2; }}
# Java decodes group names with the encoding of the locale.
case ${{LC_ALL:-${{LC_CTYPE:-${{LANG:-}}}}}} in *[Uu][Tt][Ff]*8*) ;; *) LC_ALL=C.UTF-8; export LC_ALL ;; esac
folder=$(dirname -- "$0")
failed=0

reset() {{
    "$tool" --bootstrap-server "$brokers" ${{COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"}} \\
        --reset-offsets --group "$1" --from-file "$folder/$2" "$mode" </dev/null || failed=1
}}

"""


def group_file_name(group: str) -> str:
    """Return the file name for a group: valid on every file system, and unique for each group.

    >>> group_file_name("billing"), group_file_name("Billing: Süd")
    ('billing.csv', 'Billing_S_d-3d9107ed0504.csv')
    """
    if _PLAIN.fullmatch(group):
        return f"{group}.csv"
    readable = re.sub("[^A-Za-z0-9]+", "_", group)[:_LONGEST]
    return f"{readable}-{hashlib.sha256(group.encode()).hexdigest()[:12]}.csv"


def reset_script(name: str, groups: Iterable[str], brokers: str | None) -> Iterator[str]:
    """Yield the text of the script. It has one call per group, which reads the group's file in the same folder."""
    yield _HEAD.format(name=name, brokers=shlex.quote(brokers or ""))
    for group in groups:
        yield f"reset {shlex.quote(group)} {shlex.quote(group_file_name(group))}\n"
    yield "\nexit $failed\n"
