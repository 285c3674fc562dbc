"""Writes api/client_blocking*.py: the client's blocking twin, made from the async client.

Each public method gets the same name, parameters and docstring, without `async`; it runs the async
one and waits. `make docs` runs this; a test holds that the files are up to date.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS, CLIENT_FILE = "client_blocking_parts.py", "client_blocking.py"
TWINS = {
    "AccountsClient": "BlockingAccounts",
    "TokensClient": "BlockingTokens",
    "LimitsClient": "BlockingLimits",
    "ScriptsClient": "BlockingScripts",
    "MigrationsClient": "BlockingMigrations",
    "Instance": "BlockingInstance",
    "Client": "BlockingClient",
}
NAMES = {**TWINS, "AsyncIterator": "Iterator"}
SOURCES = ("client_admin.py", "client_instance.py", "client.py")
OWN = {"close"}
"""Methods that are written by hand below."""

HEAD = '''"""The blocking client: the async client's twin, for code without `async`.

    with toque.connect_blocking("http://127.0.0.1:8787", token) as client:
        instance = client.create_instance("orders", "order-42", {"order": 42})
        status = instance.wait(timeout=60)

Made by docs/twin.py from the async client; change that, then run `make docs`.
"""

from __future__ import annotations

'''
PARTS_HEAD = '''"""Parts of the blocking client for whoever runs a server: see `client_admin`.

Made by docs/twin.py from the async client; change that, then run `make docs`.
"""

from __future__ import annotations

'''
INSTANCE = '''
@property
def workflow(self) -> str:
    """The workflow's name."""
    return self._inner.workflow

@property
def id(self) -> str:
    """The instance's id."""
    return self._inner.id

@property
def last(self) -> InstanceStatus | None:
    """The last status that this handle saw; None if none."""
    return self._inner.last

def __repr__(self) -> str:
    return repr(self._inner)
'''
CLIENT = '''
def close(self) -> None:
    """Close connections, also those of clients that `with_options` gave."""
    self._portal.close(self._inner.close)

def __enter__(self) -> BlockingClient:
    return self

def __exit__(self, *error: object) -> None:
    self.close()
