"""Segments in files (docs/format.md, section 17): moving out, reading, bringing back, deleting.

Imports `files`, `backend`, `format` and the layers below. Begin with `reading.py` and `moving.py`.
"""

from redis_state.places.declaring import (
    declare,
    keep_places,
    needs_files,
    places_by,
    places_for_return,
)
from redis_state.places.settings import Places, places_in, places_of

__all__ = [
    "Places",
    "declare",
    "keep_places",
    "needs_files",
    "places_by",
    "places_for_return",
    "places_in",
    "places_of",
]
