"""Users' workflows under simulation, in virtual time: `toque.testing` (docs/testing.md).

Read in this order: world (shards, their owners and what befalls them, shared with
`tests/simulation`), build (how a shard is put together for users' code), bodies (where bodies
run, are replaced and noted), mishaps (what a seed decides), simulation and handles (what tests
hold), verdict and everywhere (crashes at each commit), replaying (old journals on new code),
plugin_pytest.

Pure: mishaps, verdict, why. Never: waits in real time, opens a socket, starts a thread or Ray.
"""

if __name__ != "toque.testkit":
    raise ImportError(f"import this package as 'toque.testkit', not as {__name__!r}")
