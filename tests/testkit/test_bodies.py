"""Bodies under simulation: replaced, noted, cut off, and told what there is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testkit.shop import Cart, Order, Receipt, two_steps
from toque import (
    Client,
    InstanceAlreadyExists,
    InstanceFailed,
    InstanceNotFound,
    InvalidArgument,
    NonRetryableError,
    StepFailed,
    WorkflowEntrypoint,
    workflow,
)
from toque.testing import MockContext, SimFactory, Simulation


@workflow
async def payment(event: Any, step: Any) -> list[Any]:
    """A step with an argument, another use of the same name, and one that fails at times."""

    @step.do("amount")
    async def amount() -> int:
        return 7

    async def charge(amount: int, ctx: Any) -> str:
        return f"{amount} by attempt {ctx.attempt}"

    first = await step.do("charge", depends=[amount])(charge)()
    return [first, await step.do("charge", lambda: "again")]


@workflow
async def booking(event: Any, step: Any) -> None:
    """Books, and then fails, so that what is booked is undone."""
    await step.do("book", lambda: "room 1", rollback=lambda ctx, output: None)
    raise NonRetryableError("no car")


def test_a_mock_gives_what_it_is_told(toque_sim: SimFactory) -> None:
    sim = toque_sim([payment, Order])
    charge = sim.mock_step("charge", returns="mocked")
    assert sim.create(payment).result() == ["mocked", "mocked"]
    assert [(one.step, one.args, one.result) for one in charge.calls] == [
        ("charge-1", {"amount": 7}, "mocked"),
        ("charge-2", {}, "mocked"),
    ]
    sim.mock_step("charge-2", returns=None)
    assert sim.create(payment).result() == ["mocked", None]
    sim.mock_step("charge", returns=8, workflow=Order)
    assert sim.create(payment).result() == ["mocked", None]


def test_a_mock_raises_and_the_step_is_tried_again(toque_sim: SimFactory) -> None:
    sim = toque_sim(Order)
    down = sim.mock_step("charge", raises=ConnectionError("down"), times=2, takes="30 s")
    order = sim.create(Order, Cart(7))
    sim.advance("5 days")
    order.send_event("packed")
    assert order.result(Receipt).paid == 7
    assert order.steps()["charge"].attempts == 3
    assert [one.error for one in down.calls] == ["ConnectionError: down"] * 2
    tries = order.executions("charge")
    assert [(one.attempt, one.ended) for one in tries] == [
        (1, "errored"),
        (2, "errored"),
        (3, "complete"),
    ]
    sim.mock_step("charge", raises=NonRetryableError("stolen card"))
    with pytest.raises(InstanceFailed, match="stolen card"):
        sim.create(Order, Cart(7)).result()


def test_a_mock_takes_what_it_names(toque_sim: SimFactory) -> None:
    sim = toque_sim(payment)
    seen: list[MockContext] = []

    def charge(ctx: MockContext) -> str:
        seen.append(ctx)
        if ctx.count == 1 and ctx.attempt == 1:
            raise ValueError("once")
        return f"use {ctx.count}"

    async def amount() -> int:
        await asyncio.sleep(60)
        return 9

    sim.mock_step("amount", amount)
    sim.mock_step("charge", charge)
    one = sim.create(payment, id="p-1")
    assert one.result() == ["use 1", "use 2"]
    assert [(c.step, c.count, c.attempt, dict(c.args)) for c in seen] == [
        ("charge", 1, 1, {"amount": 9}),
        ("charge", 1, 2, {"amount": 9}),
        ("charge", 2, 1, {}),
    ]
    assert (seen[0].workflow, seen[0].instance) == ("payment", "p-1")
    sim.mock_step("charge-1", lambda amount: f"{amount} at once")
    assert sim.create(payment).result() == ["9 at once", "use 2"]
    sim.mock_step("charge", returns=7)
    with pytest.raises(InstanceFailed, match="does not fit the return annotation of its body"):
        sim.create(payment).result()
    sim.mock_step("charge", lambda price: price)
    with pytest.raises(InstanceFailed, match="takes price; the step gives ctx, amount"):
        sim.create(payment).result()


def test_rollbacks_are_bodies_too(toque_sim: SimFactory) -> None:
    sim = toque_sim(booking)
    undo = sim.mock_step("rollback book", lambda ctx: None)
    one = sim.create(booking)
    assert one.wait().status == "errored"
    assert [call.args for call in undo.calls] == [{"output": "room 1"}]
    assert one.steps()["rollback book"].state == "complete"


def test_wrong_mocks_are_refused(toque_sim: SimFactory) -> None:
    sim = toque_sim(payment)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("one of them", {}),
        ("one of them", {"returns": 1, "raises": ValueError}),
        ("must be an exception", {"raises": "down"}),
        ("`times` is 0", {"returns": 1, "times": 0}),
        ("takes", {"returns": 1, "takes": "long"}),
        ("which is no function", {"body": 7}),
        ("known are payment", {"returns": 1, "workflow": "paymnt"}),
    ]
    for match, options in wrong:
        with pytest.raises(InvalidArgument, match=match):
            sim.mock_step("charge", **options)
    with pytest.raises(InvalidArgument, match="must be its name"):
        sim.mock_step(7, returns=1)  # type: ignore[arg-type]
    assert sim.create(payment).result()[1] == "again"


def test_what_a_crash_cuts_off_runs_again(toque_sim: SimFactory) -> None:
    sim = toque_sim(two_steps)
    one = sim.create(two_steps)
    sim.advance("1 minute")
    sim.crash(down="10 s")
    assert one.result() == ["quick", "slow"]
    assert [(e.step, e.attempt, e.ended) for e in one.executions()] == [
        ("quick-1", 1, "complete"),
        ("slow-1", 1, "cut off"),
        ("slow-1", 2, "complete"),
    ]
    slow = one.steps()["slow"]
    assert (slow.interruptions, slow.state) == (1, "complete")
    assert "CRASH of shard d0, as the test says" in sim.story()


def test_a_body_out_of_time_is_cut_off(toque_sim: SimFactory) -> None:
    @workflow
    async def late(event: Any, step: Any) -> str:
        async def body(ctx: Any) -> str:
            await asyncio.sleep(0 if ctx.attempt == 2 else 60)
            return "done"

        return str(await step.do("late", body, config={"timeout": "10 s"}))

    one = (sim := toque_sim(late)).create(late)
    assert one.result() == "done"
    assert [e.ended for e in sim.executions("late")] == ["cut off", "complete"]


def test_synchronous_bodies_run_as_in_a_thread(toque_sim: SimFactory) -> None:
    @workflow
    async def sync(event: Any, step: Any) -> list[Any]:
        async def inner() -> int:
            await asyncio.sleep(0)
            return 1

        def parts() -> Iterator[bytes]:
            yield b"ab"
            yield b"c"

        stream = await step.do("stream", parts)
        text = await step.do("read", lambda: stream.read().decode())
        return [
            await step.do("a loop of its own", lambda: asyncio.run(inner())),
            await step.do("an awaitable", lambda: inner()),
            await step.do("to a thread", lambda: asyncio.to_thread(len, "four")),
            text,
        ]

    sim = toque_sim(sync)
    assert sim.create(sync).result() == [1, 1, 4, "abc"]
    sim.mock_step("stream", lambda: iter([b"mock", b"ed"]))
    assert sim.create(sync).result()[-1] == "mocked"


def test_a_body_that_wants_a_socket_is_told_what_to_do(toque_sim: SimFactory) -> None:
    @workflow
    async def calls(event: Any, step: Any) -> None:
        async def fetch() -> None:
            with socket.socket() as plain:
                plain.setblocking(False)
                await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", 9))

        await step.do("fetch", fetch)

    sim = toque_sim(calls)
    with pytest.raises(InstanceFailed, match="no sockets, processes or signals"):
        sim.create(calls).result()
    (one,) = sim.executions()
    assert "sim.mock_step('fetch', returns=...)" in one.error


def test_an_author_s_own_not_implemented_stays(toque_sim: SimFactory) -> None:
    @workflow
    async def unready(event: Any, step: Any) -> None:
        def body() -> None:
            raise NotImplementedError("in the next release")

        await step.do("body", body, config={"retries": {"limit": 1, "delay": 1}})

    one = (sim := toque_sim(unready)).create(unready)
    with pytest.raises(InstanceFailed, match="in the next release"):
        one.result()
    assert len(sim.executions()) == 2


def test_delay_functions_are_no_executions(toque_sim: SimFactory) -> None:
    @workflow
    async def patient(event: Any, step: Any) -> str:
        def body(ctx: Any) -> str:
            if ctx.attempt < 3:
                raise ValueError("not yet")
            return "now"

        delay = {"delay": lambda ctx, error: 86_400 * ctx.attempt, "backoff": "constant"}
        config = {"retries": {"limit": 3, **delay}}
        return str(await step.do("body", body, config=config))

    sim = toque_sim(patient)
    assert sim.create(patient).result() == "now"
    assert [e.attempt for e in sim.executions()] == [1, 2, 3]
    assert (sim.now.month, sim.now.day) == (1, 4)


class Parent(WorkflowEntrypoint):
    """Has a body create a `Child`, and waits for its event."""

    async def run(self, event: Any, step: Any) -> Any:
        async def begin() -> None:
            try:
                await CLIENTS[-1].create_instance("Child", f"{event.instance_id}/child")
            except InstanceAlreadyExists:
                pass

        await step.do("begin", begin)
        return (await step.wait_for_event("child", "child-done", "7 days")).payload


class Child(WorkflowEntrypoint):
    """Tells its parent."""

    async def run(self, event: Any, step: Any) -> None:
        async def tell() -> None:
            parent = CLIENTS[-1].instance("Parent", event.instance_id.rpartition("/")[0])
            await parent.send_event("child-done", await CLIENTS[-1].list_workflows() != [])

        await step.sleep("think", "1 day")
        await step.do("tell", tell)


CLIENTS: list[Client] = []


def test_bodies_may_use_the_client(toque_sim: SimFactory) -> None:
    def prepare(sim: Simulation) -> None:
        CLIENTS[:] = [sim.client]

    survival = toque_sim.crash_everywhere(Parent, workflows=[Parent, Child], prepare=prepare)
    assert set(survival.reran) == {"Child tell-1", "Parent begin-1"}
    with toque_sim([Parent, Child]) as sim:
        prepare(sim)
        parent = sim.create(Parent, id="p")
        assert parent.result() is True
        child = sim.instance(Child, "p/child")
        assert child.wait().status == "complete"
        quick = sim.client.with_options(timeout=5)
        with pytest.raises(InstanceNotFound):
            sim.run(quick.instance("Child", "q/child").status())


def test_a_client_s_error_reaches_the_body(toque_sim: SimFactory) -> None:
    @workflow
    async def asking(event: Any, step: Any) -> Any:
        async def ask() -> str:
            async with asyncio.timeout(0.001):
                await sim.client.instance("asking", event.instance_id).wait()
            return "ended"

        async def find() -> str:
            return (await sim.client.instance("asking", "none").status()).status

        try:
            await step.do("find", find, config={"retries": {"limit": 0}})
        except StepFailed as error:
            name = error.name
        try:
            await step.do("ask", ask, config={"retries": {"limit": 0}})
        except StepFailed as error:
            return [name, error.name]

    sim = toque_sim(asking)
    assert sim.create(asking).result() == ["InstanceNotFound", "TimeoutError"]
