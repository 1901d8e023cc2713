"""Access to Redis: connections, topologies, pipelines, scripts and the classes of replies.

Imports the codec and the layers below, and knows no key and no version of a state. Start with
`client.py` (the calls) and `transport.py` (the interface of one server, Sentinel and Cluster).
"""
