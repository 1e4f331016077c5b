"""The architecture, checked on syntax trees: which folder imports what, and where threads may start."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from kazoo.client import KazooClient

ROOT = Path(__file__).parent.parent

# Each may import itself and those before it.
ORDER = (
    "input_errors",
    "exceptions",
    "core",
    "coordinator",
    "deadline",
    "rare_collections",
    "secret_file",
    "storage",
    "zookeeper",
    "datadir",
    "consumer",
    "messages",
    "aio",
    "kafka",
    "tables",
    "snapshots",
    "audit",
    "migration",
    "spark",
    "gateway",
    "serve",
    "cli",
)
# The broker layer stands alone: it works without ZooKeeper.
MUST_NOT_IMPORT = {"kafka": {"zookeeper", "datadir", "consumer", "messages"}}
# For users with an event loop: the library itself does not use it.
FOR_USERS_ONLY = {"aio"}
# Uses the public API of the library, and the workers of a consumer. Only these modules use it.
TESTING_MAY_IMPORT = {"exceptions", "core", "messages", "zookeeper", "testing", "face"}
MAY_IMPORT_TESTING = {"cli/demo.py", "cli/zookeeper.py"}

# The values that errors carry. They raise only errors of `input_errors`, so imports form no circle.
CARRIED_BY_ERRORS = ("zkgroups.core.znodes.topic_partition", "zkgroups.core.znodes.values")

HOMES = {
    # Only RE2 evaluates expressions of other clients in linear time: core/topic_filter.py.
    "re2": {"core"},
    "kazoo": {"zookeeper", "testing"},
    "pyspark": {"spark"},
    "py4j": {"spark"},
    # `datadir` decompresses snappy with it.
    "pyarrow": {"migration", "spark", "datadir", "tables", "snapshots", "audit"},
    "matplotlib": {"snapshots"},
    "click": {"cli"},
    "yaml": {"cli"},
    "rich": {"cli"},
    "docker": {"testing"},
    "starlette": {"serve", "cli"},
    "uvicorn": {"serve", "cli"},
    # Its package has the name of one of our folders.
    "kafka-python": {"kafka"},
    "cryptography": {"kafka"},
    "gssapi": {"kafka"},
    # `aio` only names the type of messages. `testing` creates topics and checks brokers with it, because Kafka's own
    # tools take seconds.
    "confluent_kafka": {"messages", "aio", "testing"},
    "pytest": {"testing"},
}

# State machines and rules: the time and everything else come with the calls.
PURE = {"core", "coordinator"}
NOT_IN_CORE = {
    "_thread",
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "queue",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}
# The only package that may use kazoo's private attributes, and the modules in which kazoo's objects appear.
KAZOO_COMPAT = "zkgroups/zookeeper/kazoo_compat/"
MAY_HOLD_KAZOO_OBJECTS = {"zookeeper", "testing"}
_CLIENT = KazooClient("127.0.0.1:1")
KAZOO_PRIVATE_NAMES = {
    name
    for kazoo_object in (_CLIENT, _CLIENT._connection, _CLIENT.handler)
    for name in {*vars(kazoo_object), *dir(type(kazoo_object))}
    if name.startswith("_") and not name.startswith("__")
}

# The one module that may touch what pyspark does not document, and where else its objects can come.
PYSPARK_INTERNALS = "zkgroups/spark/pyspark_internals.py"
MAY_HOLD_PYSPARK_OBJECTS = {"spark", "cli"}
PYSPARK_INTERNAL_MODULES = (
    "py4j.clientserver",
    "py4j.java_gateway",
    "pyspark.accumulators",
    "pyspark.core",
    "pyspark.java_gateway",
    "pyspark.sql.classic",
    "pyspark.sql.pandas.types",
    "pyspark.sql.udf",
    "pyspark.util",
)
# `org` begins the name of a Java class.
PYSPARK_INTERNAL_NAMES = {"org", "pythonExec", "__globPaths__"}
METHODS_OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}

CLOCKS = {"now", "utcnow", "today"}
# Only for times that people see, that znodes and files record, or that are compared with those of brokers. Sessions,
# claims, deadlines and pauses use `deadline.py`, because somebody may set the wall clock.
MAY_READ_WALL_CLOCK = (
    "cli/demo.py",
    "cli/groups/change.py",
    "cli/lag.py",
    "cli/migrate/follow.py",
    "cli/offsets/reset.py",
    "cli/shared/parameter_types.py",
    "cli/snapshots/audit.py",
    "cli/snapshots/snapshots.py",
    "cli/watch.py",
    "zkgroups/audit/audit.py",
    "zkgroups/audit/journal.py",
    "zkgroups/consumer/member.py",
    "zkgroups/gateway/groups/coordinator_host.py",
    "zkgroups/gateway/zookeeper_storage/members.py",
    "zkgroups/gateway/zookeeper_storage/storage.py",
    "zkgroups/migration/",
    "zkgroups/serve/sweeper.py",
    "zkgroups/serve/web/access.py",
    "zkgroups/snapshots/snapshot.py",
    "zkgroups/spark/",
    "zkgroups/storage/snapshot_folder.py",
    "zkgroups/tables/arrow.py",
    "zkgroups/zookeeper/admin/migration_marks.py",
    "zkgroups/zookeeper/instance.py",
    "zkgroups/zookeeper/reading/doctor_reader.py",
)

THREADS = {"InheritableThread", "Thread", "ThreadPoolExecutor", "Timer", "start_new_thread"}
MAY_START_THREADS = (
    "zkgroups/aio/",
    "zkgroups/consumer/",
    "zkgroups/gateway/zookeeper_storage/elections.py",
    "zkgroups/gateway/zookeeper_storage/elections.py",
    "zkgroups/kafka/wire/cluster.py",
    "zkgroups/messages/",
    "zkgroups/migration/local_engine.py",
    "zkgroups/serve/sweeper.py",
    "zkgroups/serve/web/app.py",
    "zkgroups/spark/session.py",
    "zkgroups/testing/",
    "zkgroups/zookeeper/session/lifetime.py",
    "zkgroups/zookeeper/watch.py",
)


# Public names: users set levels by them. They name topics, not modules.
LOGGERS = (
    "zkgroups.claim",
    "zkgroups.consumer",
    "zkgroups.gateway",
    "zkgroups.kafka",
    "zkgroups.librdkafka",
    "zkgroups.member",
    "zkgroups.migration",
    "zkgroups.serve",
    "zkgroups.session",
    "zkgroups.spark",
    "zkgroups.watch",
    "kazoo.client",
)


@dataclass(frozen=True)
class Import:
    """One imported name, as an absolute name of a module or of a name in it."""

    module: str
    line: int
    for_typing: bool


@dataclass(frozen=True)
class Source:
    """One file, and its place in the architecture."""

    root: Path
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def package(self) -> list[str]:
        return list(self.path.relative_to(self.root).parent.parts)

    @property
    def place(self) -> str:
        return place_of(".".join((*self.package, self.path.stem)).removesuffix(".__init__"))

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_bytes(), self.name)

    def imports(self) -> Iterator[Import]:
        tree = self.tree()
        typing_only = {inner for node in ast.walk(tree) if _is_type_checking(node) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self.package[: len(self.package) - node.level + 1] if node.level else []
                modules = [".".join(filter(None, (*base, node.module, alias.name))) for alias in node.names]
            else:
                continue
            yield from (Import(module, node.lineno, node in typing_only) for module in modules)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def place_of(module: str) -> str:
    """The place of a module: one of ORDER, `testing`, `face` for the names that `import zkgroups` exports, or a
    foreign library."""
    top, _, rest = module.partition(".")
    if top in {"cli", "zkgroups_cli"}:
        return "cli"
    if top == "kafka":
        return "kafka-python"
    if top != "zkgroups":
        return top
    part = rest.partition(".")[0]
    if part in {*ORDER, "testing", "_version"}:
        return part
    return "face"


def sources(root: Path) -> list[Source]:
    return [Source(root, path) for folder in ("zkgroups", "cli") for path in sorted((root / folder).rglob("*.py"))]


def violations(root: Path) -> list[str]:
    """Return each violation of a rule as `file:line: text`."""
    found: list[str] = []
    for source in sources(root):
        found += (f"{source.name}:{line}: {what}" for line, what in _problems(source))
    return found


def _problems(source: Source) -> Iterator[tuple[int, str]]:
    for imported in source.imports():
        if problem := _problem_of_import(source, imported):
            yield imported.line, problem
    tree = source.tree()
    if ast.get_docstring(tree) is None or tree.body[0].lineno != 1:
        yield 1, "does not begin with a docstring"
    for node in ast.walk(tree):
        name = _name_used(node)
        if name in THREADS and not source.name.startswith(MAY_START_THREADS):
            yield getattr(node, "lineno", 0), f"{name} outside of {', '.join(MAY_START_THREADS)}"
        if isinstance(node, ast.Call) and _name_used(node.func) == "getLogger" and not _is_public_logger(node):
            yield node.lineno, f"getLogger of another name than {', '.join(LOGGERS)}"
        if problem := _problem_of_clock(source, node):
            yield getattr(node, "lineno", 0), problem
        if (private := _kazoo_private_name(node)) and _must_not_use_private_kazoo(source):
            yield getattr(node, "lineno", 0), f"private attribute of kazoo outside of {KAZOO_COMPAT}: {private}"
        if (internal := pyspark_internal(node)) and _must_not_use_pyspark_internals(source):
            yield getattr(node, "lineno", 0), f"internals of pyspark outside of {PYSPARK_INTERNALS}: {internal}"


def _name_used(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
            return name
    return None


def _problem_of_clock(source: Source, node: ast.AST) -> str | None:
    name = _name_used(node)
    if source.place in PURE:
        return f"{source.place} reads a clock: {name}" if isinstance(node, ast.Attribute) and name in CLOCKS else None
    if _reads_wall_clock(node) and not source.name.startswith(MAY_READ_WALL_CLOCK):
        return f"{name} reads the wall clock outside of {', '.join(MAY_READ_WALL_CLOCK)}"
    return None


def _reads_wall_clock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns" | "localtime" | "gmtime"):
            return True
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name):
            return name in CLOCKS
        case ast.Attribute(attr="CLOCK_REALTIME") | ast.alias(name="time_ns" | "CLOCK_REALTIME"):
            return True
    return False


def _kazoo_private_name(node: ast.AST) -> str | None:
    """Return the private attribute of kazoo that is used. An attribute of `self` is the class's own."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return None
        case (
            ast.Attribute(attr=name)
            | ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, ast.Constant(value=name), *_]
            )
        ):
            return name if name in KAZOO_PRIVATE_NAMES else None
    return None


