"""The only place that spells a Redis key (docs/format.md, section 2)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from redis_state.ids import PartitionId, is_gen, is_uid, text_number

STORE_HASH_DIGITS = 16
_CLAIM = "x"
_PLACES = "i"
_TOTALS = "t"
_PARTITION_KEY = re.compile(
    r"\{(?P<tenant>(?:[0-9A-Za-z_.-]{1,64}:)?)rs:(?P<gen>[0-9a-f]{32})"
    r":(?P<operator>[0-9]+):(?P<partition>[0-9]+):(?P<store>[0-9a-f]{16})\}:(?P<rest>.+)",
    re.DOTALL,
)
_INSTANCE_REST = re.compile(r"i:(?P<operator>[0-9]+):(?P<partition>[0-9]+):(?P<store>[0-9a-f]{16})")


def tenant_of(key_prefix: str | None) -> str:
    """What stands before ``rs`` in every key: empty, or the option `keyPrefix` and a colon."""
    return f"{key_prefix}:" if key_prefix else ""


def store_hash(store: str) -> str:
    """The first hexadecimal digits of the SHA-256 of a store name."""
    return hashlib.sha256(store.encode()).hexdigest()[:STORE_HASH_DIGITS]


def partition(id_: PartitionId) -> str:
    """`P`: what all keys of a partition begin with, and their hash tag."""
    of = id_.store
    return f"{{{of.tenant}rs:{of.gen}:{of.operator}:{id_.partition}:{store_hash(of.store)}}}"


def meta(id_: PartitionId) -> str:
    """The hash with the meta fields and the manifest."""
    return f"{partition(id_)}:m"


def segment(id_: PartitionId, ident: str) -> str:
    """A delta or snapshot by its ident, such as ``d:12:9f…``."""
    return f"{partition(id_)}:{ident}"


def claim(id_: PartitionId) -> str:
    """Which maintenance worker is at a partition."""
    return f"{partition(id_)}:{_CLAIM}"


def query(gen: str, *, tenant: str = "") -> str:
    """The hash of a query."""
    return f"{{{tenant}rs:{gen}}}:q"


def checkpoints(*, tenant: str = "") -> str:
    """The hash that lists all checkpoints."""
    return f"{{{tenant}rs}}:c"


def names(*, tenant: str = "") -> str:
    """The hash that gives checkpoints of Python stores, which have names, their ids."""
    return f"{{{tenant}rs}}:n"


def looks(*, tenant: str = "") -> str:
    """The hash that keeps what maintenance saw of checkpoints that nobody seems to use."""
    return f"{{{tenant}rs}}:v"


def sizes(*, tenant: str = "") -> str:
    """The hash with the sizes of states, as those say that have a limit."""
    return f"{{{tenant}rs}}:b"


def looked_up(query_id: str, name: str, *, tenant: str = "") -> str:
    """Which version the newest batch of a query has looked another query's state up in.

    Args:
        name: Of the look-up, as hexadecimal digits.
    """
    return f"{{{tenant}rs}}:l:{query_id}:{name}"


def name_field(name: str) -> str:
    """The field of a checkpoint's name: the SHA-256 of its UTF-8, since names may be any text."""
    return hashlib.sha256(name.encode()).hexdigest()


def instance(id_: PartitionId) -> str:
    """Who serves a partition."""
    of = id_.store
    tag = f"{{{of.tenant}rs:{of.gen}}}"
    return f"{tag}:i:{of.operator}:{id_.partition}:{store_hash(of.store)}"


def places(gen: str, *, tenant: str = "") -> str:
    """The hash that names the partitions which Python processes have reported as served."""
    return f"{{{tenant}rs:{gen}}}:{_PLACES}"


def totals(gen: str, *, tenant: str = "") -> str:
    """The hash with what the instances of a checkpoint have counted."""
    return f"{{{tenant}rs:{gen}}}:{_TOTALS}"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A key of a partition, taken apart.

    Attributes:
        prefix: `P`.
        rest: What stands behind ``P:``.
    """

    prefix: str
    operator: int
    partition: int
    store_hash: str
    rest: str


def checkpoint_pattern(gen: str, *, tenant: str = "") -> str:
    """A glob pattern that matches every key of a checkpoint; `owned_by` decides."""
    return f"{{{tenant}rs:{gen}[:}}]*"


def any_pattern(*, tenant: str = "") -> str:
    """A glob pattern that matches every key of every checkpoint; `gen_in` tells which one."""
    return f"{{{tenant}rs:*"


def tenant_patterns(*, tenant: str = "") -> tuple[str, str]:
    """Glob patterns that match every key of a tenant, and no key of another one.

    The keys of all checkpoints together, and those of single checkpoints. An id begins with a
    hexadecimal digit; what stands there in the keys of the tenant ``rs`` does not.
    """
    return f"{{{tenant}rs}}:*", f"{{{tenant}rs:[0-9a-f]*"


def gen_in(key: str, *, tenant: str = "") -> str | None:
    """The checkpoint whose partition a key may be of; ``None`` if it is of none."""
    match = _PARTITION_KEY.fullmatch(key)
    return match["gen"] if match is not None and match["tenant"] == tenant else None


def parse_partition_key(key: str, *, gen: str, tenant: str = "") -> PartitionKey | None:
    """Take a key of this checkpoint's partitions apart; ``None`` if it is not one."""
    match = _PARTITION_KEY.fullmatch(key)
    if match is None or match["gen"] != gen or match["tenant"] != tenant:
        return None
    operator, number = text_number(match["operator"]), text_number(match["partition"])
    if operator is None or number is None or not _is_partition_rest(match["rest"]):
        return None
    prefix = key[: -len(match["rest"]) - 1]
    return PartitionKey(prefix, operator, number, match["store"], match["rest"])


def owned_by(key: str, *, gen: str, tenant: str = "") -> bool:
    """Whether a key belongs to this checkpoint: exactly, not by its beginning."""
    if not is_gen(gen):
        return False
    tag = f"{{{tenant}rs:{gen}}}:"
    if key.startswith(tag):
        rest = key[len(tag) :]
        return rest in ("q", _PLACES, _TOTALS) or _INSTANCE_REST.fullmatch(rest) is not None
    return parse_partition_key(key, gen=gen, tenant=tenant) is not None


def _is_partition_rest(rest: str) -> bool:
    if rest in ("m", _CLAIM):
        return True
    kind, _, tail = rest.partition(":")
    version, _, name = tail.partition(":")
    return kind in ("d", "s") and text_number(version) is not None and is_uid(name)