'''


class Renamed(ast.NodeTransformer):
    """The async names as the blocking ones."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A name."""
        return ast.Name(NAMES.get(node.id, node.id), node.ctx)


def parsed(name: str) -> ast.Module:
    """A file of api/."""
    return ast.parse((ROOT / "api" / name).read_text(encoding="utf-8"))


def forwarded(arguments: ast.arguments) -> str:
    """The arguments of a method, to be handed on."""
    words = [each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self"]
    words += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        words.append(f"**{arguments.kwarg.arg}")
    return ", ".join(words)


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Their names."""
    return {ast.unparse(each) for each in node.decorator_list}


def body_of(node: ast.FunctionDef | ast.AsyncFunctionDef, called: str) -> str:
    """What the twin does."""
    returns = "" if node.returns is None else ast.unparse(node.returns)
    call = called if "property" in decorators(node) else f"{called}({forwarded(node.args)})"
    if returns.startswith("AsyncIterator["):
        return f"return self._portal.iterate({call})"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"self._portal.run({call})"
    if returns in TWINS:
        return f"return {TWINS[returns]}(self._portal, {call})"
    return call if returns == "None" else f"return {call}"


def twin(node: ast.FunctionDef | ast.AsyncFunctionDef, called: str, name: str) -> ast.FunctionDef:
    """The blocking form of a method or function."""
    if "overload" in decorators(node):
        body = node.body
    else:
        docstring = [node.body[0]] if ast.get_docstring(node) is not None else []
        body = [*docstring, *ast.parse(body_of(node, called)).body]
    made = ast.FunctionDef(
        name=name,
        args=Renamed().visit(node.args),
        body=body,
        decorator_list=node.decorator_list,
        returns=None if node.returns is None else Renamed().visit(node.returns),
        type_params=[],
    )
    return ast.fix_missing_locations(made)


def class_of(node: ast.ClassDef) -> ast.ClassDef:
    """The blocking form of a class."""
    body: list[ast.stmt] = [node.body[0]]  # its docstring
    for each in node.body:
        is_method = isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_method and not each.name.startswith("_") and each.name not in OWN:
            body.append(twin(each, f"self._inner.{each.name}", each.name))
    extra = {"Instance": INSTANCE, "Client": CLIENT}.get(node.name, "")
    body += ast.parse(extra).body
    base = ast.parse(f"Blocking[{node.name}]", mode="eval").body
    made = ast.ClassDef(TWINS[node.name], [base], [], body, [], type_params=[])
    return ast.fix_missing_locations(made)


def imports_for(used: set[str]) -> list[ast.stmt]:
    """The imports of the async files that the twin needs, and its own."""
    found: list[ast.stmt] = []
    for name in (*SOURCES, "client_http.py"):
        for node in parsed(name).body:
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                wanted = [each for each in node.names if (each.asname or each.name) in used]
                if wanted:
                    found.append(ast.ImportFrom(node.module, wanted, node.level))
    own = {
        "client": ["Client"],
        "client_admin": [name for name in TWINS if name.endswith("sClient")],
        "client_http": ["connect"],
        "client_instance": ["Instance"],
        "client_portal": ["Blocking", "Portal"],
        PARTS.removesuffix(".py"): [TWINS[name] for name in TWINS if name.endswith("sClient")],
    }
    for module, names in own.items():
        wanted = [ast.alias(name) for name in names if name in used]
        if wanted:
            found.append(ast.ImportFrom(module, wanted, 1))
    found.append(ast.ImportFrom("collections.abc", [ast.alias("Iterator")], 0))
    found.append(ast.ImportFrom("typing", [ast.alias("TypeVar")], 0))
    return found


def classes_of(names: tuple[str, ...]) -> list[ast.stmt]:
    """The twins of all classes of some files, in the files' order."""
    return [
        class_of(node)
        for name in names
        for node in parsed(name).body
        if isinstance(node, ast.ClassDef) and node.name in TWINS
    ]


def connecting() -> ast.FunctionDef:
    """`connect_blocking`. The client is made first: it checks what is given."""
    for node in parsed("client_http.py").body:
        if isinstance(node, ast.FunctionDef) and node.name == "connect":
            made = twin(node, "connect", "connect_blocking")
            inner = f"client = connect({forwarded(node.args)})"
            body = ast.parse(f"{inner}\nreturn BlockingClient(Portal(), client)").body
            made.body = [made.body[0], *body]
            return made
    raise SystemExit("client_http.py has no connect()")


def texts() -> dict[str, str]:
    """The files' texts, in the house format."""
    return {
        PARTS: text(PARTS, PARTS_HEAD, classes_of(SOURCES[:1])),
        CLIENT_FILE: text(CLIENT_FILE, HEAD, [*classes_of(SOURCES[1:]), connecting()]),
    }


def text(name: str, head: str, found: list[ast.stmt]) -> str:
    """One file's text."""
    source = "\n\n\n".join(map(ast.unparse, found))
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    own = {node.name for node in found if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    constants = {
        ast.unparse(node): None
        for file in SOURCES
        for node in parsed(file).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in used
    }
    imports = "\n".join(map(ast.unparse, imports_for(used - own)))
    return formatted(name, f"{head}{imports}\n\n" + "\n".join(constants) + f"\n\n\n{source}\n")


def formatted(name: str, source: str) -> str:
    """The source as `make format` would have it."""
    for words in (["check", "--select", "I,F401,F811", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--stdin-filename", f"api/{name}", "-"],
            input=source,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        source = done.stdout
    return source


if __name__ == "__main__":
    for name, source in texts().items():
        path = ROOT / "api" / name
        if not path.exists() or path.read_text(encoding="utf-8") != source:
            path.write_text(source, encoding="utf-8")
            print(f"{name}: rewritten")
