"""Workflows for the measures `queue` and `noisy`."""

import asyncio

from toque import WorkflowEntrypoint


class Job(WorkflowEntrypoint):
    """One trivial step."""

    async def run(self, event, step):
        async def work():
            return 1

        return await step.do("work", work)


class _Slow(WorkflowEntrypoint):
    async def run(self, event, step):
        async def work():
            await asyncio.sleep(0.05)

        await step.do("work", work)


class Loud(_Slow):
    """Holds a slot for 50 ms; has a long queue."""


QUIET = 9
for _number in range(QUIET):
    globals()[f"Quiet{_number}"] = type(f"Quiet{_number}", (_Slow,), {"__module__": __name__})
