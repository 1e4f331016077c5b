"""`zkgroups consume`: write the messages of a group to stdout, or to the input of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click
from click.core import ParameterSource

from zkgroups import Registry
from zkgroups.core.znodes.topic_partition import check_topic
from zkgroups.core.znodes.values import Broker
from zkgroups.deadline import Deadline
from zkgroups.exceptions import CommittedOutOfRangeError, NotFoundError

from ..child.child_process import Child, CommandResult, WithCommand, command_of, environment
from ..shared.arguments import complete_topics, group_argument, instance_option
from ..shared.connect import connected, missing_brokers
from ..shared.messages import say, say_in_time
from ..shared.options import Format, Options
from ..shared.parameter_types import Duration, usage_error
from ..shared.signals import raise_recorded, recorded_signals
from .sinks import ByteSink, Copying, Formatter, for_terminal, json_line, parse_format, raw_line

if TYPE_CHECKING:
    from zkgroups import Consumer, MemberEvent
    from zkgroups.messages.broker_offsets import OffsetsIn, SideName


# The settings of the client that fetches, from the global options.


def kafka_settings(options: Options, registry: Registry) -> dict[str, Any]:
    """Return the settings. Without -b, take the brokers that have registered in ZooKeeper, as old consumers do."""
    addresses = options.bootstrap_server or ",".join(_registered(registry))
    if not addresses:
        raise missing_brokers("consume")
    settings: dict[str, Any] = {"bootstrap.servers": addresses}
    if options.command_config is not None:
        from zkgroups.kafka import read_properties
        from zkgroups.kafka.client_settings import librdkafka_settings

        settings |= librdkafka_settings(read_properties(options.command_config))
    return settings


def _registered(registry: Registry) -> list[str]:
    brokers = [found for found in registry.brokers() if isinstance(found, Broker)]
    return [f"{broker.host}:{broker.port}" for broker in brokers if broker.host and broker.port]


# A command whose input is a pipe of messages. `cli/child` supervises it.


_PACE: Final = 0.1
"""In seconds: how often to look for a signal while the command is running."""


class CommandInput:
    """Runs a command in a `with` block, which must end with `wait`. After an error the command is stopped.

    `recorded` has the signals that were received. `grace` is the time for the command to end after a signal, and again
    the time between SIGTERM and SIGKILL.
    """

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], *, grace: float, recorded: Sequence[int]
    ) -> None:
        self._reader, self.descriptor = os.pipe()
        self._child = Child(command, environment(variables), grace=grace, stdin=self._reader)
        self._grace = grace
        self._recorded = recorded
        self._open = True

    @property
    def ended(self) -> bool:
        """True if the command has ended. Raise an error if it could not be started."""
        return self._child.result() is not None

    def wait(self) -> CommandResult:
        """Close the pipe, and wait until the command has ended. After a signal, stop it when the grace time is over."""
        self._close()
        deadline: Deadline | None = None
        while (result := self._child.result(_PACE)) is None:
            if self._recorded and deadline is None:
                deadline = Deadline(self._grace)
            if deadline is not None and deadline.passed:
                self._child.stop(self._recorded[0])
                return self._child.wait()
        return result

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.descriptor)

    def __enter__(self) -> Self:
        try:
            self._child.__enter__()
        finally:
            os.close(self._reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._child.__exit__(kind, error, trace)


_EXPLAINED: Final = (
    "back",
    "conflict",
    "differ",
    "failed",
    "lost",
    "malformed",
    "missing",
    "reset",
    "stuck",
    "waiting",
)
"""The kinds of events that explain why messages do not come, or come again."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What to consume, and how."""

    group: str
    topics: tuple[str, ...]
    formatter: Formatter
    begin: str | None
    most: int | None
    to_end: bool
    commits: bool
    offsets: OffsetsIn
    truth: SideName | None
    id: str | None
    foreign_assignor: str


def _checked_topics(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(check_topic, names)))


