"""An instance that lives on: a counter of votes that takes events one after the other.

    python examples/entity.py

Every event is taken once. After so many the run ends and another one of the same instance takes
its place (`continue_as_new`), so that its history stays short however long it lives; votes that
come meanwhile are there for the next run. Who waits for the instance waits for its last run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import toque

VOTES_PER_RUN = 3


@dataclass
class Vote:
    """The payload of a `vote`; without a name it closes the poll."""

    name: str | None


@dataclass
class Poll:
    """The params of each run: what has been counted before it."""

    votes: dict[str, int] = field(default_factory=dict)


class Count(toque.WorkflowEntrypoint):
    """Counts votes until the poll is closed."""

    async def run(self, event: toque.WorkflowEvent[Poll], step: toque.WorkflowStep) -> Poll:
        votes = event.payload.votes
        async for vote in step.events("vote", limit=VOTES_PER_RUN, payload_type=Vote):
            name = vote.payload.name
            if name is None:
                return Poll(votes)
            votes[name] = votes.get(name, 0) + 1
        return step.continue_as_new(Poll(votes))


async def main(data: Path) -> tuple[dict[str, int], int]:
    """What was counted, and how many runs there were before the last."""
    async with toque.embedded(data, [Count]) as runtime:
        poll = await runtime.client().create_instance("Count", params=Poll())
        for name in ("ada", "bob", "ada", "cleo", "ada", "bob", "ada", None):
            await poll.send_event("vote", Vote(name))
        counted = await poll.output(Poll, timeout=30)
        assert poll.last is not None
        return counted.votes, poll.last.continued


if __name__ == "__main__":
    print(asyncio.run(main(Path(".toque/entity"))))
