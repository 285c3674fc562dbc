"""Every Ray call: shard actors, their supervisor, start, attach and stop.

Read in this order: topology, shard_ray (the actor), cluster_ray (start and attach), supervisor_ray.

Never: keep state here; the store is the truth and an actor may vanish at any time.
"""

if __name__ != "toque.actors":
    raise ImportError(f"import this package as 'toque.actors', not as {__name__!r}")
