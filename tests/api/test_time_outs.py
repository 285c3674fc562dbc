"""A time-out that a client was given bounds each call, whatever the client is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toque.api.client import Client
from toque.api.client_embedded import EmbeddedBackend
from toque.runtime.errors import OutcomeUnknown, ToqueError

CALLS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "create": lambda client: client.create_instance("orders", "one"),
    "view": lambda client: client.instance("orders", "one").status(),
    "pause": lambda client: client.instance("orders", "one").pause(),
    "send_event": lambda client: client.instance("orders", "one").send_event("go", 1),
}


@asynccontextmanager
async def client_over(plane: Any, way: str) -> AsyncIterator[Client]:
    if way == "embedded":
        yield plane.embedded()
    else:
        async with plane.client() as client:
            yield client


@pytest.mark.parametrize("way", ["embedded", "http"])
@pytest.mark.parametrize("held", CALLS)
async def test_a_call_that_takes_longer_ends_alike_over_both(
    plane: Any, way: str, held: str
) -> None:
    async with client_over(plane, way) as client:
        if held != "create":
            await client.create_instance("orders", "one")
        plane.router.hold[held] = asyncio.Event()
        async with asyncio.timeout(10):
            with pytest.raises(ToqueError) as refused:
                await CALLS[held](client.with_options(timeout=0.05))
        assert type(refused.value) is OutcomeUnknown
        plane.router.hold[held].set()
        patient = client.with_options(timeout=60, retry_for=1)
        assert (await patient.create_instance("orders", "two")).id == "two"


@pytest.mark.parametrize("way", ["embedded", "http"])
async def test_a_client_keeps_what_it_was_given_before(plane: Any, way: str) -> None:
    async with client_over(plane, way) as client:
        other = client.with_options(timeout=4).with_options(retry_for=1)
        assert other.backend.wait_max_ms == 2_000
        assert client.backend.wait_max_ms > 2_000


def test_no_call_of_the_embedded_backend_is_left_out() -> None:
    free = {"manage", "close"}  # one is refused at once, the other does nothing
    calls = [
        name
        for name, found in vars(EmbeddedBackend).items()
        if asyncio.iscoroutinefunction(found) and name not in free | {"_in_turn"}
    ]
    assert len(calls) > 15
    assert not [name for name in calls if not hasattr(vars(EmbeddedBackend)[name], "__wrapped__")]
