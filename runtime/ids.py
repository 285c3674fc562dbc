"""Names, ids and addresses: their grammar, and which shard an entity lives on.

One validator per kind of name, used at every edge. Shards are named `d0, d1, ...` (data shards:
Engines and users' entities) and `c0, c1, ...` (control shards: Account, Gatekeeper, SousChefs).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from . import limits
from .errors import InvalidId
from .guarded import shown

SHARD_KINDS = frozenset({"EngineShard", "ShardInfo"})
"""Kinds of which each shard has one; the key is the shard's name."""

ACCOUNT_OLD_KIND = "AccountOld"
OLD_SOUSCHEF = "-/old"
"""In place of `workflow uuid/number` in the key of an account's AccountOld, its SousChef on V1."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]*\Z")
_ID_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~/-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_RESERVED_IDS = frozenset({"batch", "terminate", "terminateAll"})
_RESERVED_PATTERN = re.compile(r"cf_[0-9a-f]{64}\Z")


class EntityRef(NamedTuple):
    """The address of an entity: its kind (class) and its key."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}({self.key})"


def _name(value: object, what: str, chars_max: int) -> str:
    if not isinstance(value, str) or len(value) > chars_max or not _NAME.match(value):
        raise InvalidId(
            f"{what} {shown(value)} is not valid: use 1 to {chars_max} letters, digits, '_' or "
            f"'-', starting with a letter, digit or '_', for example 'order-42'."
        )
    return value


def check_account_id(value: object) -> str:
    """The account id, or `InvalidId`."""
    return _name(value, "account id", limits.ACCOUNT_ID_CHARS_MAX)


def check_workflow_name(value: object) -> str:
    """The workflow name, or `InvalidId`."""
    return _name(value, "workflow name", limits.WORKFLOW_NAME_CHARS_MAX)


def check_event_type(value: object) -> str:
    """The event type, or `InvalidId`."""
    return _name(value, "event type", limits.EVENT_TYPE_CHARS_MAX)


def check_instance_id(value: object) -> str:
    """The instance id (segments joined by `/`), or `InvalidId`.

    >>> check_instance_id("folder/7/page/3/sync")
    'folder/7/page/3/sync'
    """
    if not isinstance(value, str):
        raise InvalidId(f"instance id must be a string, not {type(value).__name__}.")
    well_formed = 0 < len(value) <= limits.INSTANCE_ID_CHARS_MAX and all(
        map(_SEGMENT.match, value.split("/"))
    )
    if not well_formed:
        raise InvalidId(
            f"instance id {shown(value)} is not valid: use segments joined by '/', each of "
            "letters, digits and '-_.:@~' and starting with a letter, digit or '_', at most "
            f"{limits.INSTANCE_ID_CHARS_MAX} characters in all, for example 'folder/7/page-3'."
        )
    if value in _RESERVED_IDS or _RESERVED_PATTERN.match(value):
        raise InvalidId(f"instance id {shown(value)} is reserved; choose another.")
    return value


def check_id_prefix(value: object) -> str:
    """What instance ids may begin with, or `InvalidId`."""
    if (
        not isinstance(value, str)
        or len(value) > limits.INSTANCE_ID_CHARS_MAX
        or not _ID_PREFIX.match(value)
    ):
        raise InvalidId(
            f"prefix {shown(value)} is not valid: no instance id begins so. Use letters, digits "
            f"and '-_.:@~/', at most {limits.INSTANCE_ID_CHARS_MAX}, for example 'folder/7/'."
        )
    return value


def check_step_name(value: object) -> str:
    """The step name, or `InvalidId`."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= limits.STEP_NAME_CHARS_MAX
        or _CONTROL.search(value)
    ):
        raise InvalidId(
            f"step name {shown(value)} is not valid: use 1 to {limits.STEP_NAME_CHARS_MAX} "
            "characters without control characters, for example 'charge card'."
        )
    return value


def engine_key(account: str, workflow_uuid: str, instance_id: str) -> str:
    """The key of the Engine that is that instance."""
    return f"{account}/{workflow_uuid}/{instance_id}"


def split_engine_key(key: str) -> tuple[str, str, str]:
    """`(account, workflow uuid, instance id)` of an Engine's key."""
    account, workflow_uuid, instance_id = key.split("/", 2)
    return account, workflow_uuid, instance_id


def old_key(account: str) -> str:
    """The key of an account's AccountOld; also the key of its lease on V2."""
    return f"{account}/{OLD_SOUSCHEF}"


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and for ever."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def old_account(account: str) -> EntityRef:
    """The entity that is an account's control plane on V1 (`migration.account_old`)."""
    return EntityRef(ACCOUNT_OLD_KIND, old_key(account))


class Placement(NamedTuple):
    """How many shards there are, and so where each entity lives.

    Attributes:
        data_shards: number of `d` shards, fixed when a data directory is made.
        control_shards: number of `c` shards, fixed likewise.
        control_kinds: kinds that live on control shards.
    """

    data_shards: int = 1
    control_shards: int = 1
    control_kinds: frozenset[str] = frozenset(
        {
            "Account",
            ACCOUNT_OLD_KIND,
            "Clearing",
            "Gatekeeper",
            "Identity",
            "Migration",
            "SousChef",
        }
    )

    def shard_of(self, ref: EntityRef) -> str:
        """The name of the shard that the entity lives on."""
        kind, key = ref
        if kind in SHARD_KINDS:
            return key
        if kind in self.control_kinds:
            return f"c{stable_hash(key) % self.control_shards}"
        return f"d{stable_hash(key) % self.data_shards}"

    def data_names(self) -> list[str]:
        """The names of all data shards."""
        return [f"d{n}" for n in range(self.data_shards)]

    def control_names(self) -> list[str]:
        """The names of all control shards."""
        return [f"c{n}" for n in range(self.control_shards)]

    def names(self) -> list[str]:
        """The names of all shards, control shards first."""
        return self.control_names() + self.data_names()
