"""State moves that need a Spark session: migration, rescaling and bootstrapping.

Imports the Spark edge's `conf` and `driver_jvm`. Begin with `migration.py`.
"""
