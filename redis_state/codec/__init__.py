"""Keys and values of Python stores as bytes: codecs, ordered keys, versioned state objects.

Imports only `format`, `types` and the layers below, and does no I/O. Start with `codec.py`.
"""

from redis_state.codec.codec import MSGPACK, RAW, Codec, Range, unencodable

__all__ = ["MSGPACK", "RAW", "Codec", "Range", "unencodable"]
