"""What a workflow's code does, as a graph of steps: read from its source, never run.

Pure. The source is parsed and walked in the order in which it would run; what matters are steps,
sleeps and waits, and the loops, branches and parallel parts around them. Everything else is left
out, and so are loops and branches that hold no step. A graph is a help for the eye: what the code
takes from elsewhere (other files, names that are made at run time) is shown as its text. Source
that can't be parsed, has no such workflow, or is too large gives None.

The nodes have the form that Cloudflare's API gives them: dicts with a `type`. A step that is made
into a task, and awaited later, tells by `starts` and `resolves` between which positions it runs;
they count from 1, and each await moves on by one while such a task is open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..engines.config import DEFAULTS
from ..engines.step import EVENT_TIMEOUT
from ..runtime import limits

Node = dict[str, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef
VERSION = 1
_STEP = "step"
_UNKNOWN = {"type": "unknown"}
_MAKERS = frozenset(
    {"asyncio.create_task", "asyncio.ensure_future", "create_task", "ensure_future"}
)
_TASKS = frozenset({"create_task", "ensure_future", "wait_for", "shield"})


class _TooLarge(Exception):
    """More nodes than anybody looks at."""


def graphs_of(files: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, Node]]:
    """The graphs of the workflows that these files define, each with its name, as they are found.

    Args:
        files: texts by name; the first that defines a workflow counts.
        names: of the classes or functions; those that are no workflow here are left out.
    """
    left = list(dict.fromkeys(names))
    for text in files.values():
        if not left:
            return
        if len(text) > limits.GRAPH_SOURCE_CHARS_MAX:
            continue
        try:
            module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for name in left[:]:
            graph = _drawn(module, name)
            if graph is not None:
                left.remove(name)
                yield name, graph


def graph_of(files: Mapping[str, str], class_name: str) -> Node | None:
    """The graph of one workflow of these files; None: there is none. See `graphs_of`."""
    return dict(graphs_of(files, [class_name])).get(class_name)


def _drawn(module: ast.Module, class_name: str) -> Node | None:
    reader = _Reader(module)
    try:
        nodes = reader.workflow(class_name)
    except (ValueError, RecursionError, MemoryError, _TooLarge):
        return None
    if nodes is None:
        return None
    start = {
        "type": "start",
        "class_name": class_name,
        "functions": {},
        "nodes": [],
        "payload": _UNKNOWN,
    }
    workflow = {
        "class_name": class_name,
        "functions": reader.functions,
        "nodes": [start, *nodes],
        "payload": _UNKNOWN,
    }
    return {"version": VERSION, "workflow": workflow}


def _text(node: ast.AST | None, default: str = "") -> str:
    """A value as people read it: a text as it is, an f-string without its quotes, else source."""
    if node is None:
        return default
    if isinstance(node, ast.Constant):
        shown = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        shown = "".join(
            f"{{{ast.unparse(part.value)}}}"
            if isinstance(part, ast.FormattedValue)
            else _text(part)
            for part in node.values
        )
    else:
        shown = ast.unparse(node)
    return shown[: limits.GRAPH_TEXT_CHARS_MAX]


def _duration(node: ast.AST | None, default: int | str) -> float | str:
    """Milliseconds of a number (which is in seconds), else the text."""
    if node is None:
        return default
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value * 1000
    return _text(node)


def _whole(node: ast.AST | None, default: int) -> int:
    """A whole number that stands there as such."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) else default


def _argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if len(call.args) > index and not any(isinstance(a, ast.Starred) for a in call.args[:index]):
        return call.args[index]
    return None


