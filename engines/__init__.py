"""Workflow instances: what authors write, the journal, replay, and the Engine entity.

Read in this order: status (values and the transition table), workflow and step (what authors
see), views (what front ends see), journal (records and how they are applied), loop (the deterministic event loop that runs
`run`), replay (delivery order and identity), engine (the entity), index (lists), ports (what
the upper floors implement).

Pure: all but engine and code_host, which are thin shells.

Never: run user code before the records that it depends on are durable.
"""

if __name__ != "toque.engines":
    raise ImportError(f"import this package as 'toque.engines', not as {__name__!r}")
