"""Workflow instances: what authors write, the journal, replay, and the Engine entity.

Read in this order: status (values and the transition table), workflow and step (what authors
see; config, durations, shapes and failures hold their parts), views (what front ends see),
journal (records and how they are applied), loop (the deterministic event loop that runs `run`),
claiming (what `run` asks for, identity) and replay (delivery order), child_steps and joins (what
it asks of children), run_port (how rows and code meet), engine (the entity), parenting (its
children, and what relatives tell it), operations (what may be done with it), life (how it runs),
phases (how it parks, wakes and ends), family (what it tells relatives) and keeping (its alarm and
reports; rows are its hands), code_host and local_run (code in this process; bodies), placement
(where code runs), worker_host and remote_run (code in a worker, seen from its shard), worker (the
same, seen from there), shard (grants, lists), reporter and ports (what SousChefs are told).

Pure: all but engine and what it is built on (parenting, operations, deletion, observed, life,
phases, family, keeping), bodies, rows, shard, reporter, local_run, code_host, placement and the
workers' parts, which are thin shells.

Never: start a step's body, or tell anyone anything, before the records it depends on are durable.
"""

if __name__ != "toque.engines":
    raise ImportError(f"import this package as 'toque.engines', not as {__name__!r}")
