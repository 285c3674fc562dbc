"""The documents keep up with the code: generated tables, Python blocks, commands and paths.

Python blocks of README.md and docs/ are run one page after the other, top to bottom, each page
in one namespace and an empty folder; a block that begins with `# not run` is only compiled.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from toque.api.admin_http import ADMIN_ROUTES
from toque.api.apps import App
from toque.api.cli_config import DATA_DEFAULT
from toque.api.deploy_http import DEPLOY_ROUTES
from toque.api.migration_http import MIGRATION_ROUTES
from toque.api.routes_http import BASE, ROUTES
from toque.engines.watch import EVENT_TYPES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("deploy/*.md"))
)
NOT_RUN = "# not run"


def load(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(text: str, language: str) -> list[tuple[int, str]]:
    """`(line, code)` of each fenced block of a language."""
    return [
        ((token.map or [0])[0] + 1, token.content)
        for token in MarkdownIt().parse(text)
        if token.type == "fence" and token.info.split()[:1] == [language]
    ]


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_tables_repeat_what_the_code_says(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == load(ROOT / "docs" / "tables.py").filled(text), "run: make docs"


def test_a_table_that_lags_is_found() -> None:
    tables = load(ROOT / "docs" / "tables.py")
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert tables.filled(text.replace("| 1 MiB |", "| 2 MiB |", 1)) == tables.filled(text)
    for name in tables.blocks():
        pages = [p for p in PAGES if f"<!-- begin: {name} -->" in (ROOT / p).read_text()]
        assert len(pages) == 1, f"the table {name!r} stands on {pages}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_name_real_targets_and_files(page: str) -> None:
    for _line, block in code_blocks((ROOT / page).read_text(encoding="utf-8"), "sh"):
        for target in re.findall(r"^make ([a-z-]+)", block, flags=re.MULTILINE):
            assert target in make_targets(), f"{page}: make {target}"
        for path in re.findall(r"\b(?:examples|bench|tests|docs|deploy)/[\w./-]+\w", block):
            assert (ROOT / path).exists(), f"{page}: {path}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_toque_would_be_understood(page: str) -> None:
    reference = load(ROOT / "docs" / "reference.py")
    for line, block in code_blocks((ROOT / page).read_text(encoding="utf-8"), "sh"):
        for command in reference.lines_of(block):
            assert reference.check_line(command) is None, f"{page}:{line}"


def test_a_command_that_there_is_not_is_found() -> None:
    reference = load(ROOT / "docs" / "reference.py")
    for wrong in (
        "toque instance list",
        "toque instances lst x",
        "toque create --idd x y",
        "toque create",
        "toque instances list x | toque instances delet x -",
    ):
        assert any(reference.check_line(one) for one in reference.lines_of(wrong)), wrong
    fine = 'toque create x --params \'{"a": "b|c"}\' | toque instances why x latest > out # so'
    assert [reference.check_line(one) for one in reference.lines_of(fine)] == [None, None]


def test_data_directories_that_programs_use_unasked_lie_apart() -> None:
    found = {"toque dev": DATA_DEFAULT}
    for path in (ROOT / "Makefile", *(ROOT / "examples").glob("*.py")):
        for name in re.findall(r"\.toque[\w./-]*", path.read_text()):
            found[f"{path.name} {name}"] = Path(name)
    found.pop("Makefile .toque", None)  # in a sentence
    assert len(found) > 5
    for who, one in found.items():
        inside = [w for w, other in found.items() if other != one and other.is_relative_to(one)]
        assert not inside, f"{inside} would lie in the data directory of {who}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_running_text_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    house = "runtime|actors|engines|gatekeeper|souschef|migration|dashboard|api|loadtest|testkit"
    folders = f"{house}|tests|examples|bench|docs"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{page}: `{path}`"


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_are_named_exist(page: str) -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", (ROOT / page).read_text(encoding="utf-8")):
        assert f"def {name}(" in tests, f"{page}: `{name}`"


def missing_tests(text: str) -> list[str]:
    """Of the tests that a text names as `path::name`, those that there are not."""
    return [
        f"{path}::{name}"
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text()
    ]


def test_each_fault_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert missing_tests(text) == []
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    numbers = {int(n) for row in rows for n in re.findall(r"\d+", row.split("|")[1])}
    assert numbers == set(range(1, 41))
    assert [row for row in rows if "`tests/" not in row] == []
    wrong = "`tests/test_docs.py::test_no_such` `tests/no.py::test_x` `tests/test_docs.py::load`"
    assert missing_tests(wrong) == ["tests/test_docs.py::test_no_such", "tests/no.py::test_x"]


def test_each_limit_is_set_once() -> None:
    found = re.findall(r"^([A-Z_]+) = ", (ROOT / "runtime" / "limits.py").read_text(), re.MULTILINE)
    assert sorted(found) == sorted(set(found))


def test_the_house_has_every_folder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    house = text.partition("## The house")[2].partition("\n## ")[0]
    drawn = set(re.findall(r"(\w+)/ ", house + " "))
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert packages < drawn
    assert all((ROOT / name).is_dir() for name in drawn)


def test_who_contributes_is_told_of_every_target() -> None:
    told = re.findall(r"`?make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert make_targets() - {"help"} <= set(told)


def test_the_index_names_every_page() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(linked) == pages
    assert len(linked) == len(pages), "a page stands there twice"


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__main__")  # as a script
    monkeypatch.setitem(sys.modules, "__main__", module)
    for line, block in code_blocks((ROOT / page).read_text(encoding="utf-8"), "python"):
        code = compile("\n" * line + block, str(ROOT / page), "exec")
        if not block.startswith(NOT_RUN):
            exec(code, vars(module))


def test_the_file_of_the_tutorial_is_an_app(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (block,) = (b for _, b in code_blocks(text, "python") if b.startswith("# shop.py\n"))
    path = tmp_path / "shop.py"
    path.write_text(block, encoding="utf-8")
    found = App.from_file(path)
    assert [(one.name, one.payload_type.__name__) for one in found.definitions] == [
        ("Shop", "Order")
    ]


def test_the_http_page_tells_every_type_of_event() -> None:
    text = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"\*\*Events of an instance\*\*.*?\n\n", text, flags=re.DOTALL)
    words = {word for quoted in re.findall(r"`([^`]+)`", told) for word in quoted.split()}
    for name in EVENT_TYPES:
        parts = {(name[:at], name[at:]) for at in range(1, len(name)) if name[at - 1] == "_"}
        assert name in words or any({*part} <= words for part in parts), name


def test_the_pages_and_the_package_name_the_same_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    named = {line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line}
    assert named == {"3.11", "3.12", "3.13"}
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "Python 3.11 to 3.13" in (ROOT / page).read_text(encoding="utf-8")


def test_the_http_page_lists_every_route() -> None:
    page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    verbs = "GET|POST|PUT|PATCH|DELETE"
    base = "/client/v4/accounts/{account}"
    told = {
        (method, re.sub(r"\{\w+\}", "{}", base + path if path.startswith("/workflows") else path))
        for method, path in re.findall(rf"`({verbs}) (/(?:workflows|toque|client)[^`]*)`", page)
    }
    routes = {
        *((route.method, (*BASE, *route.path)) for route in ROUTES),
        *(
            (route.method, route.path)
            for route in (*ADMIN_ROUTES, *DEPLOY_ROUTES, *MIGRATION_ROUTES)
        ),
    }
    assert told == {
        (method, "/" + "/".join("{}" if "{" in word else word for word in path))
        for method, path in routes
    }
