"""Many creates: cut into requests, a few under way at a time, each create with its own outcome.

A collection is checked whole before anything is sent. What comes from an iterator is checked as
it is read, so any number fits: a wrong item then stops the reading, and some of what came before
it has been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from ..runtime import limits
from ..runtime.errors import BatchIncomplete, InvalidArgument, OutcomeUnknown, ToqueError
from . import client_checks as check
from .client_values import CreateProgress, CreateResult
from .service import NewInstance

Batch = list[tuple[int, NewInstance]]
Send = Callable[[list[NewInstance], int], Awaitable[list[str]]]
"""Sends one batch (its number is given, for its request id); gives the ids that were made."""


class BatchCreate:
    """One `create_instances`.

    Args:
        send: makes one batch.
        parallel: requests under way at most.
        progress: told after each request.
        total: how many there are, if that is known.
    """

    def __init__(
        self,
        send: Send,
        parallel: int,
        progress: Callable[[CreateProgress], object] | None,
        total: int | None,
    ) -> None:
        self._send = send
        self._gate = asyncio.Semaphore(parallel)
        self._progress = progress
        self._total = total
        self._counts = {"created": 0, "duplicate": 0, "failed": 0, "unknown": 0}
        self._broken: Exception | None = None
        self.results: list[CreateResult] = []

    async def run(self, news: AsyncIterator[tuple[int, NewInstance]]) -> list[CreateResult]:
        """All outcomes, in the order given."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            number = 0
            async for batch in _cut(news):
                await self._gate.acquire()
                if self._broken is not None:
                    break
                task = asyncio.ensure_future(self._one(batch, number))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                number += 1
        finally:  # when reading failed too: what is under way has outcomes of its own
            if under_way:
                await _ended(under_way)
        if self._broken is not None:
            raise self._broken
        self.results.sort(key=lambda result: result.index)
        return self.results

    async def _one(self, batch: Batch, number: int) -> None:
        try:
            self._note(batch, await self._send([new for _, new in batch], number), None)
        except ToqueError as error:
            self._note(batch, [], error)
        except Exception as error:
            self._broken = self._broken or error
        finally:
            self._gate.release()

    def _note(self, batch: Batch, made: list[str], error: ToqueError | None) -> None:
        count = self._counts
        for result in _outcomes(batch, made, error):
            self.results.append(result)
            count[result.outcome] += 1
        if self._progress is not None:
            failed = count["failed"] + count["unknown"]
            told = CreateProgress(count["created"], count["duplicate"], failed, self._total)
            try:
                self._progress(told)
            except Exception as fault:  # the caller's: no more is sent, and it is raised
                self._broken = self._broken or fault


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for all; if the caller is cancelled, so are they."""
    waiting = list(tasks)
    try:
        await asyncio.wait(waiting)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _outcomes(batch: Batch, made: list[str], error: ToqueError | None) -> list[CreateResult]:
    """What became of each. The server gives the ids that it made, in the order of the batch."""
    if error is not None:
        outcome = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
        return [CreateResult(index, new.instance_id or "", outcome, error) for index, new in batch]
    found: list[CreateResult] = []
    given = {new.instance_id for _, new in batch if new.instance_id is not None}
    unnamed = iter([one for one in made if one not in given])
    named = set(made) & given
    for index, new in batch:
        if new.instance_id is None:
            found.append(CreateResult(index, next(unnamed, ""), "created"))
        elif new.instance_id in named:
            named.discard(new.instance_id)  # the same id again is a duplicate
            found.append(CreateResult(index, new.instance_id, "created"))
        else:
            found.append(CreateResult(index, new.instance_id, "duplicate"))
    return found


async def _cut(news: AsyncIterator[tuple[int, NewInstance]]) -> AsyncIterator[Batch]:
    """Batches within the bounds of one request, in count and bytes."""
    batch: Batch = []
    size = 0
    async for index, new in news:
        length = len(new.params) + limits.INSTANCE_ID_CHARS_MAX + limits.KIB
        full = len(batch) >= limits.CREATE_BATCH_MAX
        if batch and (full or size + length > limits.BATCH_BODY_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append((index, new))
        size += length
    if batch:
        yield batch


async def checked(instances: Any) -> AsyncIterator[tuple[int, NewInstance]]:
    """Each create that was given, numbered and checked."""
    index = 0
    if hasattr(instances, "__aiter__"):
        async for item in instances:
            yield index, check.spec(item, index)
            index += 1
        return
    for item in instances:
        yield index, check.spec(item, index)
        index += 1


async def all_checked(instances: Collection[Any]) -> AsyncIterator[tuple[int, NewInstance]]:
    """The same of a collection, which is checked whole at first."""
    for found in [(index, check.spec(item, index)) for index, item in enumerate(instances)]:
        yield found


def creates_of(instances: Any) -> tuple[AsyncIterator[tuple[int, NewInstance]], int | None]:
    """The creates, and how many they are if that is known."""
    if isinstance(instances, (str, bytes)) or not (
        hasattr(instances, "__iter__") or hasattr(instances, "__aiter__")
    ):
        check.refuse("instances", instances, "mappings", "[{'id': 'a', 'params': 1}, {'id': 'b'}]")
    if isinstance(instances, dict):
        raise InvalidArgument(
            "instances must be several mappings, not one. Right: [{'id': 'a', 'params': 1}]."
        )
    if isinstance(instances, Collection):
        return all_checked(instances), len(instances)
    return checked(instances), None


def verdict(results: list[CreateResult]) -> None:
    """Raise if some have no good outcome: their own error if all have the same, else a sum."""
    bad = [result for result in results if result.error is not None]
    if not bad:
        return
    first = bad[0].error
    assert first is not None
    if len(bad) == len(results) and all(type(each.error) is type(first) for each in bad):
        raise first
    unknown = sum(result.outcome == "unknown" for result in bad)
    error = BatchIncomplete(
        f"of {len(results)} creates {len(bad)} have failed ({unknown} of them without an answer, "
        f"so they may have been made); the first: {first}. error.results tells each; the same "
        "request_id and instances again make the rest.",
        {"failed": len(bad), "unknown": unknown, "total": len(results), "first": first.code},
    )
    error.results = results
    raise error
