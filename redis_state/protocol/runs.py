"""Checkpoints by name, and the runs that write them (docs/format.md, sections 6, 9 and 10)."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error, time_ms
from redis_state.backend.script import Command, script
from redis_state.backend.server import check_server
from redis_state.errors import ConflictError, FormatError, InternalError, UsageError
from redis_state.format.header import Family
from redis_state.ids import is_gen, is_uid, text_number
from redis_state.process import process_id
from redis_state.protocol.registry import PYTHON_OPERATOR
from redis_state.protocol.texts import is_number, parse_object

STAGED_TTL_MS = 24 * 3600 * 1000
"""Expiry of unused keys: staged segments, and queries without a partition."""

PURGED_FIELD = "purged"
"""Field of a query with the time of its purge, and its entry in the list of checkpoints."""

_RUN = "run:"
_DRIVER, _EXECUTOR = "d", "x"
_NAME_BYTES_MAX = 64 << 10
_TOKEN_DIGITS = 12
_TOKEN = re.compile(f"[0-9a-f]{{{_TOKEN_DIGITS}}}")
_HEAD_MAX = 64 - 1 - _TOKEN_DIGITS


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """A run and its fencing number; may be sent to other processes.

    Attributes:
        epoch: Greater than that of every run that was registered earlier.
        source: ``d`` if a driver registered the run, else ``x``: such a run may not go back.
    """

    run_id: str
    epoch: int
    source: str

    @property
    def by_driver(self) -> bool:
        """True if the run may write on a version below the version opened last."""
        return self.source == _DRIVER


def own_run(run_id: str) -> str:
    """Returns the id in Redis of a run without a driver, which belongs to this process alone.

    Another process with the same id gets another run, so one of the two is fenced. Otherwise each
    would replace the other's commits.
    """
    own = process_id()
    return run_id if run_id == own else f"{_head(run_id)}.{own[:_TOKEN_DIGITS]}"


def is_run(found: str, run_id: str) -> bool:
    """Returns whether a run in Redis was given this id, in any process."""
    head, _, token = found.rpartition(".")
    return found == run_id or (head == _head(run_id) and _TOKEN.fullmatch(token) is not None)


def _head(run_id: str) -> str:
    if len(run_id) <= _HEAD_MAX:
        return run_id
    return hashlib.sha256(run_id.encode()).hexdigest()[:_HEAD_MAX]


def checkpoint_gen(
    client: Client, name: str, *, tenant: str = "", create: bool = False
) -> str | None:
    """Returns the id of a Python checkpoint; ``None`` if the name is unknown and `create` is false.

    Processes that create the same name concurrently get the same id.

    Raises:
        ConfigError: The server lacks the durability that `durability` demands.
        UsageError: The name is empty, above 64 KiB or not valid in UTF-8.
    """
    check_name(name, what="a checkpoint's name")
    lasting = create and client.durability.asked
    if lasting:
        check_server(client)
    key, field = keys.names(tenant=tenant), keys.name_field(name)
    read = ("HGET", key, field)
    commands = [("HSETNX", key, field, uuid.uuid4().hex), read] if create else [read]
    found = client.call("looking for a checkpoint by its name", commands)[-1]
    if found is None:
        return None
    gen = _text(found)
    if not is_gen(gen):
        raise FormatError("looking for a checkpoint by its name", found="its id is malformed")
    if lasting:
        # A cluster may keep the name on another master than the partitions, whose commits do not
        # cover it.
        named: Command = ("HSET", key, field, gen)
        client.transaction("naming a checkpoint", [named], counts=lambda _: True)
    return gen


def check_name(name: str, *, what: str) -> None:
    """Checks a name.

    Raises:
        UsageError: The name is not a text, empty, above 64 KiB or not valid in UTF-8.
    """
    try:
        size = len(name.encode())
    except AttributeError:
        raise UsageError(
            f"using {what}", found=f"its type is {type(name).__name__}", advice="Give a text."
        ) from None
    except UnicodeEncodeError:
        raise UsageError(
            f"using {what}",
            found="it has a character that UTF-8 cannot encode (half of a surrogate pair)",
            advice="Give a text of whole characters.",
        ) from None
    if not 0 < size <= _NAME_BYTES_MAX:
        raise UsageError(
            f"using {what}", found=f"it has {size} bytes", advice="Give 1 byte to 64 KiB of text."
        )


def find_run(client: Client, gen: str, run_id: str, *, tenant: str = "") -> RegisteredRun | None:
    """Returns the run if it is registered, else ``None``."""
    command = ("HGET", keys.query(gen, tenant=tenant), f"{_RUN}{run_id}")
    (found,) = client.call(f"looking for run {run_id}", [command])
    return _parse_run(run_id, found)


def run_of_epoch(query: Mapping[bytes, bytes], epoch: bytes) -> str:
    """Returns the id of the run with an epoch, from the fields of a query; empty if none has it."""
    for name, value in query.items():
        if epoch and name.startswith(_RUN.encode()) and value.partition(b" ")[0] == epoch:
            return name[len(_RUN) :].decode("ascii", "replace")
    return ""


def is_newest(client: Client, gen: str, run_id: str, *, tenant: str = "") -> bool:
    """Returns whether no run was registered after this one."""
    command = ("HMGET", keys.query(gen, tenant=tenant), f"{_RUN}{run_id}", "epoch")
    ((found, newest),) = client.call(f"looking for run {run_id}", [command])
    run = _parse_run(run_id, found)
    return run is not None and run.epoch >= int(newest or 0)


def register_run(
    client: Client,
    gen: str,
    run_id: str,
    *,
    by_driver: bool,
    above: int = 0,
    fields: Mapping[str, str] | None = None,
    tenant: str = "",
) -> RegisteredRun:
    """Registers a run, and returns its epoch; a registered run keeps its epoch.

    Checks first that the server is fit for state.

    Args:
        by_driver: True if the driver registers the run before its tasks start. A run that a task
            registers may not write below the version that was opened last.
        above: An epoch to exceed, which a fail-over left in a partition; 0 for none.
        fields: Display fields of the query, such as its name.

    Raises:
        ConfigError: The server is too old, a replica, or may evict keys.
        ConflictError: A newer run is registered, and this run's epoch does not exceed `above`.
        StateError: The checkpoint was purged within the last day.
        UsageError: The run id is malformed.
    """
    if not is_uid(run_id):
        raise UsageError(
            "registering a run",
            found="its id is malformed",
            advice="Give 1 to 64 letters, digits, '_', '.' or '-'.",
        )
    check_server(client)
    shown = [word for pair in (fields or {}).items() for word in pair]
    source = _DRIVER if by_driver else _EXECUTOR
    args = [run_id, source, str(above), str(STAGED_TTL_MS), *shown]
    what = f"registering run {run_id}"
    reply = client.script(what, script("register"), [keys.query(gen, tenant=tenant)], args)
    match reply:
        case ["OK", epoch, found]:
            return _run(run_id, epoch, found)
        case ["FENCED", newest]:
            raise ConflictError(what, found=f"a newer run is registered (epoch {newest})")
        case ["PURGED"]:
            raise purged_error(what, gen)
    raise InternalError(what, found=f"the script answered '{' '.join(reply)[:200]}'")


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store of a checkpoint that has a name.

    Attributes:
        name: Name of the checkpoint.
        families: The known families, for display and for readers that look up keys.
    """

    name: str
    operator: int
    store: str
    partitions: int
    families: Sequence[Family] = ()


