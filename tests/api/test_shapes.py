"""The JSON shapes: every field there, standard names, and what clients of the standard rely on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from toque.api import requests, shapes
from toque.api.errors_http import answer_of
from toque.engines.views import ErrorView, InstanceView, RollbackView
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, MethodNotAllowed, ToqueError, Unauthorized

VIEW = InstanceView(
    "a/1", "run", "orders", "uuid", "v1", "hash", "queued", "api", b'{"n": 1}', None, None,
    1_700_000_000_123, 1_700_000_000_123, None, None, 1_700_000_000_123, 0,
)  # fmt: skip


def shown(view: InstanceView) -> Any:
    return json.loads(shapes.answer(shapes.detail(view)))["result"]


def test_every_field_is_there_from_the_start() -> None:
    assert shown(VIEW) == {
        "id": "a/1",
        "run_id": "run",
        "workflow_id": "uuid",
        "status": "queued",
        "params": {"n": 1},
        "trigger": {"source": "api"},
        "versionId": "v1",
        "queued": "2023-11-14T22:13:20.123Z",
        "start": None,
        "end": None,
        "success": None,
        "error": None,
        "output": None,
        "rollback": None,
        "step_count": 0,
        "steps": [],
        "created_on": "2023-11-14T22:13:20.123Z",
        "modified_on": "2023-11-14T22:13:20.123Z",
        "code_changed": False,
        "continued": 0,
        "parent": None,
    }


@pytest.mark.parametrize(
    ("status", "success"),
    [("running", None), ("waiting", None), ("complete", True), ("errored", False),
     ("terminated", False)],
)  # fmt: skip
def test_success_is_known_at_the_end_only(status: str, success: bool | None) -> None:
    assert shown(msgspec.structs.replace(VIEW, status=status))["success"] is success


def test_errors_have_name_and_message() -> None:
    view = msgspec.structs.replace(VIEW, status="errored", error=ErrorView("KeyError", "'x'"))
    assert shown(view)["error"] == {"name": "KeyError", "message": "'x'"}


def test_steps_by_type(plane: Any) -> None:
    step, sleep, wait = shown(msgspec.structs.replace(VIEW, steps=plane.steps))["steps"]
    assert step["type"] == "step"
    assert step["end"] is step["success"] is None
    assert step["attempts"][0]["end"] is not None
    assert step["config"] == {
        "retries": {"limit": 5, "delay": 10_000, "backoff": "constant"},
        "timeout": 600_000,
    }
    assert sleep == {
        "type": "sleep",
        "name": "nap-1",
        "start": "2023-11-14T22:13:20.000Z",
        "end": "2023-11-14T22:14:20.000Z",
        "finished": False,
        "error": None,
    }
    assert wait["event_type"] == "approval"
    assert wait["end"] == "2023-11-15T22:13:20.000Z"


def test_create_answers() -> None:
    assert json.loads(shapes.answer(shapes.created(VIEW))) == {
        "success": True,
        "errors": [],
        "messages": [],
        "result": {
            "id": "a/1",
            "status": "queued",
            "version_id": "v1",
            "workflow_id": "uuid",
            "trigger_source": "api",
        },
    }
    done = msgspec.structs.replace(VIEW, status="complete", output=b"[1]")
    waited = json.loads(shapes.answer(shapes.created_and_waited(done)))["result"]
    assert (waited["finished"], waited["success"], waited["output"]) == (True, True, [1])
    assert waited["rollback"] is None
    undone = msgspec.structs.replace(
        VIEW, status="errored", rollback=RollbackView("complete", None)
    )
    waited = json.loads(shapes.answer(shapes.created_and_waited(undone)))["result"]
    assert waited["rollback"] == {"outcome": "complete", "error": None}


def test_a_cursor_is_absent_at_the_end() -> None:
    assert b"cursor" not in shapes.answer_list([], shapes.list_info(0, 50, 0, 1, None))
    assert b'"cursor":"c"' in shapes.answer_list([], shapes.list_info(1, 1, 2, 1, "c"))
    assert shapes.list_info(1, 50, 101, 3, None).total_pages == 3


def test_errors_in_the_envelope() -> None:
    status, headers, body = answer_of(Unauthorized("no"))
    assert status == 401
    assert (b"www-authenticate", b"Bearer") in headers
    assert json.loads(body) == {
        "result": None,
        "success": False,
        "errors": [
            {"code": 10000, "message": "no", "toque": {"code": "auth.unauthorized", "data": {}}}
        ],
        "messages": [],
    }
    _, headers, _ = answer_of(MethodNotAllowed("no", {"allowed": ["GET", "POST"]}))
    assert (b"allow", b"GET, POST") in headers
    for inner in (ValueError("secret"), ToqueError("secret")):
        status, _, body = answer_of(inner)
        assert status == 500
        assert b"secret" not in body
    assert json.loads(answer_of(InvalidArgument("\ud800"))[2])["errors"]


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h", 3_600_000), ("30", 30_000),
     ("1.5s", 1500), ("10 seconds", 10_000), ("1 minute", 60_000), ("2 milliseconds", 2)],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert requests.parse_duration(text, "wait") == ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 moon", "1e3s", "\N{ARABIC-INDIC DIGIT ONE}s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InvalidArgument, match="for example wait=30s"):
        requests.parse_duration(text, "wait")


@pytest.mark.parametrize("text", ["-1", "1.0", "", "٣", "9" * 16, str(2**63), "9" * 19, "9" * 5000])
def test_a_number_of_a_query_fits_all_that_lies_behind(text: str) -> None:
    with pytest.raises(InvalidArgument, match="cursor"):
        requests.parse_int({"cursor": text}, "cursor", 0)
    assert requests.parse_int({"cursor": str(limits.JSON_INTEGER_MAX)}, "cursor", 0) == 2**53 - 1