def _must_not_use_private_kazoo(source: Source) -> bool:
    return source.place in MAY_HOLD_KAZOO_OBJECTS and not source.name.startswith(KAZOO_COMPAT)


def pyspark_internal(node: ast.AST) -> str | None:
    """Return what a node uses of pyspark's internals: a private attribute of another object, or one of the names."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return None
        case ast.Attribute(attr=name):
            is_private = name.startswith("_") and not name.endswith("_") and name not in METHODS_OF_NAMED_TUPLES
            return name if is_private or name in PYSPARK_INTERNAL_NAMES else None
        case ast.Constant(value=str(name)):
            return name if name in PYSPARK_INTERNAL_NAMES else None
    return None


def _must_not_use_pyspark_internals(source: Source) -> bool:
    return source.place in MAY_HOLD_PYSPARK_OBJECTS and source.name != PYSPARK_INTERNALS


def _is_public_logger(call: ast.Call) -> bool:
    match call.args:
        case [ast.Constant(value=name)]:
            return name in LOGGERS
    return False


def _problem_of_import(source: Source, imported: Import) -> str | None:
    here, there = source.place, place_of(imported.module)
    if there in sys.stdlib_module_names:
        return f"{here} imports {there}" if here in PURE and there in NOT_IN_CORE else None
    if there in {*ORDER, "testing", "face", "_version"}:
        return None if _is_allowed(source, there, imported) else f"{here} imports {imported.module}"
    if imported.module.startswith(PYSPARK_INTERNAL_MODULES) and source.name != PYSPARK_INTERNALS:
        return f"{imported.module} is internal, and belongs to {PYSPARK_INTERNALS}"
    if there not in HOMES:
        return f"{there} has no home"
    return None if here in HOMES[there] else f"{here} imports {there}, which lives in {', '.join(HOMES[there])}"


def _is_allowed(source: Source, there: str, imported: Import) -> bool:
    here = source.place
    if there in {here, "_version"}:
        return True
    if there in FOR_USERS_ONLY:
        return False
    if there == "testing":
        return source.name in MAY_IMPORT_TESTING
    if here == "testing":
        return there in TESTING_MAY_IMPORT
    if here == "face":
        return there in ORDER[:-1]
    if there == "face":
        return here == "cli"
    if here == "exceptions":
        return there == "input_errors" or imported.module.startswith(CARRIED_BY_ERRORS)
    if there in MUST_NOT_IMPORT.get(here, ()):
        return False
    return here in ORDER and ORDER.index(there) < ORDER.index(here)


def test_the_code_follows_the_architecture() -> None:
    assert violations(ROOT) == []


def test_the_imports_of_the_core_form_no_circle() -> None:
    """Imports for type checkers count, too. Two modules that need each other are one topic, or need a third module."""
    of_core = [source for source in sources(ROOT) if source.place in {"input_errors", "exceptions", *PURE}]
    modules = {source.name.removesuffix(".py").replace("/", "."): source for source in of_core}
    graph = {
        name: {found for each in source.imports() if (found := _module(each.module, modules)) is not None}
        for name, source in modules.items()
    }
    assert list(TopologicalSorter(graph).static_order())


def _module(name: str, modules: Container[str]) -> str | None:
    """The module that an import of `name` loads: `name` itself or its parent."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in modules), None)


