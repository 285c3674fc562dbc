"""Which actors there are and how they are configured."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from toque.actors import topology
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument
from toque.runtime.ids import Placement

TOKEN = b"secret-secret-secret-secret-secr"


def specs(placement: Placement, factory: str = "a.b:c") -> list[topology.ShardSpec]:
    return topology.shard_specs(
        data_dir="/data",
        run_dir="/run",
        placement=placement,
        token=TOKEN,
        factory=factory,
        settings={},
        starter=None,
    )


def test_there_is_one_spec_per_shard_control_shards_first() -> None:
    made = specs(Placement(2, 1))
    assert [spec.shard for spec in made] == ["c0", "d0", "d1"]
    assert [spec.socket_address(spec.shard) for spec in made] == [
        "unix:/run/c0.sock",
        "unix:/run/d0.sock",
        "unix:/run/d1.sock",
    ]
    assert {spec.placement for spec in made} == {Placement(2, 1)}


@pytest.mark.parametrize("placement", [Placement(0, 1), Placement(1, 0), Placement(64, 1)])
def test_a_placement_out_of_bounds_is_refused(placement: Placement) -> None:
    assert limits.SHARDS_MAX == 64
    with pytest.raises(InvalidArgument, match="shards"):
        specs(placement)


def test_a_factory_must_be_named_in_full() -> None:
    with pytest.raises(InvalidArgument, match="module:function"):
        specs(Placement(), "no_colon")


def test_namespaces_differ_by_directory_and_stay_the_same() -> None:
    assert topology.namespace("/data") == topology.namespace("/data")
    assert topology.namespace("/data") != topology.namespace("/data2")
    assert topology.namespace("/data").startswith("toque-")


def test_actors_outlive_their_maker_and_are_restarted_without_end() -> None:
    (spec, *_) = specs(Placement())
    options = {**topology.class_options(), **topology.actor_options(spec)}
    assert options["lifetime"] == "detached"
    assert options["max_restarts"] == -1
    assert options["max_task_retries"] == 0
    assert options["num_cpus"] == 0, "a step may ask for all CPUs of the machine"
    spread = topology.actor_options(dataclasses.replace(spec, listen="tcp"))
    assert {**topology.class_options(), **spread}["num_cpus"] > 0
    assert topology.CONTROL_GROUP in options["concurrency_groups"]
    assert options["namespace"] == spec.namespace


def test_a_spec_travels_and_does_not_show_its_secret() -> None:
    (spec, *_) = specs(Placement())
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "secret" not in repr(spec)


def test_the_clusters_secret_is_kept_out_of_the_home_directory() -> None:
    variables = topology.process_environment("/run/auth")
    assert variables["RAY_AUTH_MODE"] == "token"
    assert variables["RAY_AUTH_TOKEN_PATH"] == "/run/auth"
    assert variables["RAY_task_events_report_interval_ms"] == "0"
