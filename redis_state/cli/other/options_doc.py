"""`redis-state options-doc`: prints docs/configuration.md from the table of options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state import config
from redis_state.cli.help import example

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_HEAD = """\
# Configuration

Written by `redis-state options-doc` from `redis_state/options.json`: change that table, not this
page.

In Spark's configuration every name has the prefix `{prefix}`.
In Python the options are keyword arguments of `redis_state.configure` and `redis_state.connect`, in
snake case:

```python
builder = redis_state.configure(builder, url="redis://localhost:6379/0", versions_to_retain=20)
```

On the command line: `redis-state conf --url redis://localhost:6379/0 --option versionsToRetain=20`.
A name that is not in this table is an error; the message gives the nearest name.

- *duration*: a whole number and `ms`, `s`, `m`, `min`, `h` or `d`, such as `60s`.
- *bytes*: a whole number and `b`, `k`, `m`, `g` or `t`, such as `2g`; a kilobyte has 1,024 bytes.
- *bool*: `true` or `false`. *path*: a file under the same path on the driver and on every executor.

| name | in Python | type | default | meaning | since |
|---|---|---|---|---|---|
"""


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "options-doc",
        help="print the table of options as Markdown (docs/configuration.md)",
        epilog=example("redis-state options-doc > docs/configuration.md"),
    )
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    """Prints the page."""
    print(page(), end="")
    return 0


def page() -> str:
    """Returns the text of docs/configuration.md."""
    rows = [_row(option) for option in config.options().values()]
    return _HEAD.format(prefix=config.conf_prefix()) + "".join(rows)


def _row(option: config.Option) -> str:
    default = "" if option.default is None else f"`{config.to_text(option, option.default)}`"
    kind = option.type
    if option.values:
        kind = " or ".join(f"`{value}`" for value in option.values)
    elif option.auto:
        kind += " or `auto`"
    flags = [word for word, on in (("required", option.required), ("secret", option.secret)) if on]
    shown = default or ("required" if "required" in flags else "none")
    meaning = option.meaning + (" Never logged." if option.secret else "")
    if option.type in ("int", "duration") and option.minimum is not None:
        unit = " ms" if option.type == "duration" else ""
        meaning += f" Allowed: {option.minimum:,} to {option.maximum:,}{unit}."
    cells = (f"`{option.name}`", f"`{option.python_name}`", kind, shown, meaning, option.since)
    return f"| {' | '.join(cells)} |\n"
