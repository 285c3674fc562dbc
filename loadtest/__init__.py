"""The load test: puts a control plane under load and says what it did. `toque loadtest`.

Read in this order: result (the document that a test gives), options, arrivals (when something is
to be sent), load and driver (sending it), scenarios (what is sent when), samples (the control
plane's own figures beside it), run (a test from its start to its document). What reads documents
stands beside it and needs none of the rest.

Pure: arrivals, objectives, shares, samples, result. Never: measures from the time at which a
request was sent where it was meant to be sent earlier.
"""

if __name__ != "toque.loadtest":
    raise ImportError(f"import this package as 'toque.loadtest', not as {__name__!r}")
