"""The control plane as people reach it: HTTP, the SDK client, the command line, and wiring.

Read in this order: wiring (what is plugged where), service (the operations), app_http (routes),
client (the SDK), cli.

Never: decide here what an entity must decide; this floor validates, routes and shapes.
"""

if __name__ != "toque.api":
    raise ImportError(f"import this package as 'toque.api', not as {__name__!r}")
