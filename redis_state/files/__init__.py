"""Files of a checkpoint in any file system. No other package opens such a file.

`folder_at` opens a `Folder` by the address that Spark uses. Each file system implements `Files`;
`urls` chooses its library.
"""

from redis_state.files.folder import Folder, Item, OpenedFile
from redis_state.files.open import folder_at, is_absolute, is_local, read_storage_options

__all__ = [
    "Folder",
    "Item",
    "OpenedFile",
    "folder_at",
    "is_absolute",
    "is_local",
    "read_storage_options",
]
