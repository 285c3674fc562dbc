"""Whether a cluster has what somebody asks for, on any node and if all of it were free.

Pure: Ray's list of nodes comes in as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UNMET = "no node of the cluster has that much: it can't be had here"
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


def unmet(options: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """What to tell who asks for `options`; empty: some node has it, or no node is known.

    Args:
        options: as `engines.ray_options` takes them.
        nodes: as `ray.nodes()` tells them.

    >>> alive = {"Alive": True, "Resources": {"CPU": 2.0}}
    >>> unmet({"num_cpus": 2}, [alive]), unmet({"num_gpus": 1}, [alive])
    ('', "no node of the cluster has that much: it can't be had here")
    """
    wanted = {_NAMES[name]: options[name] for name in _NAMES if options.get(name)}
    wanted |= {name: amount for name, amount in options.get("resources", {}).items() if amount}
    known = [node.get("Resources", {}) for node in nodes if node.get("Alive")]
    if not known:
        return ""
    fits = any(all(has.get(n, 0) >= amount for n, amount in wanted.items()) for has in known)
    return "" if fits else UNMET
