"""The V1 control plane, the move of an account from it to V2, and upgrades of formats on disk.

Read `messages` (what the parts say to each other), `cutover` (the move as a state machine),
`migration` (the entity that makes it), then of V1 `old_rows` and `old_index` (its instances),
`old_registry`, `rate_window`, `old_kitchen` (a SousChef with these), `old_moves` (its part in the
move) and `account_old` (what V1 serves). `formats` lists every upgrade of directories and stores,
which `runtime` applies when it opens them; `background` runs the parts of them that come after.

Never: two planes that give slots or take creates for one account; a directory of a newer format.
"""

if __name__ != "toque.migration":
    raise ImportError(f"import this package as 'toque.migration', not as {__name__!r}")
