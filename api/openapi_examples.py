"""Examples of the OpenAPI document: what the server would answer about a shop's orders.

A test asks a real server and compares: the fields of each example are those of the answer.
"""

from __future__ import annotations

from .listing import STATUSES

UUID = "0b6f9f7e-5a5b-4a4e-9d39-3f1f7b1d2c11"
TIME = "2026-01-31T12:00:00.123Z"
EVENT = {
    "eventId": 3,
    "instanceId": "order-42",
    "type": "step_started",
    "timestamp": 1769860800123,
    "stepName": "charge-1",
}
WAITING = {
    "id": "order-42",
    "status": "waiting",
    "since": TIME,
    "reasons": [
        {
            "kind": "event",
            "name": "approval-1",
            "since": TIME,
            "due": TIME,
            "event_type": "approval",
            "attempt": None,
            "error": None,
            "child": None,
        }
    ],
    "more": 0,
    "slot": None,
    "buffered": [{"type": "aproval", "count": 1, "oldest": TIME, "awaited": False}],
    "in_memory": False,
    "version_id": UUID,
    "code_changed": False,
}
WORKFLOW = {
    "id": "5f0c2b7f3c1e4d55a1c4c9f7a1b2c3d4",
    "name": "orders",
    "class_name": "Orders",
    "script_name": "shop.py",
    "created_on": TIME,
    "modified_on": TIME,
    "triggered_on": None,
    "instances": dict.fromkeys(STATUSES, 0) | {"complete": 12},
    "version_id": UUID,
}
VERSION = {
    "id": UUID,
    "class_name": "Orders",
    "created_on": TIME,
    "modified_on": TIME,
    "workflow_id": WORKFLOW["id"],
    "has_dag": True,
    "language": "python",
    "concurrency": {"limit": None},
    "default_retention": {"success_retention": None, "error_retention": None},
    "limits": {"steps": None},
}
GRAPH = {
    "version": 1,
    "workflow": {
        "class_name": "Orders",
        "functions": {},
        "nodes": [
            {
                "type": "start",
                "class_name": "Orders",
                "functions": {},
                "nodes": [],
                "payload": {"type": "unknown"},
            },
            {
                "type": "step_do",
                "name": "charge",
                "config": {
                    "retries": {"limit": 5, "delay": 10_000, "backoff": "exponential"},
                    "timeout": 600_000,
                },
                "nodes": [],
            },
        ],
        "payload": {"type": "unknown"},
    },
}
CREATED = {
    "id": "order-42",
    "status": "queued",
    "version_id": UUID,
    "workflow_id": WORKFLOW["id"],
    "trigger_source": "api",
}
LISTED = {
    "id": "order-42",
    "status": "complete",
    "created_on": TIME,
    "started_on": TIME,
    "ended_on": TIME,
    "modified_on": TIME,
    "version_id": UUID,
    "workflow_id": WORKFLOW["id"],
    "trigger_source": "api",
}
DETAIL = {
    "id": "order-42",
    "run_id": "9f7c1f0e6b1d4f0d8f6c7b5a4e3d2c1b",
    "workflow_id": WORKFLOW["id"],
    "status": "complete",
    "params": {"order": 42},
    "trigger": {"source": "api"},
    "versionId": UUID,
    "queued": TIME,
    "start": TIME,
    "end": TIME,
    "success": True,
    "error": None,
    "output": {"charged": True},
    "rollback": None,
    "step_count": 1,
    "steps": [
        {
            "type": "step",
            "name": "charge-1",
            "start": TIME,
            "end": TIME,
            "success": True,
            "output": {"charged": True},
            "error": None,
            "attempts": [{"start": TIME, "end": TIME, "success": True, "error": None}],
            "attempts_total": 1,
            "config": {
                "retries": {"limit": 5, "delay": 10_000, "backoff": "exponential"},
                "timeout": 600_000,
            },
            "retry_at": None,
            "interruptions": 0,
        }
    ],
    "created_on": TIME,
    "modified_on": TIME,
    "code_changed": False,
    "continued": 0,
    "parent": None,
}
REGISTERED = {
    "id": WORKFLOW["id"],
    "name": "orders",
    "class_name": "Orders",
    "script_name": "shop.py",
    "created_on": TIME,
    "modified_on": TIME,
    "triggered_on": None,
    "version_id": UUID,
    "is_deleted": 0,
    "terminator_running": 0,
}