def confirm_checkpoint(
    client: Client, gen: str, store: NamedStore, *, tenant: str = "", keep_ms: int = 0
) -> None:
    """Keeps a checkpoint that is used, and lists it with its operator and partitions.

    The number of partitions never shrinks, even if a process writes a smaller number later.

    Args:
        keep_ms: 0, or the expiry of an ephemeral checkpoint.

    Raises:
        StateError: The checkpoint was purged within the last day.
    """
    what = "listing a checkpoint"
    query, listed = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    name, place = store.name, f"{store.operator}:{store.store}"
    time, known = client.call(what, [("TIME",), ("HGET", listed, gen)])
    now_ms = time_ms(time)
    created = _created_ms(known) or now_ms
    path = keys.name_field(name)
    entry = {"path": path, "id": gen, "name": name, "created": created, "seen": now_ms}
    families = _operator_json(store.families)
    shown = [f"op:{place}", str(store.partitions), families, str(keep_ms)]
    fields = ["name", name, "path", path, "id", gen]
    reply = client.script(what, script("describe"), [query], [*shown, *fields])
    if reply == ["PURGED"]:
        raise purged_error(what, gen)
    _enter(client, what, gen, {gen: json.dumps(entry), f"{gen}:{place}": reply[1]}, tenant=tenant)


