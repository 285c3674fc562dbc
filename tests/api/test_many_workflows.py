"""An account with more workflows than one scan gives, all of them in use at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from toque import embedded, workflow
from toque.runtime import limits

MANY = limits.SCAN_ROWS_MAX + 50


def one(number: int) -> Any:
    """A workflow."""

    @workflow(name=f"w{number}")
    async def flow(event: Any, step: Any) -> Any:
        return await step.do("double", lambda: event.payload * 2)

    return flow


async def test_all_workflows_of_a_large_account_run_at_once(tmp_path: Path) -> None:
    flows = [one(number) for number in range(MANY)]
    async with embedded(tmp_path / "data", flows, data_shards=1, control_shards=1) as runtime:
        client = runtime.client()
        creates = (client.create_instance(f"w{number}", params=number) for number in range(MANY))
        made = await asyncio.gather(*creates)
        found = await asyncio.gather(*(instance.output(timeout=60) for instance in made))
        assert found == [2 * number for number in range(MANY)]
    async with embedded(tmp_path / "data", flows) as runtime:
        again = await runtime.client().create_instance(f"w{MANY - 1}", params=4)
        assert await again.output(timeout=60) == 8
