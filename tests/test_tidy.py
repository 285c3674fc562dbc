"""House rules on form, kept by reading every file.

Lengths, docstrings, leftovers, dangerous calls, sleeps in tests, machine paths, Markdown, dead
modules and the changelog. Each check is a function over `(path, text)` and is shown here to find
a seeded violation. Files over the soft length are only reported (`pytest -s`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
SOURCE = (
    "toque",
    "runtime",
    "actors",
    "engines",
    "gatekeeper",
    "souschef",
    "migration",
    "dashboard",
    "api",
    "loadtest",
    "testkit",
)
SKIPPED = {"build", "dist", "__pycache__"}
"""Besides hidden folders, of which only `.ci` is read."""

LINE_COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_SOFT = 400
FILE_LINES_MAX = 600
FILE_BYTES_MAX = 300_000
PICTURES = (".png",)
"""What is no text; it stands in docs/ and is small."""
PICTURE_BYTES_MAX = 100_000

MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:home|root|Users|work|tmp|var/tmp|opt|mnt)/\w")
REGISTRY = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|index-url|find-links)\b")
SHIPPED_BY_OTHERS = re.compile(r"<{7} |>{7} |={7}$", re.MULTILINE)
BANNED_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "imp"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
CHANGE_KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")

SLEEPS_ALLOWED: set[str] = set()
"""Tests that may sleep on the real clock. Empty, and meant to stay so."""

VIRTUAL_TIME = ("tests/simulation/", "tests/engines/", "tests/testkit/")
"""Folders whose every loop has virtual time, or is a workflow's own, whose sleeps are records."""

ENTRY_MODULES = {"api/cli.py", "loadtest/cli.py", "testkit/plugin_pytest.py"}
"""Modules that nothing imports because they are started by name; pyproject names them."""

FOR_USERS_TESTS = {"engines/tracing_otel.py", "toque/testing.py"}
"""Modules whose users are tests, or users of toque, only."""


# --- reading ---


def all_files() -> list[str]:
    """Every file of the project by its path from the root, made ones left out."""
    found: list[str] = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        made = any(part in SKIPPED or part.endswith(".egg-info") for part in parts)
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        if not made and not hidden and path.is_file():
            found.append("/".join(parts))
    return found


def python_files(*folders: str) -> list[str]:
    """The Python files below some folders; of all if none are named."""
    return [
        path
        for path in all_files()
        if path.endswith(".py") and (not folders or path.split("/")[0] in folders)
    ]


def text_of(path: str) -> str:
    """A file's text."""
    return (ROOT / path).read_text(encoding="utf-8")


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is a bare string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# --- checks over Python ---


def check_lengths(path: str, text: str) -> list[str]:
    """Lines, functions and files stay short enough to be read."""
    lines = text.splitlines()
    found = [
        f"{path}:{number}: {len(line)} columns; at most {LINE_COLUMNS_MAX}"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_COLUMNS_MAX
    ]
    if len(lines) > FILE_LINES_MAX:
        found.append(f"{path}:1: {len(lines)} lines; at most {FILE_LINES_MAX}")
    for function in functions_of(ast.parse(text)):
        size = (function.end_lineno or 0) - function.lineno + 1
        if size > FUNCTION_LINES_MAX:
            found.append(f"{path}:{function.lineno}: {function.name} has {size} lines")
    return found


