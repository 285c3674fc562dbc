"""The entity runtime: addressable single-threaded objects with durable state.

Read in this order: ids, errors, limits, clock, entropy, codec, tables, store (the port),
entity (what authors subclass), messages, host (activation, gates, dispatch), alarms, outbox,
rpc (batched calls between shards).

Pure: everything whose file name does not end in `_sqlite` or `_socket`. Time, randomness,
storage and transport come in through constructors.

Never: read the wall clock, draw a random number or open a file outside the shells named above.
"""

if __name__ != "toque.runtime":
    raise ImportError(f"import this package as 'toque.runtime', not as {__name__!r}")
