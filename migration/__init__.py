"""Changes of the control plane under running instances: formats and cut-overs.

Nothing needs to be changed yet: format 1 of directory and store is the first, and `runtime`
refuses newer ones itself. Upgrades of older formats and the move from another control plane
belong here, above `souschef`, which they may use.

Never: open a directory of a newer format.
"""

if __name__ != "toque.migration":
    raise ImportError(f"import this package as 'toque.migration', not as {__name__!r}")
