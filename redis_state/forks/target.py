"""The checkpoint folder of a fork, from its first check to its last file.

The file `metadata` holds a record of the fork until the last step, in a form that Spark refuses to
start from.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace

from redis_state.errors import FormatError, UsageError
from redis_state.files import Folder
from redis_state.recovery.marker import make_marker, marked_gen
from redis_state.recovery.query_state import query_id_of

_METADATA = "metadata"
_NOT_YET = "This_fork_is_not_complete__run_the_same_redis-state_fork_again_or_delete_the_folder\n"
_WHAT = "forking a query"


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """Decisions of an interrupted fork.

    Attributes:
        gen: Checkpoint id of the fork of Spark's operators.
        query_id: Spark's id of the fork's query.
        parents: Checkpoint ids of the parent; empty once the folder is complete.
        batch: ``None`` once the folder is complete.
        has_metadata: True if Spark starts from the folder.
        plan: Digest of the plan of the batch; empty if the folder does not say it.
    """

    gen: str
    query_id: str
    parents: tuple[str, ...] = ()
    batch: int | None = None
    has_metadata: bool = False
    plan: str = ""


class TargetFolder:
    """The folder that becomes the checkpoint of a fork."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def check_place(self, parent: Folder) -> None:
        """Rejects the parent's folder, and a folder inside it.

        Raises:
            UsageError: The folder is the parent's, or inside it.
        """
        own, theirs = self.folder.spellings(), parent.spellings()
        if own & theirs or any(one.startswith(f"{other}/") for one in own for other in theirs):
            raise UsageError(
                _WHAT,
                found="the new folder is that of the query, or inside of it",
                advice="Give a folder beside it with --to. Nothing was made.",
                where=str(self.folder),
            )

    def record(self, parents: tuple[str, ...]) -> ForkRecord:
        """Returns the record of an interrupted fork, or a new one; changes nothing.

        Raises:
            UsageError: The folder has other files, or a fork of another query.
            FormatError: A file is damaged.
        """
        items = [item.name for item in self.folder.items() or ()]
        raw = self.folder.read(_METADATA) if _METADATA in items else None
        if raw is not None and raw.startswith(_NOT_YET.encode()):
            found = self._parsed(raw)
            if found.parents != parents:
                raise self._other("a fork of another query was interrupted there")
            return replace(found, gen=marked_gen(self.folder) or found.gen)
        if not [name for name in items if not name.startswith(f".{_METADATA}")]:
            return ForkRecord(uuid.uuid4().hex, str(uuid.uuid4()), parents)
        query_id = query_id_of(self.folder) if raw is not None else ""
        if not query_id:
            raise self._other("it has files already")
        return ForkRecord(marked_gen(self.folder) or "", query_id, has_metadata=True)

    def begin(self, record: ForkRecord, *, with_marker: bool) -> ForkRecord:
        """Writes the record of the fork, from which Spark does not start; may be repeated.

        Args:
            with_marker: Also writes the marker file of Spark's operators.

        Returns:
            The record, with the gen of the marker file, which another call may have written.
        """
        if record.has_metadata:
            return record
        content = {
            "gen": record.gen,
            "id": record.query_id,
            "parents": record.parents,
            "batch": record.batch,
            "plan": record.plan,
        }
        self.folder.write(_METADATA, (_NOT_YET + json.dumps(content)).encode())
        return replace(record, gen=make_marker(self.folder, record.gen)) if with_marker else record

    def finish(self, record: ForkRecord) -> None:
        """Replaces the record by the metadata from which Spark starts; may be repeated."""
        if not record.has_metadata:
            self.folder.write(_METADATA, json.dumps({"id": record.query_id}).encode())

    def _parsed(self, raw: bytes) -> ForkRecord:
        try:
            found = json.loads(raw[len(_NOT_YET) :])
            batch = found["batch"]
            if batch is not None and not isinstance(batch, int):
                raise ValueError
            texts = [str(found["gen"]), str(found["id"])]
            parents, plan = tuple(map(str, found["parents"])), str(found.get("plan", ""))
            return ForkRecord(texts[0], texts[1], parents, batch, plan=plan)
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise FormatError(
                f"reading {self.folder / _METADATA}",
                found="the record of an interrupted fork is damaged",
                advice="Delete the folder, and fork again.",
            ) from error

    def _other(self, found: str) -> UsageError:
        return UsageError(
            _WHAT,
            found=f"the new folder cannot be used: {found}",
            advice="Give a folder that does not exist with --to, or delete this one. Nothing was "
            "made.",
            where=str(self.folder),
        )
