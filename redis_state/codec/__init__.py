"""Keys and values of Python's stores as bytes: codecs, ordered keys, versioned state objects.

Imports `format` and the layers below it, and does no I/O. Begin with `codec.py`.
"""

from redis_state.codec.codec import MSGPACK, RAW, Codec, Range, unencodable

__all__ = ["MSGPACK", "RAW", "Codec", "Range", "unencodable"]
