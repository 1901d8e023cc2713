"""The user's Python file with the changed query."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis_state.errors import ConfigError

FUNCTION = "query"
"""Name of the function that builds the query."""

_MODULE = "redis_state_replayed_code"


def function_in(path: str, *, name: str = FUNCTION) -> Callable[..., Any]:
    """Loads the file as a module, and returns its function of that name.

    The file can import modules of its own folder.

    Raises:
        ConfigError: There is no such file, it does not run, or it lacks the function.
    """
    what, file = f"reading {path}", Path(path)
    if not file.is_file():
        raise ConfigError(
            what,
            found="there is no such file",
            advice="Give the Python file that builds the query with --code.",
        )
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise ConfigError(what, found="it is not a Python file", advice="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    # The folder stays on the path: the function may import when it is called.
    sys.path.insert(0, str(file.resolve().parent))
    # Dataclasses need their module here. Afterwards cloudpickle must not find it: workers lack it.
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            what,
            found=f"it does not run: {type(error).__name__}: {error}",
            advice="Run the file with Python first.",
        ) from error
    finally:
        del sys.modules[_MODULE]
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(
            what,
            found=f"it has no function {name}",
            advice=(
                f"Define `def {name}(spark, replay)`, which builds the streaming query and returns "
                "its DataStreamWriter, not yet started."
            ),
        )
    return found  # type: ignore[no-any-return]  # checked to be callable
