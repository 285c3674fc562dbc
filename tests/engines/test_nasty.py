"""Whatever user code raises or gives, its instance ends with an error that says so, and no other
instance hears of it: in the process of its shard, and in a worker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engines.nasty_app import CASES, Nasty
from toque.api.client import Instance
from toque.api.wiring import embedded

BOUND_S = 60


async def end_of(instance: Instance) -> str:
    status = await instance.wait(BOUND_S)
    if status.rollback is not None and status.rollback.error is not None:
        assert status.error is not None
        assert status.error.name == "ZeroDivisionError"
        return status.rollback.error.name
    return status.error.name if status.error is not None else f"{status.status}: {status.output}"


@pytest.mark.parametrize("account", ["mine", "another"])
async def test_nothing_that_user_code_raises_or_gives_is_stuck_or_hurts_others(
    tmp_path: Path, account: str
) -> None:
    async with embedded(tmp_path / "data", [Nasty], account="mine") as runtime:
        await runtime.deploy(account, None)
        client = runtime.client(account)
        made = {name: await client.create_instance("Nasty", params=name) for name in CASES}
        await made["event"].send_event("go", {"a": 1})
        ended: dict[str, Any] = dict(
            zip(made, await asyncio.gather(*map(end_of, made.values())), strict=True)
        )
        assert ended == CASES
