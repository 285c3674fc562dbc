"""Workflows with a mistake in them, each with the end that it must come to, whatever crashes.

A step comes before the mistake and one after it. The first is done, the second never begins: where
an author is wrong, toque ends the instance and says why; it does not guess. Some mistakes show only
when `run` is executed again: they ask something outside for a number, which is another one then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from toque.engines.failures import NonRetryableError
from toque.engines.workflow import WorkflowDefinition

from .program import BodyHooks

MISTAKEN = "mistaken"
"""The workflow's name."""
BEFORE, AFTER, VARIANT = "before", "after", "variant"
EVENT = "note"
STEPS_MAX = 8
_LONG_S = 3_600
_SHORT_S = 60
_QUICK = {"retries": {"limit": 2, "delay": 0.2, "backoff": "constant"}}


class Asked(msgspec.Struct):
    """The params: which mistake, and how its bodies call the run."""

    mistake: str
    run: str


class MistakenHooks(BodyHooks, Protocol):
    """Where they report, and what they may not ask."""

    def executed(self, run: str) -> int:
        """How often `run` was executed, this time included: no two executions hear the same."""


class Hand:
    """What a mistaken workflow works with."""

    def __init__(self, step: Any, hooks: MistakenHooks, asked: Asked) -> None:
        self.step = step
        self.asked = asked
        self._hooks = hooks
        self._life: str = step._core.whose.run

    def body(self, name: str, gives: Callable[[], Any] | None = None) -> Callable[..., Any]:
        """A body that is reported; gives its token, or what it is to give."""

        async def body(ctx: Any) -> Any:
            token = self._hooks.begin(self.asked.run, self._life, name, ctx.attempt, [], False)
            await asyncio.sleep(0.05)
            self._hooks.end(token)
            return gives() if gives is not None else token

        return body

    async def do(self, name: str) -> None:
        """A step without a mistake."""
        await self.step.do(name, self.body(name), config=_QUICK)

    async def nap(self) -> None:
        """In which the instance may leave memory."""
        await self.step.sleep("nap", 0.5)

    def exits(self) -> None:
        """The process ends."""
        self._hooks.exits(self.asked.run)

    def executed(self) -> int:
        """Another number at each execution."""
        return self._hooks.executed(self.asked.run)


class Mistake(NamedTuple):
    """A mistake and what comes of it.

    Attributes:
        run: makes it; what comes after is not reached, or `None` is the result.
        ends: the names of errors of which it may end; an empty one: it completes.
        says: what the error says.
        undone: what may have become of its rollback; an empty one: there was none.
        event: what it is sent, as JSON.
        again: it is made to execute `run` again, by a pause and an event after it.
        cancels: it is cancelled once it waits.
        params: what it is created with instead of `Asked`.
        exits: it ends the process that it is in, which only workers are for.
    """

    run: Callable[[Hand], Awaitable[Any]]
    ends: tuple[str, ...]
    says: str = ""
    undone: tuple[str, ...] = ("",)
    event: bytes = b""
    again: bool = False
    cancels: bool = False
    params: bytes = b""
    exits: bool = False


MISTAKES: dict[str, Mistake] = {}
_MISUSE, _ARGUMENT, _ID = ("StepMisuse",), ("InvalidArgument",), ("InvalidId",)


def _of(name: str, *ends: str, **rest: Any) -> Callable[[Any], Any]:
    def take(run: Callable[[Hand], Awaitable[Any]]) -> Callable[[Hand], Awaitable[Any]]:
        MISTAKES[name] = Mistake(run, ends, **rest)
        return run

    return take


def _call(name: str, ends: tuple[str, ...], call: Callable[[Any, Hand], Any]) -> None:
    """A call that is refused where it is made."""

    async def run(hand: Hand) -> None:
        result = call(hand.step, hand)
        if asyncio.iscoroutine(result):
            await result

    MISTAKES[name] = Mistake(run, ends)


# --- calls that are refused ---------------------------------------------------------------------

