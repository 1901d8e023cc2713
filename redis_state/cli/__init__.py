"""The command `redis-state`.

One module a command, in the groups of `--help`: `look`, `follow`, `operate`, `move`, `other`.
Imports everything below it, each command only when it runs. Begin with `main.py` and `registry.py`.
"""
