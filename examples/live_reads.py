"""A web service that answers with the state of one key of a running query, without Spark.

A thread plays the query, and the script asks its own service twice. With another name in `QUERY` it
serves your own query: `/?carrier=UA`. Run it with `python examples/live_reads.py`.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qsl
from urllib.request import urlopen

import redis_state
from redis_state import StateStoreId, StateStoreProviderId, stores
from redis_state.errors import RedisStateError

QUERY = f"visits {os.getpid()}"
stopped = Event()


class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        key = dict(parse_qsl(self.path.partition("?")[2]))
        try:
            answer = {"state": reader.query(QUERY).operator(0).get(key)}
        except RedisStateError as error:
            answer = {"error": str(error)}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer, default=str).encode())


def play():
    version, visits = 0, StateStoreProviderId(StateStoreId(QUERY, operator_id=0, partition_id=0))
    while not stopped.wait(0.1):
        store = stores.get(visits, version, url=url, ephemeral=True)
        store.put({"user": "ann"}, {"visits": version + 1})
        version = store.commit()


with ExitStack() as stack:
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    reader = stack.enter_context(redis_state.connect(url))
    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Service))
    stack.callback(stores.stop)
    for target, stop in ((play, stopped.set), (server.serve_forever, server.shutdown)):
        thread = Thread(target=target)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop)
    answers = list[int]()
    while len(answers) < 2 and not stopped.wait(0.1):
        with urlopen(f"http://127.0.0.1:{server.server_port}/?user=ann") as response:
            state = json.load(response).get("state")
        answers += [state["visits"]] if state and state["visits"] not in answers else []
    print("visits of ann, asked twice:", *answers, "- newer:", answers[1] > answers[0])
