"""The only module that spells Redis keys (docs/format.md, section 2)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from redis_state.ids import PartitionId, is_gen, is_uid, text_number

STORE_HASH_DIGITS = 16
_CLAIM = "x"
_FILES = "f"
_STAGED = "n"
_PLACES = "i"
_TOTALS = "t"
_SEGMENTS = ("d:", "s:", "r:", "u:")
_PARTITION_KEY = re.compile(
    r"\{(?P<tenant>(?:[0-9A-Za-z_.-]{1,64}:)?)rs:(?P<gen>[0-9a-f]{32})"
    r":(?P<operator>[0-9]+):(?P<partition>[0-9]+):(?P<store>[0-9a-f]{16})\}:(?P<rest>.+)",
    re.DOTALL,
)
_INSTANCE_REST = re.compile(r"i:(?P<operator>[0-9]+):(?P<partition>[0-9]+):(?P<store>[0-9a-f]{16})")


def tenant_of(key_prefix: str | None) -> str:
    """Returns the part of every key before ``rs``: empty, or the option `keyPrefix` and a colon."""
    return f"{key_prefix}:" if key_prefix else ""


def store_hash(store: str) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of a store name."""
    return hashlib.sha256(store.encode()).hexdigest()[:STORE_HASH_DIGITS]


def partition(id_: PartitionId) -> str:
    """Returns `P`, the common prefix and hash tag of all keys of a partition."""
    of = id_.store
    return f"{{{of.tenant}rs:{of.gen}:{of.operator}:{id_.partition}:{store_hash(of.store)}}}"


def meta(id_: PartitionId) -> str:
    """Returns the key of the hash with the meta fields and the manifest."""
    return f"{partition(id_)}:m"


def files(id_: PartitionId) -> str:
    """Returns the key of the hash with the files of a partition."""
    return f"{partition(id_)}:{_FILES}"


def segment(id_: PartitionId, ident: str, gen: str = "") -> str:
    """Returns the key of a delta or snapshot by its ident, such as ``d:12:9f…``.

    Args:
        gen: The checkpoint that has the key, if the segment is foreign (docs/format.md, 14).
    """
    return f"{partition(id_.of_gen(gen) if gen else id_)}:{ident}"


def staged(id_: PartitionId, ident: str) -> str:
    """Returns the key of a segment's blocks before they get the key of the segment."""
    return f"{partition(id_)}:{_STAGED}:{ident}"


def claim(id_: PartitionId) -> str:
    """Returns the key that names the maintenance worker of a partition."""
    return f"{partition(id_)}:{_CLAIM}"


def query(gen: str, *, tenant: str = "") -> str:
    """Returns the key of the hash of a query."""
    return f"{{{tenant}rs:{gen}}}:q"


def checkpoints(*, tenant: str = "") -> str:
    """Returns the key of the hash that lists all checkpoints."""
    return f"{{{tenant}rs}}:c"


def names(*, tenant: str = "") -> str:
    """Returns the key of the hash from names of Python checkpoints to their ids."""
    return f"{{{tenant}rs}}:n"


def looks(*, tenant: str = "") -> str:
    """Returns the key of the hash with what maintenance saw of seemingly unused checkpoints."""
    return f"{{{tenant}rs}}:v"


def purged_files(*, tenant: str = "") -> str:
    """Returns the key of the hash with the folders of purged checkpoints that have files."""
    return f"{{{tenant}rs}}:{_FILES}"


def sizes(*, tenant: str = "") -> str:
    """Returns the key of the hash with the sizes of states, written by states with a limit."""
    return f"{{{tenant}rs}}:b"


def looked_up(query_id: str, name: str, *, tenant: str = "") -> str:
    """Returns the key of the version of another query that a query's newest batch looks up.

    Args:
        name: Name of the look-up, as hexadecimal digits.
    """
    return f"{{{tenant}rs}}:l:{query_id}:{name}"


def name_field(name: str) -> str:
    """Returns the field of a checkpoint's name: its SHA-256, because a name may be any text."""
    return hashlib.sha256(name.encode()).hexdigest()


