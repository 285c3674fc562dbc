"""The graph of a workflow's steps is read from its source, in the order in which it would run."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from toque.api.graph import graph_of
from toque.api.graph_child import draw_graphs, read_graphs
from toque.runtime import limits


def graph(source: str, class_name: str = "W") -> Any:
    found = graph_of({"app.py": dedent(source)}, class_name)
    return None if found is None else found["workflow"]


def run_nodes(body: str, head: str = "") -> Any:
    """The nodes of a workflow whose `run` has that body."""
    lines = "\n".join(f"        {line}" for line in dedent(body).strip().splitlines())
    source = f"{dedent(head)}\nclass W:\n    async def run(self, event, step):\n{lines}\n"
    found = graph(source)
    assert found["nodes"][0]["type"] == "start"
    return found["nodes"][1:]


def names(nodes: Any) -> Any:
    """Nodes in short: steps by name, others by type with what is in them."""
    short: list[Any] = []
    for node in nodes:
        kind = node["type"]
        if kind in ("if", "switch"):
            short.append((kind, [(b["condition"], names(b["nodes"])) for b in node["branches"]]))
        elif kind == "try":
            blocks = (node[f"{part}_block"] for part in ("try", "catch", "finally"))
            short.append((kind, [block and names(block["nodes"]) for block in blocks]))
        elif kind in ("loop", "block", "parallel"):
            short.append((node.get("kind", kind), names(node["nodes"])))
        else:
            short.append(node.get("name", node.get("kind")))
    return short


def test_each_kind_of_step_has_its_fields() -> None:
    config = '{"retries": {"limit": 2, "delay": "5 seconds", "backoff": "linear"}, "timeout": 30}'
    made = run_nodes(f"""
        await step.do("charge", pay, {config})
        await step.do(name="tell", fn=tell)
        await step.sleep("nap", 1.5)
        await step.sleep("rest", "1 hour")
        await step.sleep_until("then", event.payload["at"])
        await step.wait_for_event("ask", "answer", timeout="2 days")
        await step.wait_for_event(f"ask {{n}}", "answer")
    """)
    default = {"retries": {"limit": 5, "delay": 10_000, "backoff": "exponential"}}
    assert [node["type"] for node in made] == [
        *["step_do"] * 2, *["step_sleep"] * 2, "step_sleep_until", *["step_wait_for_event"] * 2
    ]  # fmt: skip
    assert made[0]["config"] == {
        "retries": {"limit": 2, "delay": "5 seconds", "backoff": "linear"},
        "timeout": 30_000,
    }
    assert made[1]["config"] == {**default, "timeout": 600_000}
    assert [made[2]["duration"], made[3]["duration"]] == [1500, "1 hour"]
    assert made[4]["timestamp"] == "event.payload['at']"
    assert made[5]["options"] == {"event_type": "answer", "timeout": "2 days"}
    assert made[6]["name"] == "ask {n}"


def test_a_child_is_drawn_as_a_step() -> None:
    made = run_nodes("""
        page = await step.start_child("page", SyncPage, {"n": 1})
        await step.run_child("other", "SyncPage", id="x")
        await page.result()
    """)
    assert [(node["type"], node["name"]) for node in made] == [
        ("step_do", "page"),
        ("step_do", "other"),
    ]


def test_control_flow_around_steps() -> None:
    assert names(
        run_nodes("""
            if a:
                await step.do("one", f)
            elif b:
                return 1
            else:
                await step.do("two", f)
            for x in range(3):
                await step.do("three", f)
                if x:
                    break
            while await step.do("four", f):
                pass
            try:
                await step.do("five", f)
            except ValueError:
                await step.do("six", f)
            finally:
                await step.do("seven", f)
            match kind:
                case "a" if big:
                    await step.do("eight", f)
                case _:
                    await step.do("nine", f)
            return await step.do("ten", f)
        """)
    ) == [
        ("if", [("a", ["one"]), ("b", ["return"]), (None, ["two"])]),
        ("loop", ["three", ("if", [("x", ["break"])])]),
        ("loop", ["four"]),
        ("try", [["five"], ["six"], ["seven"]]),
        ("switch", [("'a' if big", ["eight"]), (None, ["nine"])]),
        "ten",
    ]


def test_what_runs_at_the_same_time() -> None:
    assert names(
        run_nodes("""
            await asyncio.gather(step.do("a", f), step.do("b", f))
            await asyncio.gather(step.do("a", f), return_exceptions=True)
            await asyncio.gather(*(step.do(f"page {n}", f) for n in pages))
            async with asyncio.TaskGroup() as group:
                group.create_task(step.do("c", f))
            await asyncio.wait([t1, step.do("d", f)], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait_for(step.do("e", f), 5)
            await asyncio.gather(one, two)
        """)
    ) == [
        ("all", ["a", "b"]),
        ("all_settled", ["a"]),
        ("all", [("loop", ["page {n}"])]),
        ("all", ["c"]),
        ("race", ["d"]),
        "e",
    ]


def test_tasks_tell_when_they_start_and_resolve() -> None:
    nodes = run_nodes("""
        await step.do("before", f)
        one = asyncio.create_task(step.do("one", f))
        two = asyncio.ensure_future(step.sleep("two", 5))
        await step.do("between", f)
        three = asyncio.create_task(step.do("three", f))
        await one
        await asyncio.gather(two, three)
        await step.do("after", f)
        four = asyncio.create_task(step.do("four", f))
        await asyncio.wait([four, step.do("five", f)], return_when=asyncio.FIRST_COMPLETED)
    """)
    told = {node["name"]: (node.get("starts"), node.get("resolves")) for node in nodes[:-1]}
    assert told == {
        "before": (None, None),
        "one": (1, 3),
        "two": (1, 4),
        "between": (None, None),
        "three": (2, 4),
        "after": (None, None),
        "four": (4, None),
    }


def test_declared_steps_run_where_they_are_called_after_what_they_need() -> None:
    assert names(
        run_nodes("""
            @step.do("load")
            async def load(): ...

            @step.do
            async def count(): ...

            @step.do("merge", concurrent=True)
            async def merge(load, count): ...

            await merge()
            await load
        """)
    ) == [("all", ["load", "count"]), "merge", "load"]


def test_functions_with_steps_are_shown_apart() -> None:
    source = """
        async def helper(pipe: toque.WorkflowStep, n):
            await pipe.do("inner", f)
            if n:
                await helper(pipe, n - 1)

        def plain(): return 1

        class Base:
            async def after(self, step):
                await step.do("after", f)

        class W(Base):
            async def run(self, event, step):
                plain()
                await helper(step, 3)
                await self.after(step)
    """
    found = graph(source)
    assert names(found["nodes"][1:]) == ["helper", "self.after"]
    assert {node["type"] for node in found["nodes"][1:]} == {"function_call"}
    assert names(found["functions"]["helper"]["nodes"]) == ["inner", ("if", [("n", ["helper"])])]
    assert found["functions"]["self.after"]["type"] == "function_def"


def test_a_function_may_be_a_workflow_and_its_step_have_another_name() -> None:
    source = """
        @toque.workflow(name="other")
        async def hello(event, s):
            await s.do("greet", lambda: s)
    """
    assert names(graph(source, "hello")["nodes"][1:]) == ["greet"]


@pytest.mark.parametrize(
    "source",
    [
        "class W(",
        "class Other: ...",
        "\0",
        "W = " + "(" * 500 + ")" * 500,
        "class W:\n    async def run(self, event, step):\n"
        + "        await step.do('a', f)\n" * (limits.GRAPH_NODES_MAX + 1),
        "#" * (limits.GRAPH_SOURCE_CHARS_MAX + 1) + "\nclass W:\n async def run(self): ...",
    ],
    ids=["syntax", "no workflow", "null byte", "deep", "many nodes", "large"],
)
def test_no_graph_is_no_error(source: str) -> None:
    assert graph(source) is None


def test_source_is_never_run() -> None:
    assert names(run_nodes('await step.do("a", 1 / 0)', head="raise SystemExit")) == ["a"]


async def test_source_that_is_too_hard_costs_no_more_than_its_budget() -> None:
    easy = "class {}:\n    async def run(self, event, step):\n        await step.do('a', f)\n"
    hard = easy.format("Hard") + "x = f'" + "{x}" * 200_000 + "'\n"
    files = {"hard.py": hard, "app.py": easy.format("Easy"), "pkg/last.py": easy.format("Last")}
    drawn = read_graphs(await draw_graphs(files, ["Hard", "Easy", "Last"], cpu_s=1))
    assert drawn == {"Easy": graph_of({"app.py": files["app.py"]}, "Easy")}


def test_graphs_that_were_cut_off_are_left_out() -> None:
    assert read_graphs(b'["A",{"version":1}]\n["B",{"ver') == {"A": {"version": 1}}
    assert read_graphs(b"") == {}
