"""Definitions: from classes and functions, from files; their names, hashes and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toque.engines.archive import hash_of_files
from toque.engines.workflow import (
    WorkflowEntrypoint,
    WorkflowEvent,
    definition_of,
    definitions_of,
    load_file,
    workflow,
)
from toque.runtime.errors import WorkflowLoadError

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, workflow

@dataclass
class Order:
    item: str

class Base(WorkflowEntrypoint):
    pass

class Ship(Base):
    name = "ship-order"
    async def run(self, event: WorkflowEvent[Order], step): ...

class Return_Order(Base):
    async def run(self, event, step): ...

@workflow
async def refund(event, step): ...

@workflow(name="pay")
async def pay_order(event: WorkflowEvent[Order], step) -> None: ...
"""


def load(folder: Path, text: str) -> Any:
    """The workflows of a file."""
    path = folder / "app.py"
    path.write_text(text)
    return definitions_of(load_file(path))


def test_a_file_gives_its_workflows_in_order(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    assert [(d.name, d.class_name) for d in found] == [
        ("ship-order", "Ship"), ("Return_Order", "Return_Order"), ("refund", "refund"),
        ("pay", "pay_order"),
    ]  # fmt: skip
    digest = hash_of_files({"app.py": GOOD.encode()})
    assert {d.code_hash for d in found} == {digest}
    assert [getattr(d.payload_type, "__name__", "Any") for d in found] == [
        "Order", "Any", "Any", "Order",
    ]  # fmt: skip


def test_imported_workflows_are_not_the_files_own(tmp_path: Path) -> None:
    text = f"from {__name__} import Imported\n"
    assert load(tmp_path, text) == []


class Imported(WorkflowEntrypoint):
    """A workflow of this module."""

    async def run(self, event: WorkflowEvent[Any], step: Any) -> Any: ...


def test_a_definition_of_a_class_hashes_its_file() -> None:
    digest = hash_of_files({Path(__file__).name: Path(__file__).read_bytes()})
    assert definition_of(Imported).code_hash == digest
    assert definition_of(Imported, "h").code_hash == "h"


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("x = 1\nraise ValueError('no')\n", 2, "ValueError"),
        ("x = (\n", 1, "SyntaxError"),
        ("\n\nimport not_there_at_all\n", 3, "ModuleNotFoundError"),
        ("raise SystemExit(2)\n", 1, "SystemExit"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
    ],
)
def test_a_file_that_does_not_import_says_where_and_why(
    tmp_path: Path, text: str, line: int, cause: str
) -> None:
    with pytest.raises(WorkflowLoadError) as caught:
        load(tmp_path, text)
    assert caught.value.data == {"file": str(tmp_path / "app.py"), "line": line, "cause": cause}
    assert f"app.py, line {line}: {cause}" in str(caught.value)


@pytest.mark.parametrize("name", ["missing.py", "app.txt", "."])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "app.txt").write_text("")
    with pytest.raises(WorkflowLoadError, match="no Python file"):
        load_file(tmp_path / name)


HEAD = "from toque.engines.workflow import WorkflowEntrypoint, workflow\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class A(WorkflowEntrypoint):\n    def run(self, event, step): ...", "async def"),
        ("class A(WorkflowEntrypoint):\n    async def run(self): ...", "must take self, event"),
        (
            "class A(WorkflowEntrypoint):\n    name = 'a b'\n"
            "    async def run(self, event, step): ...",
            "not valid",
        ),
        (
            "class A(WorkflowEntrypoint):\n    name = 'x'\n"
            "    async def run(self, event, step): ...\n"
            "@workflow(name='x')\nasync def f(event, step): ...",
            "as A has",
        ),
        ("@workflow\ndef f(event, step): ...", "async def"),
        ("@workflow\nasync def f(event): ...", "must take event, step"),
    ],
)
def test_unfit_workflows_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkflowLoadError, match=message):
        load(tmp_path, HEAD + text)


@pytest.mark.parametrize("entry", [5, print, WorkflowEntrypoint, object])
def test_what_is_no_workflow_is_refused(entry: Any) -> None:
    with pytest.raises(WorkflowLoadError, match=r"Right|has no"):
        definition_of(entry)


def test_a_marked_function_stays_a_function() -> None:
    @workflow
    async def f(event: Any, step: Any) -> int:
        return 1

    with pytest.raises(StopIteration) as end:
        f(None, None).send(None)
    assert end.value.value == 1


def test_a_relative_path_has_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, line in (("x = 1\nimport nothing_like_it\n", 2), ("\n\ndef broken(:\n", 3)):
        (tmp_path / "app.py").write_text(text)
        for path in ("app.py", "./app.py"):
            with pytest.raises(WorkflowLoadError, match=f"app.py, line {line}: "):
                load_file(path)


def test_a_bad_name_is_told_in_one_sentence(tmp_path: Path) -> None:
    text = "import toque\n@toque.workflow(name='a b')\nasync def f(event, step): ...\n"
    (tmp_path / "app.py").write_text(text)
    with pytest.raises(WorkflowLoadError, match=r"'order-42'\.\Z"):
        definitions_of(load_file(tmp_path / "app.py"))
