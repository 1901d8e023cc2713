"""The `redis-state` command."""
