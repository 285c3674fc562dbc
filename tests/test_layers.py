"""The house's layers, kept by reading every source file's syntax tree.

Checked: imports go down a floor or stay in the folder, and form no cycle; a technology is
imported only where the file name says so; the wall clock and randomness are read in one file
each; nothing is imported inside a function; the folders, `pyproject.toml` and the links for type
checkers tell the same story. Each check is a function over `(path, source)` and is shown here to
find a seeded violation, so a rule that has stopped working fails too.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "runtime": 1,
    "actors": 2,
    "engines": 3,
    "gatekeeper": 3,
    "souschef": 4,
    "migration": 5,
    "dashboard": 5,
    "api": 6,
    "loadtest": 7,
    "testkit": 7,
    "toque": 8,
}
"""The public face stands above all: it re-exports, and nothing in the house imports it."""

PUBLIC_FACE = ("__init__.py", "testing.py")
"""The modules of `toque/`."""

STANDALONE = {"loadtest/app.py"}
"""Programs of users by what they do: deployed as files of their own, they use public names."""

OUTSIDE = ("tests", "examples", "bench", "docs")

TECHNOLOGIES = {
    "ray": ("_ray",),
    "pickle": ("_ray",),
    "cloudpickle": ("_ray",),
    "marshal": ("_ray",),
    "shelve": ("_ray",),
    "opentelemetry": ("_otel",),
    "sqlite3": ("_sqlite",),
    "aiosqlite": ("_sqlite",),
    "asyncpg": ("_postgres",),
    "psycopg": ("_postgres",),
    "fastapi": ("_http",),
    "starlette": ("_http",),
    "uvicorn": ("_http",),
    "httptools": ("_http",),
    "prometheus_client": ("_http",),
    "aiohttp": ("_http",),
    "httpx": ("_http",),
    "requests": ("_http",),
    "http": ("_http",),
    "urllib.request": ("_http",),
    "socket": ("_socket", "_http"),
    "socketserver": ("_socket",),
    "ssl": ("_socket", "_http"),
    "pytest": ("_pytest",),
}
"""What a file must be named after to import it."""
SOCKET_CALLS = {
    f"asyncio.{name}"
    for name in (
        "start_server",
        "start_unix_server",
        "open_connection",
        "open_unix_connection",
    )
}
SHELL_SUFFIXES = ("_ray", "_sqlite", "_postgres", "_http", "_socket")

CLOCK_FILE = "runtime/clock.py"
WALL_CLOCK = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.ctime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}
STOPWATCH = {
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
STOPWATCH_FILES = {CLOCK_FILE, "api/cli.py"}
"""Besides the shells (files with a technology in their name)."""

ENTROPY_FILE = "runtime/entropy.py"
RANDOM_MODULES = {"random", "secrets", "uuid"}
RANDOM_PURE = {"uuid.UUID"}
"""A type, not a source of randomness."""

Check = Callable[[str, str], list[str]]
LAZY_FACE = ("toque/__init__.py", "__getattr__")


# --- reading a file ---


def source_files() -> list[str]:
    """Every source file of the house, by its path from the root."""
    return sorted(f"{folder}/{p.name}" for folder in FLOORS for p in (ROOT / folder).glob("*.py"))


def outside_files() -> list[str]:
    """Every Python file beside the house."""
    found = (p for folder in OUTSIDE for p in (ROOT / folder).rglob("*.py"))
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


def imports_of(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    """`(line, level, dotted name)` of each thing that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, 0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield from ((node.lineno, node.level, base + alias.name) for alias in node.names)


