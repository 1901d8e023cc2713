"""Options: their table, the values that they accept, and the checked whole.

Start with `table.py` (rows of `options.json`) and `config.py` (`Config`, and how it is parsed).
"""

from redis_state.config.config import (
    EPHEMERAL_KEEP_MS,
    PASSWORD_VARIABLE,
    Config,
    normalize,
    parse,
    resolve,
)
from redis_state.config.table import Option, conf_prefix, option_named, options, spark_minors
from redis_state.config.values import duration_ms, to_text

__all__ = [
    "EPHEMERAL_KEEP_MS",
    "PASSWORD_VARIABLE",
    "Config",
    "Option",
    "conf_prefix",
    "duration_ms",
    "normalize",
    "option_named",
    "options",
    "parse",
    "resolve",
    "spark_minors",
    "to_text",
]
