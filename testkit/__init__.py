"""Users' workflows under simulation, in virtual time: `toque.testing` (docs/testing.md).

Read in this order: world (shards, their owners and what befalls them; `tests/simulation` inherits
from it too), users (the world of a test), skipping (its time), bodies (where bodies run, are
replaced and noted), mishaps (what a seed decides), driving, simulation and handles (what tests
hold), verdict and everywhere (a crash at each commit), histories and replaying (old journals on
new code), factory and plugin_pytest.

Pure: mishaps, verdict. Never: waits in real time, opens a socket, starts a thread or Ray.
"""

if __name__ != "toque.testkit":
    raise ImportError(f"import this package as 'toque.testkit', not as {__name__!r}")
