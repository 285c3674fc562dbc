"""The code of a workflow can't be had on a shard for a while; its instances wait for it."""

from __future__ import annotations

from ..build import WORKFLOWS
from .base import Fault, Strike

_LASTS_S = 15.0


def _befalls(strike: Strike) -> None:
    shards = strike.world.placement.data_names()
    shard = shards[strike.chance.randrange(len(shards))]
    workflow = WORKFLOWS[strike.chance.randrange(len(WORKFLOWS))]
    strike.world.lose_code(shard, workflow, 2.0 + strike.chance.random() * _LASTS_S)


FAULT = Fault("code", ("code could not be loaded",), _befalls)