def aliases_of(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for, as a dotted name."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def uses_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """`(line, dotted name)` of each use of an imported name, aliases resolved."""
    known = aliases_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                yield node.lineno, ".".join([known[inner.id], *reversed(parts)])


def is_within(name: str, module: str) -> bool:
    """Whether a dotted name is a module or something in it."""
    return name == module or name.startswith(module + ".")


# --- the checks ---


def check_floors(path: str, source: str) -> list[str]:
    """Imports between folders are relative and go down."""
    if path in STANDALONE:
        return check_outside(path, source)
    folder = PurePosixPath(path).parts[0]
    found = []
    for line, level, name in imports_of(ast.parse(source)):
        first = name.split(".")[0]
        if level == 0:
            if first in FLOORS:
                found.append(f"{path}:{line}: {name!r} must be imported relatively")
        elif level > 2 or (level == 2 and folder == "toque"):
            found.append(f"{path}:{line}: {name!r} is imported from outside the namespace")
        elif (level == 2) != (folder == "toque") and FLOORS.get(first, 99) >= FLOORS[folder]:
            found.append(f"{path}:{line}: imports go down; {folder}/ may not import {first}/")
    return found


def check_outside(path: str, source: str) -> list[str]:
    """Tests, examples and benchmarks import the house by its public names."""
    return [
        f"{path}:{line}: say 'toque.{name}' for {name!r}"
        for line, level, name in imports_of(ast.parse(source))
        if level == 0 and name.split(".")[0] in FLOORS and name.split(".")[0] != "toque"
    ]


def check_technologies(path: str, source: str) -> list[str]:
    """A technology is imported only by files that carry its name."""
    stem = PurePosixPath(path).stem
    tree = ast.parse(source)
    found = []
    for line, level, name in imports_of(tree):
        for module, suffixes in TECHNOLOGIES.items():
            if level == 0 and is_within(name, module) and not f"_{stem}".endswith(suffixes):
                found.append(f"{path}:{line}: {module} belongs in a file named *{suffixes[0]}.py")
    for line, name in uses_of(tree):
        if name in SOCKET_CALLS and not f"_{stem}".endswith("_socket"):
            found.append(f"{path}:{line}: {name} belongs in a file named *_socket.py")
    return found


def check_clock(path: str, source: str) -> list[str]:
    """The wall clock is read in one file, stopwatches only in shells."""
    is_shell = PurePosixPath(path).stem.endswith(SHELL_SUFFIXES) or path in STOPWATCH_FILES
    found = []
    for line, name in uses_of(ast.parse(source)):
        if name in WALL_CLOCK and path != CLOCK_FILE:
            found.append(f"{path}:{line}: {name} is the wall clock; take a Clock")
        if name in STOPWATCH and not is_shell:
            found.append(f"{path}:{line}: {name} is for shells; take a Clock or the loop's time")
        if name == "time.sleep":
            found.append(f"{path}:{line}: {name} holds a thread; wait for what is meant")
    return found


def check_entropy(path: str, source: str) -> list[str]:
    """Randomness and new ids are drawn in one file."""
    if path == ENTROPY_FILE:
        return []
    tree = ast.parse(source)
    named = [(line, name) for line, level, name in imports_of(tree) if level == 0]
    used = [(line, name) for line, name in uses_of(tree) if name == "os.urandom"]
    return [
        f"{path}:{line}: {name} is randomness; take an Entropy"
        for line, name in named + used
        if name == "os.urandom"
        or (name.split(".")[0] in RANDOM_MODULES and name not in RANDOM_PURE)
    ]


def check_local_imports(path: str, source: str) -> list[str]:
    """Nothing is imported inside a function."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if (path, node.name) == LAZY_FACE:
                continue
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Import, ast.ImportFrom)):
                    found.append(f"{path}:{inner.lineno}: import inside {node.name}()")
    return sorted(set(found))


def check_guard(path: str, source: str) -> list[str]:
    """A folder's `__init__` refuses to be imported under another name."""
    folder = PurePosixPath(path).parts[0]
    if PurePosixPath(path).name != "__init__.py" or folder == "toque":
        return []
    wanted = ast.dump(ast.parse(f'__name__ != "toque.{folder}"', mode="eval").body)
    for node in ast.parse(source).body:
        is_guard = isinstance(node, ast.If) and ast.dump(node.test) == wanted
        if is_guard and any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
            return []
    return [f"{path}:1: no guard against being imported as anything but 'toque.{folder}'"]


def run_time_imports(path: str, source: str, modules: set[str]) -> set[str]:
    """The modules of the same folder that a module imports when it runs."""
    folder = PurePosixPath(path).parts[0]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found = set()
    for _line, level, name in imports_of(tree):
        target = f"{folder}/{name.split('.')[0]}.py"
        if level == 1 and target in modules:
            found.add(target)
    return found


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of a graph as a path that ends where it began; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph[node]):
            cycle = visit(target, [*trail, node])
            if cycle:
                return cycle
        done.add(node)
        return []

    for start in sorted(graph):
        cycle = visit(start, [])
        if cycle:
            return cycle
    return []