def check_docstring(path: str, text: str) -> list[str]:
    """A source file opens with what it is, guarantees and how it fails: two lines or more."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    if len([line for line in docstring.splitlines() if line.strip()]) < 2:
        return [f"{path}:1: the module docstring needs at least two lines"]
    return []


def check_stubs(path: str, text: str) -> list[str]:
    """No function is left to be written: a body of nothing but `...`, `pass` or a bare refusal."""
    tree, lines = ast.parse(text), text.splitlines()
    ports = {
        method
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(b) for b in node.bases)
        for method in node.body
    }
    found = []
    for function in functions_of(tree):
        marks = " ".join(dotted(d) for d in function.decorator_list)
        if function in ports or "abstractmethod" in marks or "overload" in marks:
            continue
        body = [node for node in function.body if not is_docstring(node)]
        for node in function.body:
            if isinstance(node, ast.Raise) and node.exc is not None:
                bare = dotted(node.exc) == "NotImplementedError"
                if bare or ast.unparse(node.exc) == "NotImplementedError()":
                    found.append(f"{path}:{node.lineno}: {function.name} is not implemented")
        empty = len(body) == 1 and ast.unparse(body[0]) in ("...", "pass")
        said = "#" in "".join(lines[function.lineno - 1 : function.end_lineno])
        if empty and not said and len(body) == len(function.body):
            found.append(f"{path}:{function.lineno}: {function.name} has no body and says not why")
    return found


def check_dangers(path: str, text: str) -> list[str]:
    """Nothing runs code from data, hides errors or goes through a shell."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{path}:{node.lineno}: bare except; name what is expected")
        elif isinstance(node, ast.Call):
            if dotted(node.func) in BANNED_CALLS:
                found.append(f"{path}:{node.lineno}: {dotted(node.func)}() is banned")
            for keyword in node.keywords:
                if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                    found.append(f"{path}:{node.lineno}: no shell; pass a list of arguments")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module] if module else [alias.name for alias in node.names]
            for name in names:
                if name.split(".")[0] in BANNED_MODULES:
                    found.append(f"{path}:{node.lineno}: {name} is banned; use the codecs")
    return found


def check_sleeps(path: str, text: str) -> list[str]:
    """Tests wait for what they mean; only on a loop of virtual time may they sleep."""
    if path in SLEEPS_ALLOWED:
        return []
    virtual = (
        path.startswith(VIRTUAL_TIME)
        or "simloop" in text
        or "loop_factory" in text
        or "mark.loop" in text
    )
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, argument = dotted(node.func), node.args[0]
        turn_only = isinstance(argument, ast.Constant) and argument.value == 0
        if name == "time.sleep" or (name == "asyncio.sleep" and not virtual and not turn_only):
            found.append(f"{path}:{node.lineno}: {name}({ast.unparse(argument)}) in a test")
    return found


# --- checks over any text ---


def check_leftovers(path: str, text: str) -> list[str]:
    """No marks of unfinished work or merging, no paths of a machine, no registry hosts."""
    rules = [
        (MARKS, "a mark of unfinished work"),
        (SHIPPED_BY_OTHERS, "a merge conflict"),
        (MACHINE_PATH, "a path of one machine"),
        (REGISTRY, "a package registry"),
    ]
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group().strip()!r} is {what}"
        for pattern, what in rules
        for match in pattern.finditer(text)
    ]


def check_form(path: str, text: str) -> list[str]:
    """Plain line ends, no trailing blanks, a newline at the end, not too large."""
    found = []
    if "\r" in text or ("\t" in text and not path.endswith("Makefile")):
        found.append(f"{path}:1: carriage returns or tabs")
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        found.append(f"{path}:1: ends with exactly one newline")
    if len(text.encode()) > FILE_BYTES_MAX:
        found.append(f"{path}:1: {len(text.encode())} bytes; at most {FILE_BYTES_MAX}")
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            found.append(f"{path}:{number}: trailing blanks")
    return found


# --- Markdown ---


def slug(title: str) -> str:
    """The anchor that hosts of Markdown give a heading."""
    kept = re.sub(r"[^\w\- ]", "", title.strip().lower())
    return kept.replace(" ", "-")


