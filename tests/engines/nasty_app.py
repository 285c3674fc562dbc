"""A workflow whose steps give back, and raise, the oddest things: each must end it, and say how."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, model_serializer

import toque


class PaymentError(toque.NonRetryableError):
    def __init__(self, code: int) -> None:
        self.how = code  # and no super().__init__()


class OddFailed(toque.StepFailed):
    def __init__(self, code: int) -> None:
        self.how = code


class OddToque(toque.ToqueError):
    def __init__(self, code: int) -> None:
        self.how = code


class Hostile(toque.StepFailed):
    """Whatever it is asked for, it exits."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)

    def __str__(self) -> str:
        raise KeyboardInterrupt


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class LiarError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")


class NotedError(Exception):
    @property
    def __notes__(self) -> Any:
        raise SystemExit(4)


class SlyText(str):
    def __len__(self) -> int:
        raise SystemExit(5)

    def __getitem__(self, at: Any) -> str:
        raise SystemExit(5)


class SlyError(Exception):
    def __str__(self) -> str:
        return SlyText("sly \\ud800")


class Hidden:
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")


class SlyNumber(int):
    def __mul__(self, other: Any) -> int:
        raise SystemExit(6)

    __rmul__ = __float__ = __repr__ = __mul__  # type: ignore[assignment]


class Dumping(BaseModel):
    a: int = 1

    @model_serializer
    def dump(self) -> Any:
        raise SystemExit(7)


def refuse(value: int) -> int:
    raise SystemExit(8) if value == 1 else KeyboardInterrupt


class Refusing(BaseModel):
    a: Annotated[int, AfterValidator(refuse)]


class Nowhere(datetime.tzinfo):
    def utcoffset(self, when: Any) -> Any:
        raise KeyboardInterrupt


def raising(make: Callable[[], BaseException]) -> Callable[[], Any]:
    def body() -> Any:
        raise make()

    return body


def odd(value: Any) -> Any:
    """A value of a type that is not asked for."""
    return value


def nested() -> BaseException:
    error: Exception = ValueError("deep")
    for _ in range(40):
        error = ExceptionGroup("g", [error] * 5)
    return error


def refused() -> Refusing:
    return Refusing.model_construct(a=1)


NO_RETRY = "NonRetryableError"
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "no init": (lambda: PaymentError(402), "PaymentError"),
    "no init, failed": (lambda: OddFailed(4), "OddFailed"),
    "no init, root": (lambda: OddToque(4), "OddToque"),
    "name": (lambda: toque.NonRetryableError("q", name=odd(5)), "NonRetryableError"),
    "message": (lambda: toque.StepFailed(odd(5)), "StepFailed"),
    "failed name": (lambda: toque.StepFailed("x", None, odd(7)), "StepFailed"),
    "data": (lambda: toque.StepFailed("x", {"a": Hidden()}), "StepFailed"),
    "data of a sort": (lambda: toque.NonRetryableError("x", None, odd(Dumping())), NO_RETRY),
    "hostile": (lambda: Hostile(), "Hostile"),
    "unsayable": (lambda: UnsayableError(Hidden()), "UnsayableError"),
    "liar": (lambda: LiarError("x"), "LiarError"),
    "noted": (lambda: NotedError("x"), "NotedError"),
    "sly": (lambda: SlyError("x"), "SlyError"),
    "argument": (lambda: ValueError(Hidden()), "ValueError"),
    "interrupted": (lambda: KeyboardInterrupt(), "KeyboardInterrupt"),
    "nested": (nested, "ExceptionGroup"),
}
"""Errors, and the name by which each is to be recorded."""

GIVEN: dict[str, tuple[Callable[[], Any], str]] = {
    "hidden": (lambda: Hidden(), "UnencodableValue"),
    "dumping": (lambda: Dumping(), "UnencodableValue"),
    "refused": (refused, "ResultMismatch"),
    "huge": (lambda: 10**5_000, "UnencodableValue"),
}
"""What a body gives back, and the error by which the instance is to end."""

DELAYS: dict[str, Callable[[Any, Any], Any]] = {
    "huge": lambda ctx, error: 10**400,
    "huge text": lambda ctx, error: "9" * 400 + " s",
    "unprintable": lambda ctx, error: 10**5_000,
    "hidden": lambda ctx, error: Hidden(),
    "sly": lambda ctx, error: SlyNumber(10**9),
    "raising": lambda ctx, error: raising(lambda: UnsayableError())(),
}
"""Delay functions: each is to end the step as `RetryDelayFailed`."""

CASES = {
    **{f"raise {name}": wanted for name, (_, wanted) in RAISED.items()},
    **{f"raise in run {name}": wanted for name, (_, wanted) in RAISED.items()},
    **{f"roll back {name}": wanted for name, (_, wanted) in RAISED.items()},
    **{f"give {name}": wanted for name, (_, wanted) in GIVEN.items()},
    **{f"give from run {name}": wanted for name, (_, wanted) in GIVEN.items() if name != "refused"},
    **dict.fromkeys([f"delay {name}" for name in DELAYS], "RetryDelayFailed"),
    "event": "PayloadMismatch",
    "sleep": "InvalidArgument",
    "until": "InvalidArgument",
    "timeout": "InvalidArgument",
}
"""How each is to end: the name of the instance's error, or of its rollback's."""


class Nasty(toque.WorkflowEntrypoint):
    """Does what its params name."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        what, _, name = event.payload.partition(" ")
        once = {"retries": {"limit": 0}, "timeout": "60 s"}
        if event.payload.startswith("raise in run "):
            raise RAISED[name.removeprefix("in run ")][0]()
        if event.payload.startswith("give from run "):
            return GIVEN[name.removeprefix("from run ")][0]()
        if what == "raise":
            await step.do("it", raising(RAISED[name][0]), once)
        elif what == "roll":
            back = raising(RAISED[name.removeprefix("back ")][0])
            await step.do("it", lambda: 1, rollback=back, rollback_config=once)
            raise ZeroDivisionError
        elif what == "give":
            await step.do("it", GIVEN[name][0], once)
        elif what == "delay":
            config = {"retries": {"limit": 2, "delay": DELAYS[name]}, "timeout": "60 s"}
            await step.do("it", raising(lambda: ValueError("x")), config)
        elif what == "event":
            await step.wait_for_event("it", "go", payload_type=Refusing)
        elif what == "sleep":
            await step.sleep("it", 10**400)
        elif what == "until":
            await step.sleep_until("it", datetime.datetime(2030, 1, 1, tzinfo=Nowhere()))
        elif what == "timeout":
            await step.do("it", lambda: 1, {"timeout": 10**5_000})
        return "went well"
