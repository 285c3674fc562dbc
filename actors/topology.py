"""Which shard actors there are, and how each is named, configured and reached.

Pure: names, options and environment variables follow from the data directory and the placement.
The shards' sockets, the cluster's namespace and its temporary directory carry a hash of the data
directory's path, so that clusters on different directories never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from ..runtime.ids import Placement
from .keeper import Process

Listen = Literal["unix", "tcp"]

CONTROL_GROUP = "ctl"
"""The concurrency group of health, drain and statistics: a thread and loop of its own."""

SHARD_CPUS = 0.01
"""More than none: with 0 Ray ignores affinity and the autoscaler takes the node for idle. Of a
local cluster, which has one node, none: else a step could never have all its CPUs."""


def directory_id(data_dir: str) -> str:
    """A short name for a data directory (of its absolute path)."""
    return blake2b(data_dir.encode(), digest_size=6).hexdigest()


def namespace(data_dir: str) -> str:
    """The Ray namespace of the actors on that data directory."""
    return f"toque-{directory_id(data_dir)}"


def shard_address(run_dir: str, shard: str, listen: Listen) -> str:
    """How a shard is found: its socket, or the notice that holds its address."""
    return f"unix:{run_dir}/{shard}.sock" if listen == "unix" else f"notice:{run_dir}/{shard}.tcp"


def actor_name(shard: str) -> str:
    """The name of a shard's actor within its namespace."""
    return f"shard-{shard}"


@dataclass(frozen=True)
class ShardSpec:
    """All that a shard actor needs to open its shard. Plain data; Ray carries it to the actor."""

    shard: str
    """The shard's name, `d0`, `c0`, ..."""
    data_dir: str
    """Absolute path of the data directory."""
    run_dir: str
    """Absolute path of the directory that holds the sockets or, with `tcp`, their addresses: then
    all nodes must see it."""
    data_shards: int
    control_shards: int
    token: bytes
    """The secret that links between processes prove to know."""
    factory: str
    """`module:function` that opens the shard: `await function(spec)` gives a `ShardHandle`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The factory's own; plain data."""
    starter: Process | None = None
    """The process whose end ends the actor; None for a cluster that outlives its starter."""
    listen: Listen = "unix"

    @property
    def placement(self) -> Placement:
        """Which shard an entity lives on."""
        return Placement(self.data_shards, self.control_shards)

    @property
    def namespace(self) -> str:
        """The Ray namespace that the actor lives in."""
        return namespace(self.data_dir)

    def socket_address(self, shard: str) -> str:
        """How a shard is found; see `link_socket.Resolve`."""
        return shard_address(self.run_dir, shard, self.listen)

    def __repr__(self) -> str:  # a traceback must not show the token
        return f"ShardSpec({self.shard!r}, {self.data_dir!r})"


def shard_specs(
    *,
    data_dir: str,
    run_dir: str,
    placement: Placement,
    token: bytes,
    factory: str,
    settings: dict[str, Any],
    starter: Process | None,
    listen: Listen = "unix",
) -> list[ShardSpec]:
    """One spec per shard, control shards first.

    Raises:
        InvalidArgument: there are none, or too many, or the factory has no name.
    """
    names = placement.names()
    if placement.data_shards < 1 or placement.control_shards < 1 or len(names) > limits.SHARDS_MAX:
        raise InvalidArgument(
            f"{placement.data_shards} data and {placement.control_shards} control shards: use at "
            f"least one of each and at most {limits.SHARDS_MAX} in all."
        )
    if factory.count(":") != 1:
        raise InvalidArgument(f"factory {factory!r} is not of the form 'module:function'.")
    return [
        ShardSpec(
            shard=name,
            data_dir=data_dir,
            run_dir=run_dir,
            data_shards=placement.data_shards,
            control_shards=placement.control_shards,
            token=token,
            factory=factory,
            settings=settings,
            starter=starter,
            listen=listen,
        )
        for name in names
    ]


def class_options() -> dict[str, Any]:
    """How Ray is to run the actor class."""
    return {
        "num_cpus": SHARD_CPUS,
        "concurrency_groups": {CONTROL_GROUP: 8},
        "max_restarts": -1,
        "max_task_retries": 0,  # Ray can't tell whether a failed call ran
    }


def actor_options(spec: ShardSpec) -> dict[str, Any]:
    """How Ray is to make the actor of one shard."""
    options: dict[str, Any] = {
        "name": actor_name(spec.shard),
        "namespace": spec.namespace,
        "lifetime": "detached",
        "max_pending_calls": limits.ACTOR_CALLS_PENDING_MAX,
    }
    if spec.listen == "tcp":  # else Ray fills one node first, and that one's end takes all
        options["scheduling_strategy"] = "SPREAD"
    else:
        options["num_cpus"] = 0
    return options


def process_environment(
    auth_token_path: str | None = None, preload: Sequence[str] = ()
) -> dict[str, str]:
    """What the starter's environment must hold before Ray starts a local cluster.

    Args:
        auth_token_path: a file with the secret that every Ray process of the cluster shows;
            without one, Ray keeps such a file in the user's home.
        preload: modules that each worker imports as it starts. Importing is most of what a shard
            that starts anew takes: with an idle worker that has done it, that is done before.
    """
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_task_events_report_interval_ms": "0",  # else the GCS grows by 3 KB a call
        "RAY_worker_niceness": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_raylet_start_wait_time_s": "60",
        # Else Ray ends this process when its GCS is gone for a minute; the supervisor rebuilds it.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000",
    }
    if auth_token_path is not None:
        variables["RAY_AUTH_TOKEN_PATH"] = auth_token_path
    if preload:
        variables["RAY_preload_python_modules"] = ",".join(preload)
    return variables
