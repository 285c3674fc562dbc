"""The account: its small registry entity, and the Gatekeeper that leases slots.

Read in this order: fairness (max-min division), slots (the lease ledger), messages, account,
gatekeeper (the entity).

Pure: fairness, slots. Never: lower a ledger entry before its holder has confirmed.
"""

if __name__ != "toque.gatekeeper":
    raise ImportError(f"import this package as 'toque.gatekeeper', not as {__name__!r}")
