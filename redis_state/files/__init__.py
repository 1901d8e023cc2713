"""The files of a checkpoint, in whatever file system it lies: nothing else of ours opens one.

`folder_at` takes the address as Spark has it and gives a `Folder`. A file system takes part by the
four steps of `Files`; `urls` says which library speaks with which.
"""

from redis_state.files.folder import Folder, Item, OpenedFile
from redis_state.files.open import folder_at, is_local, read_storage_options

__all__ = ["Folder", "Item", "OpenedFile", "folder_at", "is_local", "read_storage_options"]
