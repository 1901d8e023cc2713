"""Output of commands: tables for people, JSON lines for scripts, files of rows for programs.

Imports `rows` and `status`. Begin with `printing.py`.
"""
