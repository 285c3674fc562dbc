"""Which plane each method of the entities that take part is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACCOUNT, ACME, GATEKEEPER, OLD, Rig, rig_at
from toque.gatekeeper.account import Account
from toque.gatekeeper.gatekeeper import Gatekeeper
from toque.gatekeeper.messages import (
    CycleRequest,
    LimitsChange,
    RateRequest,
    WorkflowRecord,
)
from toque.gatekeeper.planes import WrongControlPlane
from toque.migration.account_old import AccountOld
from toque.migration.messages import Forwarded, Frozen, OldCreate, RegistryPart
from toque.runtime.dispatch import handlers_of
from toque.runtime.errors import ToqueError
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


ANY = {"v1", "moving", "v2"}
NO_CHANGE = LimitsChange()


DEPLOY = ("work", "work", "app", "h2", False)
Row = tuple[str, set[str], tuple[Any, ...]]
"""A method, on which planes it serves, and arguments."""


def _of_old(rig: Rig) -> list[Row]:
    """AccountOld's."""
    uuid, key = rig.records["work"].uuid, rig.key("probe")
    told = Forwarded(key, "view", [False, False], 1_000)
    return [
        ("begin", ANY, ()),
        ("report", ANY, ([],)),
        ("statistics", ANY, ()),
        ("place_of", ANY, (key,)),
        ("status", ANY, ()),
        ("create", {"v1"}, (OldCreate(key, rig.request()),)),
        ("forward", {"v1"}, (told,)),
        ("list_page", {"v1"}, (rig.page(),)),
        ("counts", {"v1"}, (uuid, "")),
        ("snapshot", {"v1"}, (-1,)),
        ("put_script", {"v1"}, ("app", "h1", [("work", "work")], False)),
        ("register", {"v1"}, ("work", "work", "app", NO_CHANGE)),
        ("list_scripts", {"v1"}, ()),
        ("put_workflow", {"v1"}, DEPLOY),
        ("get_workflow", {"v1"}, ("work",)),
        ("list_versions", {"v1"}, ("work",)),
        ("change_limits", {"v1"}, (None, NO_CHANGE)),
        ("set_limits", {"v1"}, (50,)),
        ("delete_workflow", {"v1"}, ("none",)),
        ("bear", {"v1", "v2"}, ("none",)),
        ("drop_unborn", {"v1", "v2"}, ("none",)),
        ("abort", ANY, ("m0",)),
        ("freeze", ANY, ("m0",)),
        ("registry_part", {"moving", "v2"}, ("m0", None)),
        ("route", {"moving", "v2"}, ("m0",)),
        ("ask", {"v2"}, (key, False)),
        ("unborn_page", ANY, (rig.page(),)),
        ("unborn_counts", ANY, (uuid, "")),
        ("heal", {"v2"}, ("m0",)),
        ("healed", {"v2"}, ("m0",)),
        ("retire", {"v2"}, ("m0",)),
    ]


def _of_account(rig: Rig) -> list[Row]:
    """The Account's."""
    uuid = rig.records["work"].uuid
    return [
        ("set_plane", ANY, ("v1",)),
        ("adopt_part", ANY, ("m0", RegistryPart("accounts", [], "x"))),
        ("adopt", ANY, ("m0",)),
        ("healed", ANY, ("m0",)),
        ("retired", ANY, ("m0",)),
        ("spread", ANY, (uuid, 1)),
        ("snapshot", {"v2"}, (-1,)),
        ("put_script", {"v2"}, ("app", "h1", [("work", "work")], False)),
        ("register", {"v2"}, ("work", "work", "app", NO_CHANGE)),
        ("list_scripts", {"v2"}, ()),
        ("put_workflow", {"v2"}, DEPLOY),
        ("get_workflow", {"v2"}, ("work",)),
        ("list_versions", {"v2"}, ("work",)),
        ("change_limits", {"v2"}, (None, NO_CHANGE)),
        ("set_limits", {"v2"}, (50,)),
        ("set_souschefs", {"v2"}, ("work", 1)),
        ("set_workflow_limits", {"v2"}, ("work", 1, 0)),
        ("delete_workflow", {"v2"}, ("none",)),
        ("abandon", ANY, ("m0",)),
    ]


def _of_gatekeeper(rig: Rig) -> list[Row]:
    """The Gatekeeper's."""
    uuid = rig.records["work"].uuid
    cycle = CycleRequest(f"{ACME}/u/0", 1, 1, 0, 0, 0, 0, 0, 0, 0, False)
    rates = RateRequest("front", 1, {}, {})
    return [
        ("cycle", {"v2"}, (cycle,)),
        ("lease_rates", {"v2"}, (rates,)),
        ("statistics", ANY, ()),
        ("set_plane", ANY, ("v1",)),
        ("abandon", ANY, ("m0",)),
        ("adopt", ANY, ("m0", Frozen("m0", 1, 1, 0, 0, 0, 0, 0, 50))),
        ("set_spread", ANY, (uuid, None)),
        ("set_queue", ANY, (uuid, None)),
        ("set_rate", ANY, (uuid, None)),
        ("set_limit", ANY, (50,)),
        ("set_workflow", ANY, (uuid, 1, 0)),
    ]


def _methods(rig: Rig) -> list[tuple[EntityRef, str, set[str], tuple[Any, ...]]]:
    """Every method that has to do with planes: whose, on which planes, and arguments."""
    tables = ((OLD, _of_old(rig)), (ACCOUNT, _of_account(rig)), (GATEKEEPER, _of_gatekeeper(rig)))
    return [(ref, *row) for ref, rows in tables for row in rows]


@pytest.mark.parametrize("plane", ["v1", "moving", "v2"])
async def test_each_method_is_for_its_planes(tmp_path: Path, plane: str) -> None:
    async with rig_at(tmp_path) as rig:
        if plane == "moving":
            await rig.freeze("m5")
        elif plane == "v2":
            await rig.move("m5")
        on_v2 = plane if plane != "moving" else "v1"  # what V2's entities know meanwhile
        for ref, method, planes, args in _methods(rig):
            found: Any = None
            try:
                await rig.router.call(ref, method, *args)
            except ToqueError as error:
                found = error
            wrong = isinstance(found, WrongControlPlane)
            known = plane if ref == OLD else on_v2
            assert wrong == (known not in planes), (plane, ref, method, found)
            if wrong:
                assert found.data == {
                    "account": ACME, "requires": [p for p in ("v1", "moving", "v2") if p in planes],
                    "is": known,
                }  # fmt: skip
                assert found.retryable
        assert (await rig.status()).plane == plane
        if plane == "v2":
            await rig.heal("m5")


def test_the_list_of_methods_is_whole() -> None:
    class Named(Rig):
        def __init__(self) -> None:
            record = WorkflowRecord("work", "u", "", "", "", "", 0, 0, 1, 0)
            self.records = {"work": record}
            self._requests = 0

    told = {(ref.kind, method) for ref, method, _, _ in _methods(Named())}
    for cls in (AccountOld, Account, Gatekeeper):
        missed = {name for name in handlers_of(cls) if (cls.KIND, name) not in told}
        assert missed <= {"count_into"}, (cls, missed)
