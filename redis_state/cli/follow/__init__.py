"""Commands that print until they are stopped: `changes` and `top`.

Import `cli.arguments`, `cli.output` and the readers below them.
"""
