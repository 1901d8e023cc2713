"""What a store writes for keys and values: codecs, ordered keys, versioned state objects."""

from redis_state.codec.codec import MSGPACK, RAW, Codec, Range, unencodable

__all__ = ["MSGPACK", "RAW", "Codec", "Range", "unencodable"]
