"""A step's body as it was given: the function, its shape and settings, and what it is called with.

Plain data, made by `step`, kept by the claim of the step, run by `bodies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..runtime.blobs import BlobStore
from .config import DelayFunction, Resolved
from .journal import Record
from .shapes import Shape
from .streams import stream_of


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a body gets as its parameter `ctx`.

    Attributes:
        step: the step's name.
        count: how often the name has been used, this use included; 1 at first.
        attempt: number of this attempt; 1 at first.
        config: the settings in force; `delay_ms` is None where a function tells it.
    """

    step: str
    count: int
    attempt: int
    config: Resolved


class BodyCall:
    """A step's body with everything needed to run it."""

    __slots__ = ("args", "blobs", "config", "delay", "fn", "ray_options", "shape", "undo")

    def __init__(
        self,
        fn: Callable[..., Any],
        shape: Shape,
        config: Resolved,
        delay: DelayFunction | None,
        args: tuple[Any, ...] = (),
        undo: BodyCall | None = None,
        ray_options: dict[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.shape = shape
        self.config = config
        self.delay = delay
        self.blobs: BlobStore | None = None
        self.args = args
        self.undo = undo
        self.ray_options = ray_options

    def with_args(self, args: tuple[Any, ...]) -> BodyCall:
        """The same with results of other steps as its arguments."""
        return BodyCall(
            self.fn, self.shape, self.config, self.delay, args, self.undo, self.ray_options
        )

    def decode(self, record: Record) -> Any:
        """The recorded result as `run` gets it."""
        if record.stream:
            return stream_of(record.result or b"null", self.blobs)
        return self.shape.decode(record.result or b"null")
