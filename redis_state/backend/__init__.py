"""Talks to Redis: connections, topologies, pipelines, scripts and the classes of replies.

Imports the codec and the layers below it, and knows no key and no version of a state. Begin with
`client.py` (the calls) and `transport.py` (the interface of one server, Sentinel and Cluster).
"""