def _format(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Formatter | None:
    try:
        return None if text is None else parse_format(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=WithCommand)
@group_argument
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, callback=_checked_topics, shell_complete=complete_topics
)
@click.option(
    "--format", "-f", "formatter", metavar="FORMAT", callback=_format, help="How to write a message: see below."
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["earliest", "latest"]),
    help="Where to begin a partition if its committed offset is missing or outside of the log. By default, missing "
    "means earliest, and a partition whose offset is outside of the log is not read.",
)
@click.option("--max-messages", "most", type=click.IntRange(min=1), metavar="N", help="End after this many messages.")
@click.option("--exit-at-end", "to_end", is_flag=True, help="End when this member has read its partitions to the end.")
@click.option("--no-commit", is_flag=True, help="Write no offsets: the messages will be read again.")
@click.option(
    "--offsets",
    type=click.Choice(["zookeeper", "kafka", "both"]),
    default="zookeeper",
    show_default=True,
    help="Where offsets are read and committed. Choose what the other members of the group do.",
)
@click.option(
    "--truth",
    type=click.Choice(["zookeeper", "kafka"]),
    help="With --offsets both: the side that is read. The other side gets a copy.",
)
@instance_option("--as", "id", help="The instance id to register; by default a new one of the form host:uuid.")
@click.option(
    "--foreign-assignor",
    type=click.Choice(["range", "roundrobin"]),
    default="range",
    show_default=True,
    help="The strategy of the members that other clients run in this group. ZooKeeper does not show it.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="5s",
    show_default=True,
    help="After a signal: the time until COMMAND gets SIGTERM, and then until SIGKILL.",
)
@click.pass_context
def consume(
    ctx: click.Context,
    group: str,
    topics: tuple[str, ...],
    formatter: Formatter | None,
    begin: str | None,
    most: int | None,
    to_end: bool,
    no_commit: bool,
    offsets: OffsetsIn,
    truth: SideName | None,
    id: str | None,
    foreign_assignor: str,
    grace: float,
) -> None:
    """Join a group, and write the messages of its topics to stdout, or to the input of COMMAND.

    The command is a member like any other. It shares the partitions with the other members, and reads only its own. It
    goes on until Ctrl-C. It needs the extra zkgroups[consumer]. Without -b, it asks the brokers that are registered in
    ZooKeeper.

    By default, each value is written as it is, followed by a line break. With -o jsonl, each message is a JSON object
    on one line. Keys, values and headers that are not UTF-8 are objects such as {"base64": "/w=="}. A FORMAT has these
    parts, as in kcat, and no line break of its own:

    \b
      %s %S  the value, and its length in bytes; -1 if there is none
      %k %K  the key, and its length in bytes; -1 if there is none
      %t %p  the topic, and the partition
      %o %T  the offset, and the time in milliseconds; -1 if there is none
      %h     the headers: name=value,name=value
      %R     the length of the value as four bytes, big endian
      %%     a percent sign
      \\n \\r \\t \\0 \\\\ \\xNN

    On a terminal, invisible characters are escaped.

    A partition that cannot be read does not stop the others. The command reports it, and tries again. With
    --exit-at-end, the others are read to the end, and then the error ends the command.

    Some groups keep their offsets on the brokers although their members are in ZooKeeper, for example Scala consumers
    with offsets.storage=kafka, and pykafka. With dual.commit.enabled, Scala consumers write both sides. Give --offsets
    for such groups. If both sides differ, the command reports both numbers.

    Delivery is at least once. An offset is committed only after all messages before it were written to stdout and
    flushed, every 5 s and at the end. After a crash, the messages since the last commit are written again. After a
    signal or a rebalance, no message is written again, even if the reader is slow. The exception is a message longer
    than 4 KiB of which the reader has taken only a part; in a rebalance, a few messages right before it, too.

    With COMMAND, messages are written to its input. A committed message was written to the pipe. That does not mean
    that COMMAND has processed it, or even read it: if COMMAND fails, up to a pipe of messages (64 KiB on Linux) may be
    committed and unread. To commit only what is processed, use zkgroups.Consumer in a Python program. COMMAND finds the
    group in ZKGROUPS_GROUP and the topics in ZKGROUPS_TOPICS.

    At the end, the partitions are released, the input of COMMAND is closed, and zkgroups waits for its end. If COMMAND
    ends first, zkgroups ends, too. The exit code is that of COMMAND, or 128 + n for signal n. After Ctrl-C or SIGTERM,
    COMMAND has the grace time to end by itself, and the exit code is 130 or 143. When COMMAND ends, all processes that
    it has started are stopped. If zkgroups is killed, COMMAND is stopped, too.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 consume archive orders --exit-at-end -o jsonl
      zkgroups -z zk1:2181/kafka -b kafka1:9092 consume archive orders -f '%t/%p %o %s\\n' --exit-at-end --no-commit
      zkgroups -z zk1:2181/kafka -b kafka1:9092 consume archive orders --exit-at-end -- sh -c 'gzip > orders.gz'
    """
    options = ctx.ensure_object(Options)
    if (offsets == "both") != (truth is not None):
        raise click.UsageError("give --truth together with --offsets both, and only then", ctx)
    chosen = formatter or (json_line if _wants_json(options) else raw_line)
    request = _Request(group, topics, chosen, begin, most, to_end, not no_commit, offsets, truth, id, foreign_assignor)
    code = 0
    with connected(options, writes=True) as registry:
        settings = kafka_settings(options, registry)
        for topic in topics:
            if registry.topic(topic) is None:
                raise NotFoundError(f"topic {topic!r} does not exist: check the name and the address")
        with recorded_signals() as recorded:
            if (command := command_of(ctx)) is None:
                _to_stdout(options, registry, request, settings, recorded)
            else:
                variables = {"ZKGROUPS_GROUP": request.group, "ZKGROUPS_TOPICS": ",".join(request.topics)}
                with CommandInput(command, variables, grace=grace, recorded=recorded) as pipe:
                    with suppress(BrokenPipeError), _consumer(options, registry, request, settings) as consumer:
                        # BrokenPipeError: the command has closed its input, and may do something else before it ends
                        _copy(
                            options, request, consumer, request.formatter, pipe.descriptor, recorded, lambda: pipe.ended
                        )
                    result = pipe.wait()
                code = result.code
        raise_recorded(recorded)
    ctx.exit(code)


