"""A list is followed over HTTP while creates go on, on a real runtime: each earlier one once.

`bench/paging.py` does the same with 100,000 and measures.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.api.test_end_to_end import serving

ROWS = 300


@pytest.mark.parametrize("query", [{}, {"direction": "asc"}, {"prefix": "old/"}], ids=str)
async def test_each_earlier_instance_is_listed_once(tmp_path: Path, query: dict[str, str]) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import toque\n\n\nclass Park(toque.WorkflowEntrypoint):\n"
        "    async def run(self, event, step):\n"
        "        await step.wait_for_event('wait', 'never')\n"
    )
    async with serving(app) as client:
        old = [f"old/{n:03}" for n in range(ROWS)]
        await client.create_instances("Park", [{"id": each} for each in old])
        made, begun = 0, asyncio.Event()

        async def create_for_ever() -> None:
            nonlocal made
            while True:
                for prefix in ("new", "old/new"):
                    await client.create_instance("Park", f"{prefix}-{made}")
                made += 1
                begun.set()

        creating = asyncio.ensure_future(create_for_ever())
        try:
            await begun.wait()
            lines = client.list_instances("Park", per_page=10, **query)  # type: ignore[arg-type]
            seen = [line.id async for line in lines]
        finally:
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        assert len(seen) == len(set(seen))
        assert set(old) <= set(seen)
