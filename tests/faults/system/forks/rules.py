"""Rules of pins over whole checkpoints, read past all of the code (docs/format.md, section 14).

The rules are those of the protocol's oracle, partition by partition: what a query, a usable fork or
a kept version names can be read and stays, and owners and segments name each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.transport import Transport
from redis_state.ids import PartitionId, StoreId
from tests.faults.oracle.pin_world import Node, Pinned, World

_FIELDS = ("a:", "g", "x:", "y:", "z:")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with partitions.

    Attributes:
        parent: Id of the checkpoint that it was forked from.
        life: See `Node`.
    """

    gen: str
    name: str
    partitions: int
    parent: str = ""
    life: str = "live"


class Rules:
    """Compares what is on the server with what has to be there.

    Attributes:
        keeps: Pins of kept versions as they were first seen, by partition, checkpoint and owner.
    """

    def __init__(self, server: Transport) -> None:
        self._server = server
        self.keeps: dict[tuple[int, str, str], Pinned] = {}

    def broken(self, checkpoints: Sequence[Checkpoint], kept: Mapping[str, set[str]]) -> list[str]:
        """The rules that are broken.

        Args:
            kept: Owners of the pins of kept versions, by checkpoint.
        """
        most = max((one.partitions for one in checkpoints), default=0)
        return [
            f"partition {number}: {problem}"
            for number in range(most)
            for problem in self._broken(number, checkpoints, kept)
        ]

    def _broken(
        self, number: int, checkpoints: Sequence[Checkpoint], kept: Mapping[str, set[str]]
    ) -> list[str]:
        world = World(self._server)
        nodes: dict[str, Node] = {}
        for one in checkpoints:
            if number < one.partitions:
                id_ = PartitionId(StoreId(one.gen, 0), number)
                nodes[one.gen] = Node(id_, one.name, nodes.get(one.parent), one.life)
        world.nodes = list(nodes.values())
        world.look()
        self._note(number, nodes, kept, world.problems)
        world.keeps = {
            (gen, owner): pin for (of, gen, owner), pin in self.keeps.items() if of == number
        }
        world.judge()
        return world.problems

    def _note(
        self,
        number: int,
        nodes: Mapping[str, Node],
        kept: Mapping[str, set[str]],
        problems: list[str],
    ) -> None:
        """Pins of a kept version are there, and stay as they were when it was made."""
        wanted = {(gen, owner) for gen, owners in kept.items() for owner in owners}
        self.keeps = {
            at: pin for at, pin in self.keeps.items() if at[0] != number or at[1:] in wanted
        }
        for gen, owner in sorted(wanted):
            if gen not in nodes or (number, gen, owner) in self.keeps:
                continue
            pin = nodes[gen].seen.pins.get(owner)
            if pin is None:
                problems.append(f"{nodes[gen].name}: {owner} has a name, and no pin")
            else:
                self.keeps[number, gen, owner] = pin


def pin_fields(server: Transport, ids: Sequence[PartitionId]) -> list[str]:
    """Fields of pins and forks in some manifests. A restored partition has places in files."""
    return [
        f"{id_}: {name.decode()}"
        for id_, raw in _manifests(server, ids)
        for name, value in raw.items()
        if (name in (b"g", b"gt") or name[:2].decode() in _FIELDS) and not _is_in_file(name, value)
    ]


def formats(server: Transport, ids: Sequence[PartitionId]) -> set[str]:
    """Format numbers of those partitions that are there, and have nothing in files."""
    return {
        raw[b"f"].decode()
        for _, raw in _manifests(server, ids)
        if b"f" in raw and not any(_is_in_file(name, value) for name, value in raw.items())
    }


def _manifests(
    server: Transport, ids: Sequence[PartitionId]
) -> list[tuple[PartitionId, dict[bytes, bytes]]]:
    found = server.exchange([("HGETALL", keys.meta(id_)) for id_ in ids]) if ids else []
    return list(zip(ids, found, strict=True))


def _is_in_file(name: bytes, value: bytes) -> bool:
    return name[:2] == b"a:" and value[:2] == b"f "


def owners_of(server: Transport, ids: Sequence[PartitionId]) -> set[str]:
    """Owners of pins in some manifests."""
    found = server.exchange([("HKEYS", keys.meta(id_)) for id_ in ids]) if ids else []
    return {name[2:].decode() for names in found for name in names if name[:2] == b"x:"}


def foreign(server: Transport, ids: Sequence[PartitionId]) -> int:
    """Number of segments of another checkpoint that some partitions name."""
    found = server.exchange([("HKEYS", keys.meta(id_)) for id_ in ids]) if ids else []
    return sum(name[:2] == b"a:" for names in found for name in names)
