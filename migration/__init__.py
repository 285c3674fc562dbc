"""The V1 control plane, and the move of an account from it to V2.

Read `messages` (what the parts say to each other), `cutover` (the move as a state machine),
`migration` (the entity that makes it), then `account_old`. Nothing needs to be changed on disk
yet: format 1 of directory and store is the first, and `runtime` refuses newer ones itself;
upgrades of older formats belong here.

Never: two planes that give slots or take creates for one account; a directory of a newer format.
"""

if __name__ != "toque.migration":
    raise ImportError(f"import this package as 'toque.migration', not as {__name__!r}")
