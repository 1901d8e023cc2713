"""The format of docs/format.md: bytes to objects and back, without I/O."""
