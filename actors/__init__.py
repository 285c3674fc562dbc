"""Every Ray call: shard actors, their supervisor, workers, resource steps, start and stop.

Read in this order: topology (which actors, how configured), shard_ray (the actor), cluster_ray
(start, attach, stop), local_run and keeper (nothing stays behind), supervisor_ray (what hangs
comes back), worker (processes for user code, and children as such), code_host_ray (actors as
such), resources_ray (bodies as tasks), prints.

Pure: topology and prints. keeper runs as a program of its own, without the rest of toque.

Never: keep state here; the store is the truth and an actor may vanish at any time.
"""

if __name__ != "toque.actors":
    raise ImportError(f"import this package as 'toque.actors', not as {__name__!r}")