_call("a long name", _ID, lambda step, hand: step.do("x" * 300, hand.body(AFTER)))
_call("no name", _ID, lambda step, hand: step.do("", hand.body(AFTER)))
_call("no body", _ARGUMENT, lambda step, hand: step.do("odd", None))
_call("a setting that is none", _ARGUMENT, lambda s, h: s.do("odd", h.body(AFTER), {"retry": 1}))
_call("a negative sleep", _ARGUMENT, lambda step, hand: step.sleep("odd", -1))
_call("a sleep of years", _ARGUMENT, lambda step, hand: step.sleep("odd", "800 days"))
_call("an event type with a dot", _ID, lambda step, hand: step.wait_for_event("odd", "a.b"))
_call("a timer that is never due", ("ValueError",), lambda s, h: _loop().call_later(math.inf, id))
_call("a thread", _MISUSE, lambda step, hand: asyncio.to_thread(id, 1))
_call("a loop in the loop", _MISUSE, lambda s, h: _loop().run_until_complete(h.do(AFTER)))
_call("it exits", ("SystemExit",), lambda step, hand: _raise(SystemExit(3)))


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _raise(error: BaseException) -> None:
    raise error


# --- steps that are called where they can't be --------------------------------------------------


@_of("a step that nobody awaits", *_MISUSE, says="was called and never awaited")
async def _never_awaited(hand: Hand) -> dict[str, int]:
    hand.step.do(AFTER, hand.body(AFTER))
    return {}


@_of("a step that is awaited twice", *_MISUSE, says="was awaited twice")
async def _awaited_twice(hand: Hand) -> None:
    call = hand.step.do("once", hand.body("once"), config=_QUICK)
    await call
    await call


@_of("a step in a callback", *_MISUSE, says="was called by a callback")
async def _in_a_callback(hand: Hand) -> None:
    _loop().call_soon(hand.step.do, AFTER, hand.body(AFTER))
    await hand.step.sleep("long", _LONG_S)


@_of("a step in a body", *_MISUSE, says="inside the body of step")
async def _in_a_body(hand: Hand) -> None:
    nested = hand.body("outer", lambda: hand.step.do(AFTER, hand.body(AFTER)))
    await hand.step.do("outer", nested, config=_QUICK)


@_of("a step after the end", "")
async def _after_the_end(hand: Hand) -> dict[str, int]:
    async def late() -> None:
        try:
            await hand.step.sleep("long", _LONG_S)
        finally:
            await hand.do(AFTER)

    asyncio.create_task(late())  # noqa: RUF006 - the mistake
    await hand.nap()
    return {}


@_of("a task that will not end", "")
async def _clings(hand: Hand) -> dict[str, int]:
    async def cling() -> None:
        for _ in range(4):  # were it for ever, its memory would never be given back
            try:
                await asyncio.create_task(hand.do(AFTER))
            except BaseException:
                pass

    async def wait() -> None:
        try:
            await hand.step.sleep("long", _LONG_S)
        finally:
            await cling()

    asyncio.create_task(wait())  # noqa: RUF006 - the mistake
    await hand.nap()
    return {}


@_of("an error in a callback", "KeyError")
async def _callback_fails(hand: Hand) -> None:
    _loop().call_soon({}.__getitem__, "nothing")
    await hand.step.sleep("long", _LONG_S)


@_of("a step too many", "LimitExceeded", says=f"may make {STEPS_MAX} steps")
async def _too_many(hand: Hand) -> None:
    for number in range(STEPS_MAX - 1):
        await hand.do(f"step{number}")
    await hand.do(AFTER)


# --- values that don't fit ----------------------------------------------------------------------


@_of("params that don't fit", "PayloadMismatch", params=b'{"mistake": 7}')
async def _params(hand: Hand) -> None:
    """Is not run."""


@_of("a result that has no JSON", "UnencodableValue", says="result")
async def _result_no_json(hand: Hand) -> Any:
    return {"odd": object()}


@_of("a result of another type", "ResultMismatch", says="return annotation of run()")
async def _result_unfit(hand: Hand) -> Any:
    return {"odd": "text"}


