"""Restate's create to complete by one request that waits for the result; run in the kit's venv.

The kit's own first workload sends, then attaches: two requests. Its client and services are used
here for the other way, which is what toque's create-and-wait is. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, default=3000)
    options.add_argument("--conc", type=int, default=32)
    given, _ = options.parse_known_args()
    sys.path.insert(0, os.environ["PEERS"])
    kit, common = importlib.import_module("run_restate"), importlib.import_module("common")
    stack = kit.Stack()
    try:
        stack.start()
        asyncio.run(kit.calls("Wf1", "run1", 300, given.conc, "warm-"))
        with common.Window(stack.pids, kit.NAMES) as window:
            _, _, wall = asyncio.run(kit.calls("Wf1", "run1", given.n, given.conc, "a-"))
        _, alone, _ = asyncio.run(kit.calls("Wf1", "run1", 200, 1, "s-"))
        common.emit(
            "restate-call", "w1", n=given.n, concurrency=given.conc, **window.keys(),
            completions_per_s=given.n / wall,
            solo_start_to_complete_p50_ms=common.ms(common.pct(alone, 50)),
            solo_start_to_complete_p99_ms=common.ms(common.pct(alone, 99)),
        )  # fmt: skip
    finally:
        stack.kill()


if __name__ == "__main__":
    main()