def _fields(node: ast.expr | None) -> dict[str, ast.expr]:
    """The entries of a dict display, or the keywords of a call such as `StepConfig(...)`."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
    if isinstance(node, ast.Call):
        return {word.arg: word.value for word in node.keywords if word.arg}
    return {}


def _config(node: ast.expr | None) -> Node:
    given = _fields(node)
    retries = _fields(given.get("retries"))
    backoff = _text(retries.get("backoff"), DEFAULTS.backoff)
    return {
        "retries": {
            "limit": _whole(retries.get("limit"), DEFAULTS.limit),
            "delay": _duration(retries.get("delay"), DEFAULTS.delay_ms or 0),
            "backoff": backoff if backoff in ("constant", "linear") else "exponential",
        },
        "timeout": _duration(given.get("timeout"), DEFAULTS.timeout_ms),
    }


def _is_step(nodes: Iterable[Node]) -> bool:
    return any(node["type"] != "break" for node in nodes)


def _one(nodes: list[Node]) -> list[Node]:
    """Nodes that belong together as one."""
    return [{"type": "block", "nodes": nodes}] if len(nodes) > 1 else nodes


class _Declared:
    """A step that was declared by `@step.do(...)`; calling it runs it."""

    def __init__(self, function: Function, mark: ast.expr) -> None:
        call = mark if isinstance(mark, ast.Call) else None
        name = _argument(call, 0, "name") if call else None
        self.name = _text(name, function.name)
        self.config = _argument(call, 2, "config") if call else None
        self.is_concurrent = call is not None and _text(_argument(call, 9, "concurrent")) == "True"
        listed = _argument(call, 9, "depends") if call else None
        taken = [argument.arg for argument in function.args.args]
        if isinstance(listed, ast.List | ast.Tuple):
            taken = [_text(each) for each in listed.elts]
        self.needs = taken
        self.was_run = False


class _Reader:
    """Walks one module. `functions`: those with steps in them that were called."""

    def __init__(self, module: ast.Module) -> None:
        self.functions: dict[str, Node] = {}
        self._module = module
        self._known: dict[str, Function] = {
            node.name: node for node in module.body if isinstance(node, Function)
        }
        self._steps: dict[str, _Declared] = {}
        self._names = {_STEP}
        self._walked: dict[str, bool] = {}
        self._left = limits.GRAPH_NODES_MAX
        self._open: dict[str, Node] = {}  # tasks that nobody has awaited yet, by variable
        self._position = 1

    def workflow(self, class_name: str) -> list[Node] | None:
        """The nodes of a workflow's `run`; None: it is not in this module."""
        run = self._known.get(class_name)
        classes = {node.name: node for node in self._module.body if isinstance(node, ast.ClassDef)}
        if class_name in classes:
            run = self._methods(classes, class_name).get("self.run")
        if run is None:
            return None
        if len(run.args.args) > 1:
            self._names.add(run.args.args[-1].arg)
        nodes = self._body(run.body)
        if nodes and nodes[-1]["type"] == "break":  # where `run` ends anyway
            nodes.pop()
        return nodes

    def _methods(self, classes: dict[str, ast.ClassDef], name: str) -> dict[str, Function]:
        """The methods of a class and of its bases in this module."""
        seen: list[str] = []
        queue = [name]
        while queue:
            one = queue.pop(0)
            if one in classes and one not in seen:
                seen.append(one)
                queue += [_text(base) for base in classes[one].bases]
        for one in reversed(seen):
            for node in classes[one].body:
                if isinstance(node, Function):
                    self._known[f"self.{node.name}"] = node
        return self._known

    # --- statements ---

    def _body(self, statements: Iterable[ast.stmt]) -> list[Node]:
        found: list[Node] = []
        for statement in statements:
            found += self._statement(statement)
        return found

    def _node(self, node_type: str, **fields: Any) -> list[Node]:
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        return [{"type": node_type, **fields}]

    def _statement(self, node: ast.stmt) -> list[Node]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node)
                return []
            case ast.ClassDef():
                return []
            case ast.Return():
                found = self._inner(node)
                ends = bool(found) and found[-1]["type"] == "break"
                return found if ends else found + self._node("break", kind="return")
            case ast.Break():
                return self._node("break", kind="break")
            case ast.If():
                return self._if(node)
            case ast.For():
                before = self._value(node.iter)
                return before + self._loop(self._body(node.body)) + self._body(node.orelse)
            case ast.AsyncFor():  # what is iterated over is asked each time
                looped = self._loop(self._value(node.iter) + self._body(node.body))
                return looped + self._body(node.orelse)
            case ast.While():
                looped = self._loop(self._value(node.test) + self._body(node.body))
                return looped + self._body(node.orelse)
            case ast.Try() | ast.TryStar():
                return self._try(node)
            case ast.With() | ast.AsyncWith():
                return self._with(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                return self._assigned(name, call)
            case ast.Match():
                return self._match(node)
            case _:
                return self._inner(node)

    def _define(self, node: Function) -> None:
        for mark in node.decorator_list:
            target = mark.func if isinstance(mark, ast.Call) else mark
            if self._method_of_step(target) == "do":
                self._steps[node.name] = _Declared(node, mark)
                return
        self._known[node.name] = node
        self._walked.pop(node.name, None)

    def _loop(self, nodes: list[Node]) -> list[Node]:
        return self._node("loop", nodes=nodes) if _is_step(nodes) else []

    def _if(self, node: ast.If) -> list[Node]:
        before: list[Node] = self._value(node.test)
        branches: list[Node] = [{"condition": _text(node.test), "nodes": self._body(node.body)}]
        rest = node.orelse
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            inner = rest[0]
            before += self._value(inner.test)
            branches.append({"condition": _text(inner.test), "nodes": self._body(inner.body)})
            rest = inner.orelse
        if rest:
            branches.append({"condition": None, "nodes": self._body(rest)})
        return before + self._branches("if", branches)

    def _branches(self, node_type: str, branches: list[Node], **fields: Any) -> list[Node]:
        if not any(branch["nodes"] for branch in branches):
            return []
        return self._node(node_type, branches=branches, **fields)

    def _match(self, node: ast.Match) -> list[Node]:
        branches = []
        for case in node.cases:
            guard = f" if {_text(case.guard)}" if case.guard else ""
            condition = None if _text(case.pattern) == "_" else _text(case.pattern) + guard
            branches.append({"condition": condition, "nodes": self._body(case.body)})
        subject = self._value(node.subject)
        return subject + self._branches("switch", branches, discriminant=_text(node.subject))

    def _try(self, node: ast.Try | ast.TryStar) -> list[Node]:
        parts: list[tuple[str, list[Node]]] = [
            ("try_block", self._body([*node.body, *node.orelse])),
            ("catch_block", [n for one in node.handlers for n in _one(self._body(one.body))]),
            ("finally_block", self._body(node.finalbody)),
        ]
        if not any(nodes for _, nodes in parts):
            return []
        blocks = {
            name: {"type": "block", "nodes": nodes} if nodes else None for name, nodes in parts
        }
        return self._node("try", **blocks)

    def _with(self, node: ast.With | ast.AsyncWith) -> list[Node]:
        entered = [n for item in node.items for n in self._value(item.context_expr)]
        nodes = self._body(node.body)
        if any(_text(item.context_expr).endswith("TaskGroup()") for item in node.items):
            return entered + self._parallel("all", nodes)
        return entered + nodes

    # --- expressions ---

    def _inner(self, node: ast.AST) -> list[Node]:
        return [n for child in ast.iter_child_nodes(node) for n in self._value(child)]

    def _value(self, node: ast.AST | None) -> list[Node]:
        """What a value's making does, in order."""
        match node:
            case None | ast.Lambda():
                return []
            case ast.Call():
                return self._call(node)
            case ast.Await(value=value):
                return self._awaited(value)
            case ast.IfExp():
                arms = [(_text(node.test), node.body), (None, node.orelse)]
                branches = [{"condition": c, "nodes": self._value(arm)} for c, arm in arms]
                return self._value(node.test) + self._branches("if", branches)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehended(node, [node.elt])
            case ast.DictComp():
                return self._comprehended(node, [node.key, node.value])
            case _:
                return self._inner(node)

    def _assigned(self, name: str, call: ast.Call) -> list[Node]:
        found = self._value(call)
        if found and "name" in found[-1] and _text(call.func) in _MAKERS:
            found[-1]["starts"] = self._position
            self._open[name] = found[-1]
        return found

    def _awaited(self, value: ast.expr) -> list[Node]:
        was_open = bool(self._open)
        if isinstance(value, ast.Name) and value.id in self._steps:
            found = self._declared(value.id)
        else:
            found = self._value(value)
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        if "FIRST_" in _text(value):  # which of them, nobody knows
            names.clear()
        ended = [self._open.pop(name) for name in sorted(names & self._open.keys())]
        if ended or (was_open and found):
            self._position += 1
        for task in ended:
            task["resolves"] = self._position
        return found

    def _comprehended(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        made: list[ast.expr],
    ) -> list[Node]:
        before = self._value(node.generators[0].iter)
        inner = [test for one in node.generators for test in one.ifs]
        nodes = [n for part in [*inner, *made] for n in self._value(part)]
        return before + self._loop(nodes)

    def _method_of_step(self, target: ast.expr) -> str:
        """`do` of `step.do`; empty if it is something else."""
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            return target.attr if target.value.id in self._names else ""
        return ""

    def _call(self, call: ast.Call) -> list[Node]:
        method = self._method_of_step(call.func)
        if method:
            return self._step(method, call)
        name = _text(call.func)
        last = name.rpartition(".")[2]
        if last in ("gather", "wait", "as_completed"):
            return self._several(last, call)
        if name in self._steps:
            return self._declared(name)
        arguments = [n for part in self._arguments(call, last) for n in self._value(part)]
        return self._inner(call.func) + arguments + self._function(name)

    @staticmethod
    def _arguments(call: ast.Call, name: str) -> Iterator[ast.expr]:
        given = call.args[:1] if name in _TASKS else call.args
        yield from given
        yield from (word.value for word in call.keywords)

    def _function(self, name: str) -> list[Node]:
        """A call of a function of this module, if there are steps in it."""
        function = self._known.get(name)
        if function is None or name == "self.run":
            return []
        if name not in self._walked:
            self._walked[name] = True  # one that calls itself is taken to have steps
            outer, self._names = (
                self._names,
                self._names
                | {
                    each.arg
                    for each in function.args.args
                    if "WorkflowStep" in _text(each.annotation)
                },
            )
            tasks, self._open, at, self._position = self._open, {}, self._position, 1
            nodes = self._body(function.body)
            self._names, self._open, self._position = outer, tasks, at
            if nodes and nodes[-1]["type"] == "break":
                nodes.pop()
            self._walked[name] = _is_step(nodes)
            if self._walked[name]:
                made = self._node("function_def", name=name, nodes=nodes)
                self.functions[name] = made[0]
        return self._node("function_call", name=name) if self._walked[name] else []

    def _several(self, name: str, call: ast.Call) -> list[Node]:
        """`asyncio.gather`, `wait` and `as_completed`: what they are given, at the same time."""
        words = {word.arg: _text(word.value) for word in call.keywords}
        kind = "all"
        if name == "gather" and words.get("return_exceptions") == "True":
            kind = "all_settled"
        elif name == "wait":
            kind = "race" if "FIRST_" in words.get("return_when", "") else "all_settled"
        parts = list(call.args)
        if name != "gather" and parts and isinstance(parts[0], ast.List | ast.Set | ast.Tuple):
            parts = list(parts[0].elts)
        return self._parallel(kind, [n for part in parts for n in _one(self._value(part))])

    def _parallel(self, kind: str, nodes: list[Node]) -> list[Node]:
        return self._node("parallel", kind=kind, nodes=nodes) if _is_step(nodes) else []

    def _declared(self, name: str) -> list[Node]:
        """A declared step, after those whose results it takes and that were not run before."""
        step = self._steps[name]
        step.was_run = True
        parts = []
        for need in step.needs:
            if need in self._steps and not self._steps[need].was_run:
                parts.append(self._declared(need))
        before = [node for part in parts for node in part]
        if step.is_concurrent and len(parts) > 1:
            before = self._parallel("all", [node for part in parts for node in _one(part)])
        made = self._node("step_do", name=step.name, config=_config(step.config), nodes=[])
        return before + made

    def _step(self, method: str, call: ast.Call) -> list[Node]:
        name = _text(_argument(call, 0, "name"))
        match method:
            case "do":
                config = _config(_argument(call, 2, "config"))
                return self._node("step_do", name=name, config=config, nodes=[])
            case "sleep":
                duration = _duration(_argument(call, 1, "duration"), "")
                return self._node("step_sleep", name=name, duration=duration)
            case "sleep_until":
                until = _text(_argument(call, 1, "when"))
                return self._node("step_sleep_until", name=name, timestamp=until)
            case "wait_for_event":
                timeout = _duration(_argument(call, 2, "timeout"), EVENT_TIMEOUT)
                return self._wait(name, _text(_argument(call, 1, "event_type")), timeout)
            case "events":
                event_type = _text(_argument(call, 0, "event_type"))
                name = _text(_argument(call, 9, "name"), event_type)
                return self._wait(name, event_type, _duration(_argument(call, 9, "timeout"), ""))
            case "start_child" | "run_child":
                return self._node("step_do", name=name, config=_config(None), nodes=[])
            case "continue_as_new":
                return self._node("break", kind="return")
            case _:
                return []

    def _wait(self, name: str, event_type: str, timeout: float | str) -> list[Node]:
        options = {"event_type": event_type, "timeout": timeout}
        return self._node("step_wait_for_event", name=name, options=options, payload=_UNKNOWN)
