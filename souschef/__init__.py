"""SousChefs: the queue, metadata and liveness of a subset of one workflow's instances.

Read in this order: rows (what is stored), lane (a queue with a window in memory), known (what
memory holds), roster (queue, slots and liveness), repair, lateness, env, souschef (the entity).

Pure: all but souschef.

Never: free a slot without the Engine's word.
"""

if __name__ != "toque.souschef":
    raise ImportError(f"import this package as 'toque.souschef', not as {__name__!r}")
