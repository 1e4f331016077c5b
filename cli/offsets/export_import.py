"""`zkgroups offsets export` and `import`: offsets as a file, for ourselves and for other tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition
from zkgroups.core.offsets.file_formats import Form, Record, read, record, write
from zkgroups.core.offsets.reset import Found, ToEach, only_forward, plan
from zkgroups.exceptions import GroupNotFoundError, MalformedNodeError, NoPermissionError

from ..shared.arguments import (
    Partitions,
    checked_groups,
    chosen_groups,
    matching_option,
    maybe_groups_argument,
    topics_option,
)
from ..shared.command_classes import Command
from ..shared.completion import complete_groups
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.input_files import FilePath, read_text, source_name, write_lines
from ..shared.messages import say
from ..shared.options import Options
from .changes import Leave, Plan, carry_out, leave_options
from .committed_offsets import place, read_chosen, read_committed
from .from_parquet import FromAudit, FromSnapshot, Selection, from_snapshot, snapshot_options

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

Offsets: TypeAlias = dict[str, dict[TopicPartition, int | None]]
"""The offsets of a file, for each group."""

_FORMS: Final = click.Choice([form.value for form in Form])


def _form(_ctx: click.Context, _param: click.Parameter, name: str | None) -> Form | None:
    return None if name is None else Form(name)


@click.command(cls=Command)
@maybe_groups_argument
@matching_option
@topics_option
@click.option(
    "--format", "form", type=_FORMS, callback=_form, default=Form.JSON.value, show_default=True, help="See above."
)
@snapshot_options("Read a snapshot instead of ZooKeeper.")
@click.pass_obj
def export(
    options: Options,
    /,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: Partitions | None,
    form: Form,
    **given: Any,
) -> None:
    """Write the offsets of groups to stdout, for `offsets import` and for other tools.

    json, jsonl and csv have group, topic, partition and offset. In csv, a name that begins with =, +, - or @ gets
    a leading apostrophe, or a spreadsheet would take it for a formula; `offsets import` removes it. kafka-csv is what
    kafka-consumer-groups.sh --reset-offsets --from-file reads. path has lines like
    /consumers/billing/offsets/orders/0:5, as Kafka's ExportZkOffsets wrote. spark is the option startingOffsets of
    Spark's Kafka source, and has one group only.

    Nodes that hold no valid offset are left out and reported; the exit code is then 9. --from-snapshot writes the
    offsets of a snapshot, without a connection to ZooKeeper: of the newest one, or of the one that --at chooses.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets export billing
      zkgroups -z zk1:2181/kafka offsets export --groups '.*' --format kafka-csv
      zkgroups -z zk1:2181/kafka offsets export billing --format spark
      zkgroups offsets export billing --from-snapshot /data/groups --at 2026-01-31T12:00 --format spark
    """
    selection, kept = Selection(names, matching, topics), from_snapshot(given)
    if not selection.says_groups:
        raise _usage("say which groups: GROUP..., or --groups REGEX")
    tally = Tally()
    if kept is not None:
        _export_kept(options, kept, selection, form, tally)
    else:
        with connected(options) as registry:
            groups = chosen_groups(registry, names, matching)
            _check_one_group(form, groups)
            write_lines(write(_records(options, registry, groups, topics, tally), form))
    tally.finish()


def _export_kept(options: Options, kept: FromSnapshot, selection: Selection, form: Form, tally: Tally) -> None:
    with kept.records(options, selection, tally) as records:
        if form is Form.SPARK:  # which is written when all are there
            records = iter(found := list(records))
            _check_one_group(form, {*selection.names, *(str(each.group) for each in found)})
        write_lines(write(_written(records, tally), form))


def _written(records: Iterable[Record], tally: Tally) -> Iterator[Record]:
    """Some is done with the first of them."""
    written = False
    for each in records:
        if not written:
            with tally.attempt():
                written = True
        yield each


def _check_one_group(form: Form, groups: Collection[str]) -> None:
    if form is Form.SPARK and len(groups) != 1:
        raise _usage(f"the format spark has the offsets of one group, and these are {len(groups)}")


def _records(
    options: Options, registry: Registry, groups: Collection[str], topics: Partitions | None, tally: Tally
) -> Iterator[Record]:
    """What is an offset, as it comes; what is none is an error and stops nothing."""
    empty = dict.fromkeys(groups)
    for found in read_chosen(options, registry, groups, topics):
        if isinstance(found, CommittedOffset):
            empty.pop(found.group, None)
            with tally.attempt():
                yield record(found)
        else:
            empty.pop(place(found).group, None)
            tally.failed(
                NoPermissionError(found.path) if isinstance(found, ForbiddenNode) else MalformedNodeError(found)
            )
    for name in empty:
        with tally.attempt():
            if not registry.group(name).exists():
                raise GroupNotFoundError(name)


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


# Import


@click.command("import", cls=Command)
@click.argument("file", metavar="[FILE]", type=FilePath(path_type=Path), required=False)
@click.option("--format", "form", type=_FORMS, callback=_form, help="As in `offsets export`; recognised by default.")
@click.option(
    "--group",
    "names",
    metavar="NAME",
    multiple=True,
    callback=checked_groups,
    shell_complete=complete_groups,
    help="Of a snapshot, only this group, as often as needed; of a file that does not say it, the group that it is of.",
)
@matching_option
@topics_option
@snapshot_options("Import the offsets of a snapshot.")
@click.option("--backward", is_flag=True, help="Let offsets go back, too.")
@leave_options
@click.pass_obj
def import_offsets(
    options: Options,
    /,
    file: Path | None,
    form: Form | None,
    names: tuple[str, ...],
    matching: re.Pattern[str] | None,
    topics: Partitions | None,
    backward: bool,
    execute: bool,
    force: bool,
    undo_file: Path | None,
    **given: Any,
) -> None:
    """Set offsets to those in FILE, or stdin, while the groups have no instances; groups that are missing are made.

    Only what would be done is shown, until --execute is given; and then only what is still as it was shown is written.
    An offset that would go back stays as it is, unless --backward is given. A file with a broken line is not imported.

    --from-snapshot puts back what a snapshot has: of all groups, or of those chosen by --group, --groups and --topic.
    What was no offset in it is left and said; the exit code is then 9. What it does not have stays as it is.

    \b
    Example:
      zkgroups -z zk1:2181/kafka offsets import -
      zkgroups -z zk1:2181/kafka offsets import - --format kafka-csv --group invoices --backward --execute
      zkgroups -z zk1:2181/kafka offsets import --from-snapshot /data/groups --at 2026-01-31T12:00 --group invoices
    """
    selection, kept, tally = Selection(names, matching, topics), from_snapshot(given), Tally()
    if kept is None:
        source = source_name(file or _STDIN)
        wanted = _of_file(file or _STDIN, form, selection)
    elif file is not None or form is not None:
        raise _usage("--from-snapshot DEST takes the place of FILE and --format")
    else:
        source = "the snapshot"
        wanted = offsets_kept(options, kept, selection, tally, writes=execute)
    with connected(options, writes=execute, begins=True) as registry:
        committed = read_committed(options, registry, wanted)
        for each in committed.values():
            for node in each.others:
                if isinstance(node, ForbiddenNode):
                    tally.failed(NoPermissionError(node.path))
        plans = [_plan(name, committed[name].offsets, offsets, backward=backward) for name, offsets in wanted.items()]
        if not wanted:
            say(options, f"{source} has no offsets.")
        carry_out(options, registry, plans, Leave(execute, force, undo_file), tally)


_STDIN: Final = Path("-")


def _of_file(file: Path, form: Form | None, selection: Selection) -> Offsets:
    if selection.matching is not None or selection.topics is not None:
        raise _usage("--groups and --topic choose of a snapshot; a file is imported as it is")
    if len(selection.names) > 1:
        raise _usage("a file that does not say of which group it is can be of one only")
    return by_group(read(read_text(file), form, source=source_name(file)), next(iter(selection.names), None))


def offsets_kept(
    options: Options, kept: FromSnapshot | FromAudit, selection: Selection, tally: Tally, *, writes: bool
) -> Offsets:
    """The offsets of a snapshot or an audit, for each group, to be put back."""
    with connected(options, writes=writes, begins=True):
        pass  # what is wrong there is known before Spark is started, which takes seconds
    with kept.records(options, selection, tally) as records:
        return by_group(records, None)


def by_group(records: Iterable[Record], group: str | None) -> Offsets:
    """The offsets of each group in a file; `group` is for a file that names none."""
    wanted: Offsets = {}
    for each in records:
        if each.group is None and group is None:
            raise _usage("the file does not say of which group it is: --group NAME")
        if each.group is not None and group is not None:
            raise _usage("the file says of which groups it is, so --group has no meaning")
        wanted.setdefault(each.group or str(group), {})[each.at] = each.offset
    return wanted


def _plan(
    group: str, found: Mapping[TopicPartition, Found], offsets: Mapping[TopicPartition, int | None], *, backward: bool
) -> Plan:
    """Where there was nothing and there is nothing, there is nothing to do."""
    current = {at: found.get(at) for at, offset in offsets.items() if offset is not None or at in found}
    moves = plan(current, None, ToEach(offsets))
    return Plan(group, moves if backward else only_forward(moves))
