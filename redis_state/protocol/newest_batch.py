"""Newest batch of a store that counts batches: the field `batch:…` (docs/format.md, section 9)."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.errors import FormatError
from redis_state.ids import text_number

WITH_INITIAL_STATE = " with an initial state"
"""Ends the layout of a store whose version 1 is its initial state."""

_WORDS = 5


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """The newest batch of a store, and its first one.

    Attributes:
        number: Id of the newest batch.
        first: Id of the first batch.
        partitions: Number of partitions.
        run_id: The run whose evaluations count.
        layout: JSON string with key columns, their types, and the codec.
    """

    number: int
    first: int
    partitions: int
    run_id: str
    layout: str

    @classmethod
    def parse(cls, raw: bytes) -> NewestBatch:
        """Parses the field.

        Raises:
            FormatError: The field is malformed.
        """
        try:
            newest, begun, count, run_id, layout = raw.decode().split(" ", _WORDS - 1)
        except ValueError as error:
            raise _malformed() from error
        number, first, partitions = map(text_number, (newest, begun, count))
        if number is None or first is None or partitions is None:
            raise _malformed()
        return cls(number, first, partitions, run_id, layout)

    def __str__(self) -> str:
        """Returns the field as it is stored."""
        return f"{self.number} {self.first} {self.partitions} {self.run_id} {self.layout}"

    @property
    def first_version(self) -> int:
        """Version that the first batch makes: 1, or 2 behind an initial state."""
        return 2 if self.layout.endswith(f'{WITH_INITIAL_STATE}"') else 1

    @property
    def ahead(self) -> int:
        """Difference between the version that a batch makes and the id of the batch."""
        return self.first_version - self.first

    @property
    def version(self) -> int:
        """Version that the newest batch makes."""
        return self.number + self.ahead


def _malformed() -> FormatError:
    return FormatError(
        "reading the list of queries or operators", found="the newest batch of a store is malformed"
    )