@_of("a step's result that has no JSON", "UnencodableValue", says="the result of step")
async def _step_no_json(hand: Hand) -> None:
    await hand.step.do("odd", hand.body("odd", object), config=_QUICK)


@_of("a step's result of another type", "ResultMismatch", says="return annotation of its body")
async def _step_unfit(hand: Hand) -> None:
    await hand.step.do("odd", _typed(hand), config=_QUICK)


@_of("a secret of another type", "ResultMismatch", says="its output is sensitive")
async def _secret_unfit(hand: Hand) -> None:
    await hand.step.do("odd", _typed(hand), config={**_QUICK, "sensitive": "output"})


@_of(
    "a rollback that gets another type",
    "ResultMismatch",
    says="return annotation of its body",
    undone=("failed",),
)
async def _undo_unfit(hand: Hand) -> None:
    undo = hand.body("undo")
    await hand.step.do("odd", _typed(hand), config=_QUICK, rollback=lambda ctx, output: undo(ctx))


@_of("an event of another type", "PayloadMismatch", says="does not fit", event=b'"text"')
async def _event_unfit(hand: Hand) -> None:
    await hand.step.wait_for_event("odd", EVENT, timeout=_LONG_S, payload_type=int)


def _typed(hand: Hand) -> Callable[..., Any]:
    give = hand.body("odd", lambda: "text")

    async def body(ctx: Any) -> int:
        result: int = await give(ctx)
        return result

    return body


# --- retries and rollbacks ----------------------------------------------------------------------


@_of("a delay that fails", "RetryDelayFailed")
async def _delay_fails(hand: Hand) -> None:
    delay = {"limit": 2, "delay": lambda ctx, error: {}["nothing"], "backoff": "constant"}
    config = {"retries": delay}
    await hand.step.do("odd", hand.body("odd", lambda: _raise(ValueError("odd"))), config=config)


async def _fails_with(hand: Hand, undo: Any, config: Any) -> None:
    await hand.step.do(
        "undone", hand.body("undone"), config=_QUICK, rollback=undo, rollback_config=config
    )
    await hand.nap()
    raise NonRetryableError("doomed", "Doomed")


@_of("a rollback that fails", "Doomed", undone=("failed",))
async def _undo_fails(hand: Hand) -> None:
    await _fails_with(hand, hand.body("undo", lambda: _raise(ValueError("odd"))), _QUICK)


@_of("a rollback that takes too long", "Doomed", undone=("failed",))
async def _undo_late(hand: Hand) -> None:
    often = {"retries": {"limit": 50, "delay": 0.5, "backoff": "constant"}, "deadline": 2}
    await _fails_with(hand, hand.body("undo", lambda: _raise(ValueError("odd"))), often)


@_of("a rollback that is gone", "Doomed", undone=("failed", ""))
async def _undo_gone(hand: Hand) -> None:
    await _fails_with(hand, hand.body("undo") if hand.executed() == 1 else None, None)


# --- ends ---------------------------------------------------------------------------------------


@_of("it waits for nothing", "WorkflowStuck", says="nothing can bring about")
async def _stuck(hand: Hand) -> None:
    await _loop().create_future()


@_of("it waits for nothing when it is cancelled", "Cancelled", cancels=True)
async def _stuck_cancelled(hand: Hand) -> None:
    try:
        await hand.step.sleep("long", _LONG_S)
    finally:
        await _loop().create_future()


@_of("it cancels itself", "CancelledError")
async def _cancels_itself(hand: Hand) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await hand.do(AFTER)


@_of("it ends its process", "InstanceCrashed", says="without getting any further", exits=True)
async def _ends_its_process(hand: Hand) -> None:
    hand.exits()
    await _loop().create_future()


def _next(hand: Hand) -> None:
    hand.step.continue_as_new({"mistake": "none", "run": hand.asked.run})


@_of("it goes on after it has continued", "")
async def _goes_on(hand: Hand) -> None:
    try:
        _next(hand)
    except BaseException:
        pass
    await hand.do(AFTER)


