"""Commands that move state: `migrate`, `rescale`, `bootstrap`, `export` and `import`.

Import `cli.arguments` and, when they run, the Spark edge. Begin with `session.py` of the arguments.
"""
