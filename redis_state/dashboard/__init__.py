"""The dashboard: a small web application that shows the status of queries, and changes nothing.

One thread polls all queries at an interval (`watch.py`), and pages show its newest result, so that
many clients cost Redis no more than one. Begin with `app.py`. Imports the readers below it.
"""
