"""Names and ids: one grammar at every edge; where entities live."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toque.runtime import ids, limits
from toque.runtime.errors import InvalidId

NAMES = (ids.check_account_id, ids.check_workflow_name, ids.check_event_type)
BAD_NAMES = [
    "",
    "-a",
    "a b",
    "a.b",
    "a/b",
    "ä",
    "a\n",
    "a\x00",
    "\ud800",
    None,
    7,
    b"a",
    "é",
    "a" * 101,
]


@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("name", ["a", "A9", "_x", "order-42", "a_b-c", "0"])
def test_good_names_pass_unchanged(check, name):
    assert check(name) == name


@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_with_an_example(check, name):
    with pytest.raises(InvalidId, match="for example"):
        check(name)


@pytest.mark.parametrize(
    "id",
    ["a", "folder/7/page/3/sync", "a.b:c@d~e-f_g", "7", "_", "a" * 256, "a/b.", "x/batch", "Batch"],
)
def test_good_instance_ids(id):
    assert ids.check_instance_id(id) == id


@pytest.mark.parametrize(
    "id",
    [
        "", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/./b", ".a", "a/-b", "a b", "a%2Fb",
        "a" * 257, "ä", "é", "a\n", "a\x00b", "\ud800", "batch", "terminate", "terminateAll",
        "cf_" + "0" * 64, None, 5, b"a", ["a"],
    ],
)  # fmt: skip
def test_bad_instance_ids(id):
    with pytest.raises(InvalidId):
        ids.check_instance_id(id)


@pytest.mark.parametrize("name", ["charge card", "ä", "a/b", "🙂", "x" * 256])
def test_good_step_names(name):
    assert ids.check_step_name(name) == name


@pytest.mark.parametrize("name", ["", "a\tb", "a\x7f", "\x85", "\udfff", "x" * 257, None, 1])
def test_bad_step_names(name):
    with pytest.raises(InvalidId):
        ids.check_step_name(name)


@given(st.text(max_size=300))
def test_whatever_passes_as_an_instance_id_is_safe_as_a_key_and_comes_back(text):
    try:
        ids.check_instance_id(text)
    except InvalidId:
        return
    assert text.isascii()
    assert not {"", ".", ".."} & set(text.split("/"))
    key = ids.engine_key("acc", "uuid", text)
    assert ids.split_engine_key(key) == ("acc", "uuid", text)
    assert len(key) <= limits.ENTITY_KEY_CHARS_MAX


def test_control_kinds_live_on_control_shards_and_the_rest_on_data_shards():
    placement = ids.Placement(4, 2)
    for kind in ("Account", "Gatekeeper", "Identity", "SousChef"):
        assert placement.shard_of(ids.EntityRef(kind, "k")).startswith("c")
    for kind in ("Engine", "Counter"):
        assert placement.shard_of(ids.EntityRef(kind, "k")).startswith("d")
    assert placement.shard_of(ids.EntityRef("EngineShard", "d3")) == "d3"
    assert placement.names() == ["c0", "c1", "d0", "d1", "d2", "d3"]


def test_entities_spread_evenly():
    placement = ids.Placement(8, 1)
    counts = dict.fromkeys(placement.data_names(), 0)
    for n in range(8_000):
        counts[placement.shard_of(ids.EntityRef("Engine", f"a/b/{n}"))] += 1
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


def test_an_entity_lives_on_the_same_shard_in_every_process():
    code = "from toque.runtime.ids import stable_hash; print(stable_hash('a/b/ä'))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert shown == {f"{ids.stable_hash('a/b/ä')}\n"}
