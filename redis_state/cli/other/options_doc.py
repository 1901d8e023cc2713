"""`redis-state options-doc`: prints docs/configuration.md from the list of options."""

from __future__ import annotations

import argparse
import re
import textwrap
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
A name that is not in this list is an error; the message gives the nearest name.

- *duration*: a whole number and `ms`, `s`, `m`, `min`, `h` or `d`, such as `60s`.
- *bytes*: a whole number and `b`, `k`, `m`, `g` or `t`, such as `2g`; a kilobyte has 1,024 bytes.
- *bool*: `true` or `false`. *path*: a file under the same path on the driver and on every executor.

## Options
"""
_COLUMNS = 100
_NO_BREAK = "\N{WORD JOINER}"
"""Stands for a blank where a line must not end."""


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
    entries = map(_entry, config.options().values())
    return _HEAD.format(prefix=config.conf_prefix()) + "".join(entries)


def _entry(option: config.Option) -> str:
    default = "no default"
    if option.default is not None:
        default = f"default `{config.to_text(option, option.default)}`"
    elif option.required:
        default = "required"
    kind = option.type
    if option.values:
        kind = " or ".join(f"`{value}`" for value in option.values)
    elif option.auto:
        kind += " or `auto`"
    meaning = option.meaning + (" Never logged." if option.secret else "")
    if option.type in ("int", "duration") and option.minimum is not None:
        unit = " ms" if option.type == "duration" else ""
        meaning += f" Allowed: {option.minimum:,} to {option.maximum:,}{unit}."
    names = f"- **`{option.name}`**, in Python `{option.python_name}`"
    return _wrapped(f"{names} ({kind}, {default}, since {option.since}): {meaning}")


def _wrapped(text: str) -> str:
    """Returns an item of a list in lines of at most 100 columns; code stays on one line."""
    whole = re.sub("`[^`]+`", lambda code: code[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(
        whole,
        _COLUMNS,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_NO_BREAK, " ") + "\n"