def test_the_checker_reads_every_file_of_both_packages() -> None:
    seen = {source.name for source in sources(ROOT)}
    assert {"zkgroups/exceptions.py", "zkgroups/core/znodes/values.py", "zkgroups/zookeeper/registry.py"} <= seen
    assert {"zkgroups/testing/zookeeper_server.py", "cli/__init__.py"} <= seen


def test_the_modules_that_comments_name_exist() -> None:
    """The last names of a path are enough: `liar.py` for tests/zookeeper/liar.py."""
    paths = [
        path
        for folder in ("zkgroups", "cli", "tests", "benchmarks", "scripts")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    exists = {path.relative_to(ROOT).as_posix() for path in paths}
    ends = {name.split("/", start)[-1] for name in exists for start in range(name.count("/") + 1)}
    saved = "playground.py"  # By a reader of the tutorial.
    named = {(path.name, name) for path in paths for name in re.findall(r"`([\w/]+\.py)`", path.read_text())}
    assert {(path, name) for path, name in named if name not in {*ends, saved}} == set()


ALLOWED = {
    "zkgroups/exceptions.py": "from .core.znodes.values import Owner",
    "zkgroups/core/znodes/values.py": "import re\nfrom ...exceptions import InvalidNameError\nfrom .paths import join",
    "zkgroups/zookeeper/kazoo_compat/internals.py": "def send(client):\n    client._call()",
    "zkgroups/zookeeper/session/lifetime.py": "class Own:\n    def send(self):\n        self._call()",
    "zkgroups/zookeeper/watch.py": "import kazoo.client, threading\nthreading.Thread()\nfrom ..core import znodes",
    "zkgroups/spark/pyspark_internals.py": "import pyspark.util\ndef java(spark):\n    return spark._jvm.org.apache",
    "zkgroups/spark/session.py": "class Own:\n    def use(self, run):\n        return self._jvm, run._replace(stop=1)",
    "zkgroups/consumer/member.py": "from ..zookeeper.group import Consumergroup",
    "zkgroups/consumer/generation_lifecycle.py": 'import logging\nlog = logging.getLogger("zkgroups.member")',
    "zkgroups/aio/member.py": "import asyncio\nfrom ..consumer import member\nfrom ..deadline import Deadline",
    "zkgroups/testing/plugin.py": "import pytest\nfrom zkgroups import Registry",
    "zkgroups/__init__.py": "from ._version import VERSION\nfrom .zookeeper.registry import Registry",
    "cli/demo.py": "import rich, click\nfrom zkgroups import Registry\nfrom zkgroups.testing import java",
    "cli/groups/commands.py": "from ..main import main\nfrom zkgroups.core.znodes.values import Owner",
}

FORBIDDEN = [
    ("zkgroups/exceptions.py", "from .core.znodes.names import check_name", "exceptions imports zkgroups.core"),
    ("zkgroups/exceptions.py", "if TYPE_CHECKING:\n    from .core import codec", "exceptions imports zkgroups.core"),
    (
        "zkgroups/core/znodes/values.py",
        "from ...zookeeper.requests import bulk_read",
        "core imports zkgroups.zookeeper.requests.bulk_read",
    ),
    (
        "zkgroups/core/znodes/values.py",
        "if TYPE_CHECKING:\n    from ...zookeeper.requests.node import Node",
        "core imports zkgroups.zoo",
    ),
    ("zkgroups/core/znodes/values.py", "def late():\n    import time", "core imports time"),
    ("zkgroups/core/znodes/values.py", "from logging import getLogger", "core imports logging"),
    ("zkgroups/core/znodes/values.py", "datetime.now()", "core reads a clock"),
    ("zkgroups/core/znodes/values.py", "import kazoo", "core imports kazoo"),
    ("zkgroups/core/znodes/values.py", "import numpy", "numpy has no home"),
    (
        "zkgroups/zookeeper/requests/bulk_read.py",
        "import logging\nlogging.getLogger(__name__)",
        "getLogger of another name than",
    ),
    (
        "zkgroups/zookeeper/requests/bulk_read.py",
        'import logging\nlogging.getLogger("bulk")',
        "getLogger of another name than",
    ),
    ("zkgroups/zookeeper/requests/bulk_read.py", "import re2", "zookeeper imports re2"),
    (
        "zkgroups/zookeeper/requests/bulk_read.py",
        "from ...consumer import member",
        "zookeeper imports zkgroups.consumer",
    ),
    ("zkgroups/zookeeper/requests/bulk_read.py", "from ... import testing", "zookeeper imports zkgroups.testing"),
    (
        "zkgroups/zookeeper/requests/bulk_read.py",
        "from zkgroups import Registry",
        "zookeeper imports zkgroups.Registry",
    ),
    ("zkgroups/zookeeper/requests/bulk_read.py", "import zkgroups_cli.main", "zookeeper imports zkgroups_cli.main"),
    ("zkgroups/zookeeper/requests/bulk_read.py", "import threading\nthreading.Thread()", "Thread outside of"),
    (
        "zkgroups/zookeeper/requests/bulk_read.py",
        "from concurrent.futures import ThreadPoolExecutor",
        "ThreadPoolExecutor outside",
    ),
    ("zkgroups/zookeeper/session/lifetime.py", "import time\ntime.time()", "reads the wall clock outside of"),
    ("cli/child/supervisor.py", "datetime.now(UTC)", "reads the wall clock outside of"),
    ("zkgroups/deadline.py", "import time\ntime.clock_gettime(time.CLOCK_REALTIME)", "reads the wall clock outside of"),
    ("zkgroups/consumer/member.py", "from .. import aio", "consumer imports zkgroups.aio"),
    ("zkgroups/spark/session.py", "from ..aio import Member", "spark imports zkgroups.aio.Member"),
    ("zkgroups/__init__.py", "from .aio import Member", "face imports zkgroups.aio.Member"),
    ("zkgroups/kafka/offsets.py", "import pyspark.sql", "kafka imports pyspark"),
    ("zkgroups/migration/plan.py", "import kafka.protocol", "migration imports kafka-python, which lives in kafka"),
    ("zkgroups/testing/java.py", "from zkgroups.consumer import member", "testing imports zkgroups.consumer"),
    ("zkgroups/__init__.py", "from .testing import missing", "face imports zkgroups.testing"),
    ("zkgroups/kafka/brokers.py", "from ..migration import plan", "kafka imports zkgroups.migration"),
    ("zkgroups/kafka/brokers.py", "from ..zookeeper import registry", "kafka imports zkgroups.zookeeper"),
    ("zkgroups/kafka/brokers.py", "import confluent_kafka", "kafka imports confluent_kafka"),
    ("cli/groups/commands.py", "import kazoo", "cli imports kazoo"),
    ("zkgroups/zookeeper/watch.py", "client._call(request, answer)", "private attribute of kazoo outside of"),
    ("zkgroups/zookeeper/session/lifetime.py", "self._client._session_id", "private attribute of kazoo outside of"),
    ("zkgroups/testing/session_expiry.py", "setattr(client, '_state', 1)", "private attribute of kazoo outside of"),
    ("zkgroups/spark/session.py", "context._jsc = None", "internals of pyspark outside of"),
    ("zkgroups/spark/session.py", "def path(java):\n    return java.org.apache", "internals of pyspark outside of"),
    ("zkgroups/spark/session.py", "reader.option('__globPaths__', 'false')", "internals of pyspark outside of"),
    ("zkgroups/spark/session.py", "from pyspark.java_gateway import launch_gateway", "is internal, and belongs to"),
    ("cli/watch.py", "session.sparkContext._jvm", "internals of pyspark outside of"),
    ("cli/groups/commands.py", "from zkgroups.testing import ZooKeeperServer", "cli imports zkgroups.testing"),
]


def _plant(root: Path, name: str, code: str, *, docstring: str = '"""A file."""\n') -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(docstring + code + "\n")


def test_an_allowed_import_is_not_reported(tmp_path: Path) -> None:
    for name, code in ALLOWED.items():
        _plant(tmp_path, name, code)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(("name", "code", "problem"), FORBIDDEN)
def test_a_forbidden_import_is_reported(tmp_path: Path, name: str, code: str, problem: str) -> None:
    _plant(tmp_path, name, code)
    [found] = violations(tmp_path)
    assert found.startswith(f"{name}:")
    assert problem in found


@pytest.mark.parametrize("docstring", ["", "\n'''Too late.'''\n", "import re\n'''Too late.'''\n"])
def test_a_file_without_a_docstring_in_its_first_line_is_reported(tmp_path: Path, docstring: str) -> None:
    _plant(tmp_path, "zkgroups/core/znodes/values.py", "x = 1", docstring=docstring)
    assert violations(tmp_path) == ["zkgroups/core/znodes/values.py:1: does not begin with a docstring"]