@_of("it sleeps after it has continued", "")
async def _sleeps_on(hand: Hand) -> None:
    try:
        _next(hand)
    except BaseException:
        pass
    await asyncio.sleep(1)
    await hand.do(AFTER)


@_of("it continues in a group", "")
async def _continues_in_a_group(hand: Hand) -> None:
    async with asyncio.TaskGroup():
        _next(hand)


@_of("it continues and leaves a step", *_MISUSE, says="was called and never awaited")
async def _continues_and_leaves(hand: Hand) -> None:
    hand.step.do(AFTER, hand.body(AFTER))
    _next(hand)


@_of("it continues in a task", *_MISUSE, says="by a task that run() had started")
async def _continues_in_a_task(hand: Hand) -> None:
    async def task() -> None:
        _next(hand)

    await asyncio.create_task(task())


@_of("none", "")
async def _none(hand: Hand) -> dict[str, int]:
    """It declares a step that it does not use, and asks its loop what libraries ask."""

    @hand.step.do("spare")
    async def spare() -> None: ...

    loop = _loop()
    assert loop.is_running()
    assert not loop.get_debug()
    assert loop.get_task_factory() is loop.get_exception_handler()
    loop.call_exception_handler({"message": "somebody complains", "exception": ValueError("odd")})
    await hand.nap()
    return {"fine": 1}


# --- what shows when `run` is executed again ----------------------------------------------------

_NEVER_THE_SAME = "NonDeterminism"


@_of("another step each time", _NEVER_THE_SAME, again=True)
async def _another_step(hand: Hand) -> None:
    await hand.do(f"{VARIANT}{hand.executed()}")
    await hand.step.wait_for_event("on", EVENT, timeout=_LONG_S)


@_of("it ends the second time", _NEVER_THE_SAME, "", again=True)
async def _ends_early(hand: Hand) -> dict[str, int]:
    if hand.executed() == 1:
        await hand.do(f"{VARIANT}1")
        await hand.step.wait_for_event("on", EVENT, timeout=_LONG_S)
    return {}


@_of("it fails the second time", _NEVER_THE_SAME, "KeyError", again=True)
async def _fails_early(hand: Hand) -> None:
    if hand.executed() > 1:
        raise KeyError("odd")
    await hand.do(f"{VARIANT}1")
    await hand.step.wait_for_event("on", EVENT, timeout=_LONG_S)


@_of("it waits the second time", _NEVER_THE_SAME, "WorkflowStuck", again=True)
async def _waits_early(hand: Hand) -> None:
    if hand.executed() > 1:
        await _loop().create_future()
    await hand.do(f"{VARIANT}1")
    await hand.step.wait_for_event("on", EVENT, timeout=_LONG_S)


@_of("it gives up the first time only", _NEVER_THE_SAME, "EventTimeout", "KeyError", again=True)
async def _gives_up_once(hand: Hand) -> None:
    """Where the giving up was lost in a crash, it is an execution like any other."""
    waits = asyncio.create_task(hand.step.wait_for_event("given up", "order", timeout=_SHORT_S))
    await hand.do("between")
    if hand.executed() == 1:
        waits.cancel()
        await asyncio.wait([waits])
    await hand.step.wait_for_event("on", EVENT, timeout=_SHORT_S)
    raise KeyError("it was not given up")


def mistaken(hooks: MistakenHooks) -> WorkflowDefinition:
    """The workflow, in one process."""

    async def run(event: Any, step: Any) -> Any:
        hand = Hand(step, hooks, event.payload)
        await hand.do(BEFORE)
        await hand.nap()
        result = await MISTAKES[hand.asked.mistake].run(hand)
        if result is None:
            await hand.do(AFTER)
        return result

    return WorkflowDefinition(
        MISTAKEN,
        "Mistaken",
        run,
        "v1",
        payload_type=Asked,
        returns=dict[str, int],
        steps_max=STEPS_MAX,
    )
