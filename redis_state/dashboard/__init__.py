"""The dashboard: a small web application that shows how queries stand, and changes nothing.

One thread looks at all queries, at an interval; pages show what it saw last, so that many people
who look cost Redis no more than one. Only the look-up of a key asks Redis for itself.
"""