def instance(id_: PartitionId) -> str:
    """Returns the key of the instance that serves a partition."""
    of = id_.store
    tag = f"{{{of.tenant}rs:{of.gen}}}"
    return f"{tag}:i:{of.operator}:{id_.partition}:{store_hash(of.store)}"


def places(gen: str, *, tenant: str = "") -> str:
    """Returns the key of the hash with the partitions that Python processes have reported."""
    return f"{{{tenant}rs:{gen}}}:{_PLACES}"


def totals(gen: str, *, tenant: str = "") -> str:
    """Returns the key of the hash with the counts of a checkpoint's instances."""
    return f"{{{tenant}rs:{gen}}}:{_TOTALS}"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A parsed key of a partition.

    Attributes:
        prefix: `P`.
        rest: The part after ``P:``.
    """

    prefix: str
    operator: int
    partition: int
    store_hash: str
    rest: str

    @property
    def is_segment(self) -> bool:
        """True for the key of a segment, of a slice of a preview, or of staged blocks."""
        return self.rest.removeprefix(f"{_STAGED}:")[:2] in _SEGMENTS

    @property
    def is_files(self) -> bool:
        """True for the key of the list of files."""
        return self.rest == _FILES


def checkpoint_pattern(gen: str, *, tenant: str = "") -> str:
    """Returns a glob pattern for every key of a checkpoint; `owned_by` then decides exactly."""
    return f"{{{tenant}rs:{gen}[:}}]*"


def any_pattern(*, tenant: str = "") -> str:
    """Returns a glob pattern for every key of every checkpoint; `gen_in` then finds which one."""
    return f"{{{tenant}rs:*"


def tenant_patterns(*, tenant: str = "") -> tuple[str, str]:
    """Returns glob patterns that match every key of a tenant, and no key of another tenant.

    The first matches the keys of all checkpoints together, the second those of single checkpoints.
    The second requires a hexadecimal digit, because an id starts with one. Keys of a tenant named
    ``rs`` have another character there.
    """
    return f"{{{tenant}rs}}:*", f"{{{tenant}rs:[0-9a-f]*"


def gen_in(key: str, *, tenant: str = "") -> str | None:
    """Returns the checkpoint of a partition's key; ``None`` for other keys."""
    match = _PARTITION_KEY.fullmatch(key)
    return match["gen"] if match is not None and match["tenant"] == tenant else None


def parse_partition_key(key: str, *, gen: str, tenant: str = "") -> PartitionKey | None:
    """Parses a key of this checkpoint's partitions; ``None`` for other keys."""
    match = _PARTITION_KEY.fullmatch(key)
    if match is None or match["gen"] != gen or match["tenant"] != tenant:
        return None
    operator, number = text_number(match["operator"]), text_number(match["partition"])
    if operator is None or number is None or not _is_partition_rest(match["rest"]):
        return None
    prefix = key[: -len(match["rest"]) - 1]
    return PartitionKey(prefix, operator, number, match["store"], match["rest"])


def owned_by(key: str, *, gen: str, tenant: str = "") -> bool:
    """Returns whether a key belongs to this checkpoint, by an exact check, not by its prefix."""
    if not is_gen(gen):
        return False
    tag = f"{{{tenant}rs:{gen}}}:"
    if key.startswith(tag):
        rest = key[len(tag) :]
        return rest in ("q", _PLACES, _TOTALS) or _INSTANCE_REST.fullmatch(rest) is not None
    return parse_partition_key(key, gen=gen, tenant=tenant) is not None


def _is_partition_rest(rest: str) -> bool:
    if rest in ("m", _CLAIM, _FILES):
        return True
    if rest.startswith((f"{_STAGED}:d:", f"{_STAGED}:s:", f"{_STAGED}:r:")):
        # Blocks of segments are staged under another name; slices of previews are not.
        rest = rest.removeprefix(f"{_STAGED}:")
    kind, _, tail = rest.partition(":")
    version, _, name = tail.partition(":")
    return f"{kind}:" in _SEGMENTS and text_number(version) is not None and is_uid(name)
