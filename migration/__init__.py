"""Store formats: their numbers, and what may be opened.

Read: formats. Never: open a directory of a newer format.
"""

if __name__ != "toque.migration":
    raise ImportError(f"import this package as 'toque.migration', not as {__name__!r}")
