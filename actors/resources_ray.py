"""Bodies of steps as Ray tasks, with the resources that the step asks for.

Ray admits a task when its resources are free and never repeats it (`max_retries=0`): retries are
the engine's. A worker or node that is lost is told as such. A task that is not wanted any more is
cancelled by force, its process with it.

Ray keeps processes and uses them again for other tasks. Those of an account that is not trusted
carry a variable of their own in their environment, so that Ray gives them processes that no other
account has used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from .app_code import app_modules
from .fit import unmet
from .worker import ACCOUNT_VARIABLE, ASKED_VARIABLE, scrub_environment

_log = logging.getLogger("toque.actors")
_NODES_FRESH_S = 5.0
_LOST = (WorkerCrashedError, NodeDiedError, OutOfMemoryError, ObjectLostError)


def ray_options(options: dict[str, Any], account: str | None) -> dict[str, Any]:
    """Options as Ray takes them.

    Args:
        options: an author's.
        account: whose processes they must be; None: the trusted one's.
    """
    made = {k: dict(v) if hasattr(v, "items") else v for k, v in options.items()}
    if account is not None:
        variables = dict(made.get("runtime_env", {}).get("env_vars", {}))
        own = {ACCOUNT_VARIABLE: account, ASKED_VARIABLE: json.dumps(sorted(variables))}
        made["runtime_env"] = {"env_vars": {**variables, **own}}
    return made


_pickle: Any = cloudpickle.dumps  # untyped


def _run(pickled: bytes) -> Any:
    """In the task. The bytes were made by `submit` in a process of the same account."""
    scrub_environment(os.environ)
    return cloudpickle.loads(pickled)()


class RayResources:
    """Runs calls as tasks. Made in a process that is connected to Ray.

    Args:
        account: whose code it is; None: the trusted one's.
        lost: makes the error for a task whose process ended.
    """

    def __init__(self, account: str | None, lost: Callable[[str], Exception]) -> None:
        self._account = account
        self._lost = lost
        self._nodes = _Nodes()
        options: dict[str, Any] = {"max_retries": 0}
        self._function: Any = ray.remote(**options)(_run)

    def submit(
        self,
        call: Any,
        options: dict[str, Any],
        name: str,
        done: Callable[[BaseException | None, Any], None],
    ) -> RayTask:
        """See `engines.resource_body.Resources`."""
        loop = asyncio.get_running_loop()
        task = RayTask(options, self._nodes)
        try:
            _send_code_of_apps()
            pickled = _pickle(call)
            task.reference = self._function.options(
                name=name, **ray_options(options, self._account)
            ).remote(pickled)
        except Exception as error:  # what it closes over can't be pickled, say
            loop.call_soon(done, error, None)
            return task

        def finished(future: Any) -> None:
            error = future.exception()
            value = None if error is not None else future.result()
            try:
                loop.call_soon_threadsafe(done, self._told(error), value)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                pass

        task.reference.future().add_done_callback(finished)
        return task

    def _told(self, error: BaseException | None) -> BaseException | None:
        if isinstance(error, TaskCancelledError):
            return asyncio.CancelledError()
        if isinstance(error, RayTaskError):
            return error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, _LOST):
            return self._lost(str(error).strip().partition("\n")[0])
        return error


class _Nodes:
    """The nodes of the cluster as they were some seconds ago.

    They are asked for in a thread: while the GCS is away, that takes as long as it is.
    """

    def __init__(self) -> None:
        self.known: list[dict[str, Any]] = []
        self._asked_at = float("-inf")
        self._is_asking = False

    def look(self) -> None:
        """Have them asked for, unless that was done lately; returns at once."""
        now = asyncio.get_running_loop().time()
        if self._is_asking or now - self._asked_at < _NODES_FRESH_S:
            return
        self._asked_at, self._is_asking = now, True
        threading.Thread(target=self._ask, name="toque-nodes", daemon=True).start()

    def _ask(self) -> None:
        try:
            nodes: Any = ray.nodes  # untyped
            self.known = nodes()
        except Exception as error:  # it only helps to tell why somebody waits
            _log.info("the nodes of the cluster can't be told: %s", error)
        finally:
            self._is_asking = False


class RayTask:
    """A task that was sent.

    Args:
        options: what it asks for.
        nodes: what the cluster has.
    """

    reference: Any = None

    def __init__(self, options: dict[str, Any], nodes: _Nodes) -> None:
        self._options = options
        self._nodes = nodes
        nodes.look()

    def note(self) -> str:
        """That the cluster lacks what it asks for, as far as is known."""
        self._nodes.look()
        return unmet(self._options, self._nodes.known)

    def cancel(self) -> None:
        """Take its process away."""
        if self.reference is not None:
            try:
                ray.cancel(self.reference, force=True)
            except RayError:
                pass


def _send_code_of_apps() -> None:
    """App files are modules of no package: their code must travel, since no import finds it."""
    by_value: Any = cloudpickle.register_pickle_by_value  # untyped
    for module in app_modules():
        by_value(module)