def _wants_json(options: Options) -> bool:
    """Return whether -o chooses JSON lines. Refuse other formats, unless they are those of the environment."""
    if options.output in (Format.JSONL, Format.JSON):
        return True
    if options.given.get("output") is ParameterSource.COMMANDLINE:
        raise usage_error(
            f"-o {options.output} is not a format for messages: give -o jsonl or -f FORMAT, or neither for raw lines"
        )
    return False


def _to_stdout(
    options: Options, registry: Registry, request: _Request, settings: dict[str, Any], recorded: Sequence[int]
) -> None:
    # The shell may have closed stdout.
    descriptor = os.open(os.devnull, os.O_WRONLY) if sys.stdout is None else sys.stdout.fileno()
    formatter = for_terminal(request.formatter) if os.isatty(descriptor) else request.formatter
    with _consumer(options, registry, request, settings) as consumer:
        _copy(options, request, consumer, formatter, descriptor, recorded)


def _copy(
    options: Options,
    request: _Request,
    consumer: Consumer,
    formatter: Formatter,
    descriptor: int,
    recorded: Sequence[int],
    reader_ended: Callable[[], bool] = lambda: False,
) -> None:
    sink = ByteSink(descriptor, lambda: bool(recorded) or reader_ended())

    def stands_still(error: CommittedOutOfRangeError) -> None:
        say_in_time(options, f"{error.at} stands still: --from earliest or --from latest goes on there")

    copying = Copying(
        consumer, formatter, sink, recorded, reader_ended, stands_still, most=request.most, to_end=request.to_end
    )
    copying.run()
    if not (copying.count or consumer.assignment or recorded):
        say(options, "This member received no partition: the other members hold all of them.")


@contextmanager
def _consumer(options: Options, registry: Registry, request: _Request, settings: dict[str, Any]) -> Iterator[Consumer]:
    from zkgroups import Consumer

    last: dict[str, str] = {}

    def explain(event: MemberEvent) -> None:
        if event.kind in _EXPLAINED and last.get(event.kind) != event.detail:
            last[event.kind] = event.detail
            say_in_time(options, f"{event.kind}: {event.detail or ', '.join(map(str, sorted(event.at)))}")

    with Consumer(
        registry.group(request.group),
        request.topics,
        kafka=settings,
        commits=request.commits,
        offsets=request.offsets,
        truth=request.truth,
        start_at=request.begin or "earliest",
        out_of_range=request.begin or "error",
        id=request.id,
        foreign_assignor=request.foreign_assignor,
        on_event=explain,
    ) as consumer:
        yield consumer
