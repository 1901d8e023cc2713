"""Talking to Redis: connections, topologies, pipelines, scripts, and what replies mean."""
