"""Server of a loaded store, as maintenance that many stores share sees it."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.backend.client import Client


@dataclass(frozen=True, slots=True)
class MaintainedServer:
    """The server that has a partition.

    Attributes:
        key: A key of the partition, or one that leads to it.
    """

    client: Client
    key: str

    @property
    def name(self) -> str:
        """Returns the name of the server, as far as it is known; asks nobody."""
        return self.client.server_of(self.key)

    def answers(self) -> bool:
        """Returns whether the server serves one call, without repetition."""
        return self.client.answers_once(self.key)