def headings_of(text: str) -> list[tuple[int, int, str]]:
    """`(line, level, title)` of each heading, code blocks left out."""
    tokens = MarkdownIt().parse(text)
    return [
        ((token.map or [0])[0] + 1, int(token.tag[1]), tokens[index + 1].content)
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def links_of(text: str) -> list[str]:
    """The targets of all links and images."""
    found = []
    for token in MarkdownIt().enable("table").parse(text):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                found.append(str(target))
    return found


def check_markdown(path: str, text: str) -> list[str]:
    """One title, first; levels that skip none; relative links and anchors that lead somewhere."""
    headings = headings_of(text)
    found = []
    if [level for _, level, _ in headings].count(1) != 1 or not text.startswith("# "):
        found.append(f"{path}:1: one title, on the first line")
    for (_, above, _), (line, level, title) in pairwise(headings):
        if level > above + 1:
            found.append(f"{path}:{line}: {title!r} skips a level")
    for target in links_of(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = (ROOT / path).parent / name if name else ROOT / path
        if name and not page.exists():
            found.append(f"{path}:1: the link {target!r} leads nowhere")
        elif anchor and page.suffix == ".md":
            body = text if not name else page.read_text(encoding="utf-8")
            if anchor not in {slug(title) for _, _, title in headings_of(body)}:
                found.append(f"{path}:1: the anchor of {target!r} is not there")
    return found


def check_changelog(path: str, text: str) -> list[str]:
    """`## Unreleased`, then dated versions, newest first; known kinds, none empty."""
    titles = [title for _, level, title in headings_of(text) if level == 2]
    found = []
    if titles[:1] != ["Unreleased"]:
        found.append(f"{path}:1: the first section is '## Unreleased'")
    versions = []
    for title in titles[1:]:
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d{2}-\d{2}", title)
        if match is None:
            found.append(f"{path}:1: {title!r} is not 'x.y.z - year-month-day'")
        else:
            versions.append(tuple(map(int, match.groups())))
    if versions != sorted(versions, reverse=True):
        found.append(f"{path}:1: versions stand newest first")
    for block in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        kind, _, body = block.partition("\n")
        body = body.split("\n## ")[0]
        if kind not in CHANGE_KINDS:
            found.append(f"{path}:1: {kind!r} is none of {', '.join(CHANGE_KINDS)}")
        if not re.search(r"^- \S", body, flags=re.MULTILINE):
            found.append(f"{path}:1: {kind!r} lists nothing")
    return found


# --- dead modules ---


def modules_used(path: str, text: str) -> set[str]:
    """The source files that a file imports, or names in a string: `toque.api.x` or `.x`."""
    folder = PurePosixPath(path).parts[0]
    used: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level == 1 and folder != "toque":
                base = [folder, *base]
            elif node.level == 0 and base[:1] == ["toque"]:
                base = base[1:]
            elif node.level == 0:
                continue
            names = [[*base, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1:] for a in node.names if a.name.startswith("toque.")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [m.split(".")[1:] for m in re.findall(r"\btoque\.\w+\.\w+", node.value)]
            if re.fullmatch(r"\.\w+", node.value):
                names.append([folder, node.value[1:]])
        else:
            continue
        used.update(f"{name[0]}/{name[1]}.py" for name in names if len(name) >= 2)
    return used - {path}


def dead_modules(texts: dict[str, str], entries: set[str]) -> list[str]:
    """Source modules that no other file uses; tests do not count as use."""
    used = set(entries)
    for path, text in texts.items():
        if not path.startswith("tests/"):
            used |= modules_used(path, text)
    modules = (p for p in texts if p.split("/")[0] in SOURCE and not p.endswith("__init__.py"))
    return sorted(p for p in modules if p not in used)


# --- the tree ---

Check = Callable[[str, str], list[str]]
EVERY_PYTHON: list[Check] = [check_lengths]
EVERY_SOURCE: list[Check] = [check_docstring, check_stubs, check_dangers]
EVERY_TEXT: list[Check] = [check_leftovers, check_form]
RULES: list[tuple[Check, list[str]]] = [
    *((check, python_files()) for check in EVERY_PYTHON),
    *((check, python_files(*SOURCE, "examples")) for check in EVERY_SOURCE),
    *(
        (check, [p for p in all_files() if p != "tests/test_tidy.py" and not p.endswith(PICTURES)])
        for check in EVERY_TEXT
    ),
    (check_sleeps, python_files("tests")),
    (check_markdown, [p for p in all_files() if p.endswith(".md")]),
    (check_changelog, ["CHANGELOG.md"]),
]


@pytest.mark.parametrize(
    ("check", "paths"), RULES, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_tree_is_tidy(check: Check, paths: list[str]) -> None:
    found = [told for path in paths for told in check(path, text_of(path))]
    assert not found, "\n" + "\n".join(found)


def test_pictures_are_few_and_small() -> None:
    for path in all_files():
        if path.endswith(PICTURES):
            assert path.startswith("docs/"), path
            assert (ROOT / path).stat().st_size <= PICTURE_BYTES_MAX, path


def test_no_module_is_dead() -> None:
    texts = {path: text_of(path) for path in python_files()}
    assert dead_modules(texts, ENTRY_MODULES | FOR_USERS_TESTS) == []
    for entry in ENTRY_MODULES:
        named = "toque." + entry.removesuffix(".py").replace("/", ".")
        assert named in text_of("pyproject.toml")


def test_sql_files_are_used() -> None:
    sources = "".join(text_of(path) for path in python_files(*SOURCE))
    ours = [p for p in all_files() if p.endswith(".sql") and not p.startswith("tests/")]
    unused = [p for p in ours if p.split("/")[-1] not in sources]
    assert unused == []


def unread_limits(limits: str, others: str) -> list[str]:
    """Limits that no code reads: a bound that stands there and bounds nothing."""
    names = re.findall(r"^([A-Z][A-Z0-9_]*) = ", limits, re.MULTILINE)
    words = Counter(re.findall(r"[A-Z][A-Z0-9_]+", limits + others))
    return [name for name in names if words[name] == 1]


def test_every_limit_is_read() -> None:
    home = "runtime/limits.py"
    others = "".join(text_of(path) for path in python_files(*SOURCE) if path != home)
    assert unread_limits(text_of(home), others) == []


def test_a_limit_that_is_not_read_is_found() -> None:
    limits = "A_MAX = 1\nB_MAX = 2\nC_MAX = B_MAX\n"
    assert unread_limits(limits, "use(limits.C_MAX)") == ["A_MAX"]


def test_long_files_are_reported() -> None:
    for path in python_files():
        size = len(text_of(path).splitlines())
        if size > FILE_LINES_SOFT:
            print(f"{path} has {size} lines; more than {FILE_LINES_SOFT} read badly")


# --- the checks can fail ---

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- a thing\n"
SEEDED: list[tuple[Check, str, str]] = [
    (check_lengths, "a.py", "x = '" + "y" * LINE_COLUMNS_MAX + "'"),
    (check_lengths, "a.py", LONG_FUNCTION),
    (check_lengths, "a.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (check_docstring, "a.py", '"""One line."""'),
    (check_docstring, "a.py", "x = 1"),
    (check_stubs, "a.py", "def f():\n    ..."),
    (check_stubs, "a.py", "class A:\n    def f(self):\n        pass"),
    (check_stubs, "a.py", "def f():\n    'Says.'\n    raise NotImplementedError"),
    (check_dangers, "a.py", "try:\n    f()\nexcept:\n    pass"),
    (check_dangers, "a.py", "import pickle"),
    (check_dangers, "a.py", "from cloudpickle import dumps"),
    (check_dangers, "a.py", "eval('1')"),
    (check_dangers, "a.py", "run('ls', shell=True)"),
    (check_sleeps, "tests/a.py", "time.sleep(1)"),
    (check_sleeps, "tests/a.py", "await asyncio.sleep(0.01)"),
    (check_sleeps, "tests/a.py", "# simloop\ntime.sleep(delay)"),
    (check_leftovers, "a.py", "# TODO: later"),
    (check_leftovers, "a.md", "see /home/someone/x"),
    (check_leftovers, "a.md", "from pypi.org"),
    (check_leftovers, "a.md", "a\n<<<<<<< ours"),
    (check_form, "a.py", "x = 1"),
    (check_form, "a.py", "x = 1 \n"),
    (check_form, "a.py", "x = 1\r\n"),
    (check_form, "a.json", "x" * FILE_BYTES_MAX + "\n"),
    (check_markdown, "a.md", "# One\n\n# Two\n"),
    (check_markdown, "a.md", "words first\n\n# One\n"),
    (check_markdown, "a.md", "# One\n\n### Three\n"),
    (check_markdown, "a.md", "# One\n\n[x](missing.md)\n"),
    (check_markdown, "a.md", "# One\n\n[x](#two)\n"),
    (check_changelog, "c.md", CHANGELOG.replace("Unreleased", "Soon") + "## x\n"),
    (check_changelog, "c.md", CHANGELOG + "\n## 0.1\n"),
    (check_changelog, "c.md", CHANGELOG.replace("Added", "Made")),
    (check_changelog, "c.md", CHANGELOG.replace("- a thing", "")),
    (check_changelog, "c.md", CHANGELOG + "\n## 0.1.0 - 2020-01-01\n\n## 0.2.0 - 2020-01-02\n"),
]

ALLOWED: list[tuple[Check, str, str]] = [
    (check_lengths, "a.py", LONG_FUNCTION.replace("    x = 1\n", "", 1)),
    (check_docstring, "a.py", '"""One line.\n\nAnd another.\n"""'),
    (check_stubs, "a.py", "class A(Protocol):\n    def f(self): ..."),
    (check_stubs, "a.py", "@abstractmethod\ndef f():\n    raise NotImplementedError"),
    (check_stubs, "a.py", "def f():\n    raise NotImplementedError('no sockets in this loop')"),
    (check_stubs, "a.py", "def close(self):\n    pass  # nothing is held"),
    (check_stubs, "a.py", "def f():\n    '''A hook: does nothing unless overridden.'''"),
    (check_dangers, "a.py", "try:\n    f()\nexcept ValueError:\n    re.compile('x')"),
    (check_sleeps, "tests/a.py", "await asyncio.sleep(0)"),
    (check_sleeps, "tests/a.py", "# on toque.runtime.simloop\nawait asyncio.sleep(3600)"),
    (check_leftovers, "a.py", "see docs/home/x and a/tmp/b"),
    (
        check_markdown,
        "a.md",
        "# One\n\n```\n# not a title\n[x](missing)\n```\n\n## Two\n[x](#two)\n",
    ),
    (check_changelog, "c.md", CHANGELOG + "\n## 0.2.0 - 2020-01-02\n\n## 0.1.0 - 2020-01-01\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), SEEDED)
def test_a_seeded_violation_is_found(check: Check, path: str, text: str) -> None:
    found = check(path, text)
    assert found
    assert all(told.startswith(f"{path}:") for told in found)


@pytest.mark.parametrize(("check", "path", "text"), ALLOWED)
def test_what_is_allowed_passes(check: Check, path: str, text: str) -> None:
    assert check(path, text) == []


def test_a_dead_module_is_found() -> None:
    texts = {
        "api/a.py": "from . import b\nfrom ..runtime.c import x\nHOST = 'toque.actors.d:Host'",
        "api/b.py": "import_module('.f', __package__)",
        "api/f.py": "",
        "runtime/c.py": "",
        "actors/d.py": "",
        "engines/e.py": "",
        "tests/t.py": "from toque.engines.e import x",
        "examples/x.py": "from toque.api import a",
    }
    assert dead_modules(texts, set()) == ["engines/e.py"]
    assert dead_modules(texts, {"engines/e.py"}) == []
