"""Workflows of one step of 0.2 s, under two names, and one that does nothing."""

import asyncio

from toque import WorkflowEntrypoint


class Busy(WorkflowEntrypoint):
    """Holds a slot for 0.2 s."""

    async def run(self, event, step):
        async def work():
            await asyncio.sleep(0.2)

        await step.do("work", work)


class Late(Busy):
    """The same work under another name, so that it has SousChefs of its own."""


class Quick(WorkflowEntrypoint):
    """One trivial step."""

    async def run(self, event, step):
        async def work():
            return 1

        return await step.do("work", work)
