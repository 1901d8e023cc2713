"""Arguments that commands share: servers, profiles, checkpoints, stores, versions and keys.

Imports the product below the command line, and no command. Begin with `connection.py`.
"""