def _enter(client: Client, what: str, gen: str, fields: Mapping[str, str], *, tenant: str) -> None:
    """Adds a checkpoint to the list, unless a purge removed it meanwhile.

    List and query are two keys. A purge marks the query before it changes the list, so checking the
    mark after the entry detects every purge.
    """
    query, listed = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    words = [word for pair in fields.items() for word in pair]
    is_purged: Command = ("HEXISTS", query, PURGED_FIELD)
    while True:
        client.call(what, [("HSET", listed, *words)])
        (purged,) = client.call(what, [is_purged])
        if not purged:
            return
        client.call(what, [("HDEL", listed, *fields)])
        (purged,) = client.call(what, [is_purged])
        if purged:
            raise purged_error(what, gen)
        # The checkpoint was recalled in between, and its entry was just removed: add it again.


def _created_ms(known: bytes | None) -> int:
    """Returns the creation time of a listed checkpoint; 0 if it is not listed, or unreadable."""
    try:
        found = parse_object(known or b"").get("created")
    except ValueError:
        return 0
    return found if found is not None and is_number(found) else 0


def renew_checkpoint(client: Client, gen: str, *, keep_ms: int, tenant: str = "") -> None:
    """Renews the expiry of an ephemeral checkpoint, unless it was purged."""
    query = [keys.query(gen, tenant=tenant)]
    client.script("renewing a checkpoint", script("stay"), query, [str(keep_ms)])


def keep_checkpoint(client: Client, gen: str, *, attempted: str, tenant: str = "") -> None:
    """Removes the expiry of a checkpoint's registration.

    Raises:
        StateError: The checkpoint was purged within the last day.
    """
    query = [keys.query(gen, tenant=tenant)]
    if client.script(attempted, script("stay"), query, ["0"]) == ["PURGED"]:
        raise purged_error(attempted, gen)


def _operator_json(families: Sequence[Family]) -> str:
    """Returns an operator's JSON without its `{`; `describe` prepends the partition count."""
    rows = [
        [
            family.id,
            family.name,
            family.kind,
            list(family.params),
            json.loads(family.key_schema),
            json.loads(family.value_schema),
            family.multi_value,
            family.internal,
        ]
        for family in families
    ]
    return json.dumps({"operator": PYTHON_OPERATOR, "families": rows})[1:]


def _parse_run(run_id: str, raw: bytes | None) -> RegisteredRun | None:
    """Parses the field of a run; ``None`` if the run is not registered."""
    if raw is None:
        return None
    epoch, _, source = _text(raw).partition(" ")
    return _run(run_id, epoch, source)


def _run(run_id: str, epoch: str, source: str) -> RegisteredRun:
    number = text_number(epoch)
    if number is None or source not in (_DRIVER, _EXECUTOR):
        raise FormatError("reading a run", found="its entry is malformed")
    return RegisteredRun(run_id, number, source)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError("reading the registry", found="an entry is malformed") from error
