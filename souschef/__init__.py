"""SousChefs: the queue, metadata and liveness of a subset of one workflow's instances.

Read in this order: roster (queue and slot use, pure), souschef (the entity).

Never: free a slot without the Engine's word.
"""

if __name__ != "toque.souschef":
    raise ImportError(f"import this package as 'toque.souschef', not as {__name__!r}")
