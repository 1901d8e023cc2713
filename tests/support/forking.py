"""Code that runs in a process that is forked off the test's."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_CHILD_S = 30


def in_child(body: Callable[[], Any]) -> Any:
    """Runs the body in a forked process; returns its result or raises its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_CHILD_S)  # a lock of the parent would be waited for without an end
        with suppress(BaseException), os.fdopen(writing, "wb") as out:
            try:
                found = body()
            except Exception as error:  # noqa: BLE001  # told by the parent
                found = error
            pickle.dump(found, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        raw = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    found = pickle.loads(raw)
    if isinstance(found, Exception):
        raise found
    return found
