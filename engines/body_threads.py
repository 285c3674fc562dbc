"""Threads for synchronous bodies.

A thread can't be stopped. One whose body was given up (cancelled, or out of time) is *abandoned*:
it runs on until the body ends, and another takes its place, so that hung bodies of one instance
do not use up the threads of all. The abandoned are counted and, past a number, not replaced: then
bodies wait, and a warning names who holds the threads. All are daemons: a hung one does not keep
the process from ending.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable

from ..runtime.limits import BODY_THREADS_ABANDONED_MAX

_log = logging.getLogger("toque.engines")


class Job:
    """A piece of work for a thread.

    Attributes:
        who: names it: the instance's key and the step.
        work: what to do; gets the number of the thread's slot; must not raise.
    """

    __slots__ = ("is_abandoned", "is_cancelled", "is_over", "is_taken", "who", "work")

    def __init__(self, who: str, work: Callable[[int], None]) -> None:
        self.who = who
        self.work = work
        self.is_taken = False
        self.is_cancelled = False
        self.is_over = False
        self.is_abandoned = False


class BodyThreads:
    """See the module's description.

    Args:
        size: how many bodies run at a time, apart from abandoned ones.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._abandoned: set[Job] = set()
        self._free_slots: list[int] = []
        self._slots = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run a job in a thread, when one is free."""
        with self._changed:
            self._jobs.append(job)
            self._serve()

    def give_up(self, job: Job) -> bool:
        """Whether the job had not begun, and never will; else its thread is abandoned."""
        with self._changed:
            if not job.is_taken:
                job.is_cancelled = True
                return True
            if not job.is_abandoned and not job.is_over:
                job.is_abandoned = True
                self._abandoned.add(job)
                if len(self._abandoned) == BODY_THREADS_ABANDONED_MAX:
                    _log.error(
                        "%d threads hang in bodies that were given up; no more are replaced. "
                        "Most are of: %s",
                        len(self._abandoned),
                        ", ".join(f"{who} ({n})" for who, n in self.hung().most_common(3)),
                    )
                self._serve()
            return False

    def hung(self) -> Counter[str]:
        """Who holds threads although given up, and how many."""
        return Counter(job.who for job in list(self._abandoned))

    def close(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        """See that somebody takes the jobs that wait."""
        if self._idle:
            self._changed.notify()
        replaced = min(len(self._abandoned), BODY_THREADS_ABANDONED_MAX)
        if self._idle >= len(self._jobs) or self._threads >= self._size + replaced:
            return
        self._threads += 1
        if not self._free_slots:
            self._slots += 1
            self._free_slots.append(self._slots)
        slot = self._free_slots.pop()
        name = f"toque-step-{slot}"
        threading.Thread(target=self._run, args=(slot, name), name=name, daemon=True).start()

    def _run(self, slot: int, name: str) -> None:
        me = threading.current_thread()
        while (job := self._next()) is not None:
            me.name = f"{name} {job.who}"
            job.work(slot)
            me.name = name
            with self._changed:
                job.is_over = True
                self._abandoned.discard(job)
                if self._threads > self._size + len(self._abandoned):
                    break
        with self._changed:
            self._threads -= 1
            self._free_slots.append(slot)

    def _next(self) -> Job | None:
        """The next job; None once closed."""
        with self._changed:
            while not self._closed:
                while self._jobs:
                    job = self._jobs.popleft()
                    if not job.is_cancelled:
                        job.is_taken = True
                        return job
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return None
