"""Commands that read state and its metadata, and change nothing: `get`, `scan`, `sql` and more.

Import `cli.arguments`, `cli.output` and the readers below them. Begin with `get.py`, the shortest.
"""
