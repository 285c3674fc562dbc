"""The benchmark's workflows: one trivial step, and ten of them in a row."""

from toque import WorkflowEntrypoint


class OneStep(WorkflowEntrypoint):
    """One step that returns a small value."""

    async def run(self, event, step):
        async def work():
            return {"ok": True}

        return await step.do("work", work)


class TenSteps(WorkflowEntrypoint):
    """Ten steps, one after another."""

    async def run(self, event, step):
        total = 0
        for n in range(10):

            async def work(n=n):
                return n

            total += await step.do(f"work {n}", work)
        return total