def check_packaging(pyproject: str, code_folders: set[str]) -> list[str]:
    """`packages` and `package-dir` list exactly the folders that hold code."""
    tool = tomllib.loads(pyproject)["tool"]["setuptools"]
    wanted = {"toque" if f == "toque" else f"toque.{f}": f for f in code_folders}
    found = []
    if sorted(tool["packages"]) != sorted(wanted):
        found.append(f"packages: {sorted(set(tool['packages']) ^ set(wanted))} differ")
    if tool["package-dir"] != wanted:
        differ = sorted(set(tool["package-dir"].items()) ^ set(wanted.items()))
        found.append(f"package-dir: {differ} differ")
    return found


def check_typing_links(links: dict[str, str]) -> list[str]:
    """`.typing/toque` holds a link per folder and those of the public face; none leads to `..`."""
    wanted = {f: f"../../{f}" for f in FLOORS if f != "toque"}
    wanted |= {f: f"../../toque/{f}" for f in PUBLIC_FACE}
    return [
        f".typing/toque/{name}: {links.get(name)!r} should be {wanted.get(name)!r}"
        for name in sorted(set(links) | set(wanted))
        if links.get(name) != wanted.get(name)
    ]


# --- the tree ---

SOURCE_CHECKS = [
    check_floors,
    check_technologies,
    check_clock,
    check_entropy,
    check_local_imports,
    check_guard,
]
OUTSIDE_CHECKS = [check_outside, check_local_imports]


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_the_source_keeps_its_layers(check: Check) -> None:
    found = [told for path in source_files() for told in check(path, (ROOT / path).read_text())]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("check", OUTSIDE_CHECKS, ids=lambda check: check.__name__)
def test_what_stands_beside_uses_public_names(check: Check) -> None:
    found = [told for path in outside_files() for told in check(path, (ROOT / path).read_text())]
    assert not found, "\n" + "\n".join(found)


def test_no_import_cycle_in_a_folder() -> None:
    modules = set(source_files())
    graph = {path: run_time_imports(path, (ROOT / path).read_text(), modules) for path in modules}
    assert find_cycle(graph) == []


def test_packaging_lists_the_folders_that_hold_code() -> None:
    hidden_or_outside = {*OUTSIDE, "deploy", "build", "dist"}
    holds_code = {
        p.parent.name
        for p in ROOT.glob("*/*.py")
        if p.parent.name not in hidden_or_outside and not p.parent.name.startswith(".")
    }
    assert holds_code == set(FLOORS)
    assert check_packaging((ROOT / "pyproject.toml").read_text(), holds_code) == []
    for folder in FLOORS:
        assert (ROOT / folder / "py.typed").exists(), f"{folder}/py.typed is missing"
        nested = [str(p) for p in (ROOT / folder).glob("*/*.py")]
        assert not nested, f"folders are flat: {nested}"


def test_typing_links_are_complete() -> None:
    folder = ROOT / ".typing" / "toque"
    links = {p.name: os.readlink(p) for p in folder.iterdir() if p.is_symlink()}
    assert check_typing_links(links) == []


# --- the checks can fail ---

SEEDED = [
    (check_floors, "engines/a.py", "from ..souschef.b import c"),
    (check_floors, "engines/a.py", "from ..gatekeeper import slots"),
    (check_floors, "engines/a.py", "from .. import api"),
    (check_floors, "engines/a.py", "from ...runtime import ids"),
    (check_floors, "engines/a.py", "from toque.runtime import ids"),
    (check_floors, "engines/a.py", "import runtime.ids"),
    (check_floors, "runtime/a.py", "if TYPE_CHECKING:\n    from ..actors.b import c"),
    (check_floors, "api/a.py", "from ..toque import x"),
    (check_floors, "api/a.py", "from ..loadtest import x"),
    (check_floors, "loadtest/app.py", "from runtime.ids import x"),
    (check_outside, "tests/a.py", "from runtime.ids import x"),
    (check_technologies, "actors/host.py", "import ray"),
    (check_technologies, "actors/host.py", "from ray.util import x"),
    (check_technologies, "actors/host_http.py", "import ray"),
    (check_technologies, "runtime/store.py", "import sqlite3"),
    (check_technologies, "runtime/rpc.py", "import asyncio\nasyncio.start_unix_server(f)"),
    (check_technologies, "api/cli.py", "from urllib import request"),
    (check_technologies, "testkit/factory.py", "import pytest"),
    (check_clock, "runtime/a.py", "import time\nx = time.time()"),
    (check_clock, "runtime/a.py", "from time import time as now\nx = now()"),
    (check_clock, "runtime/a.py", "from datetime import datetime\nx = datetime.now()"),
    (check_clock, "runtime/a.py", "import datetime as d\nx = d.datetime.utcnow()"),
    (check_clock, "runtime/a.py", "import time\nx = time.perf_counter()"),
    (check_clock, "runtime/a_ray.py", "import time\ntime.sleep(1)"),
    (check_entropy, "runtime/a.py", "import random"),
    (check_entropy, "runtime/a.py", "from uuid import uuid4"),
    (check_entropy, "runtime/a.py", "import os\nx = os.urandom(4)"),
    (check_entropy, "runtime/a.py", "from os import urandom"),
    (check_local_imports, "api/a_ray.py", "def f():\n    import ray"),
    (check_local_imports, "toque/__init__.py", "def f():\n    from .api import x"),
    (check_guard, "runtime/__init__.py", '"""x"""'),
    (check_guard, "runtime/__init__.py", 'if __name__ != "toque.api":\n    raise ImportError'),
]

ALLOWED = [
    (check_floors, "engines/a.py", "from ..runtime.b import c\nfrom . import journal\nimport json"),
    (check_floors, "toque/__init__.py", "from .api.client import x"),
    (check_floors, "loadtest/app.py", "import toque"),
    (check_outside, "tests/a.py", "from toque.runtime.ids import x"),
    (check_technologies, "actors/host_ray.py", "import ray"),
    (check_technologies, "api/a.py", "from urllib.parse import quote"),
    (check_technologies, "api/server_http.py", "import socket"),
    (check_clock, CLOCK_FILE, "import time\nx = time.time_ns()"),
    (check_clock, "actors/a_ray.py", "import time\nx = time.monotonic()"),
    (check_clock, "runtime/a.py", "import datetime\nx: datetime.datetime"),
    (check_entropy, "runtime/a.py", "from uuid import UUID"),
    (check_local_imports, "toque/__init__.py", "def __getattr__(n):\n    from .api import x"),
    (check_local_imports, "api/a.py", "if TYPE_CHECKING:\n    import ray"),
    (check_guard, "runtime/__init__.py", 'if __name__ != "toque.runtime":\n    raise ImportError'),
]


@pytest.mark.parametrize(("check", "path", "source"), SEEDED)
def test_a_seeded_violation_is_found(check: Check, path: str, source: str) -> None:
    found = check(path, source)
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


@pytest.mark.parametrize(("check", "path", "source"), ALLOWED)
def test_what_is_allowed_passes(check: Check, path: str, source: str) -> None:
    assert check(path, source) == []


def test_a_seeded_cycle_is_found() -> None:
    modules = {"api/a.py", "api/b.py", "api/c.py"}
    type_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"
    sources = {"api/a.py": "from .b import x", "api/b.py": "from . import c", "api/c.py": type_only}
    graph = {path: run_time_imports(path, source, modules) for path, source in sources.items()}
    assert find_cycle(graph) == []
    graph["api/c.py"] = run_time_imports("api/c.py", "from .a import x", modules)
    assert find_cycle(graph) == ["api/a.py", "api/b.py", "api/c.py", "api/a.py"]


def test_wrong_packaging_is_found() -> None:
    good = (ROOT / "pyproject.toml").read_text()
    assert len(check_packaging(good, {*FLOORS, "extra"})) == 2
    assert len(check_packaging(good.replace('"toque.api" = "api"', ""), set(FLOORS))) == 1
    links = {f: f"../../{f}" for f in FLOORS if f != "toque"}
    assert len(check_typing_links(links)) == len(PUBLIC_FACE)
    assert len(check_typing_links({**links, "testing.py": ".."})) == 2
    links |= {f: f"../../toque/{f}" for f in PUBLIC_FACE}
    assert check_typing_links(links) == []


UNSAFE = ("pickle", "cloudpickle", "marshal", "shelve")
"""Formats whose data runs code when it is read."""


def test_no_data_can_become_code() -> None:
    """Only bodies that Ray runs for the account that wrote them are sent as code."""
    assert all(check_technologies("runtime/a.py", f"import {name}") for name in UNSAFE)
    users = [
        path
        for path in source_files()
        if any(f"import {name}" in (ROOT / path).read_text() for name in UNSAFE)
    ]
    assert users == ["actors/resources_ray.py"]
