"""Mutants of the rules for previews of a batch that runs (docs/format.md, section 16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis_state.protocol import previews
from redis_state.protocol.opening import Opened

_previewed = previews._previewed


def _oldest_slice_first(opened: Opened, beyond: Any) -> Opened:
    return _previewed(opened, replace(beyond, slices=beyond.slices[::-1]))


def _newest_slice_alone(opened: Opened, beyond: Any) -> Opened:
    return _previewed(opened, replace(beyond, slices=beyond.slices[:1]))


PREVIEW_SCRIPTS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "preview-of-a-fenced-run",
        "only the run that holds the partition sets a preview",
        "preview",
        "if meta('r') ~= run then return {'FENCED', 'epoch', meta('e'), meta('r')} end\n",
        "",
    ),
    (
        "preview-of-an-overtaken-attempt",
        "a preview is on top of the opened version",
        "preview",
        "if number('o') ~= version or meta('ou') ~= parent then "
        "return {'FENCED', 'opened', meta('o')} end\n",
        "",
    ),
    (
        "late-preview",
        "a preview replaces exactly the one that its caller knows of",
        "preview",
        "if known ~= ARGV[6] and known ~= uid .. ' ' .. ARGV[5] then "
        "return {'OTHER', known, valid} end\n",
        "",
    ),
    (
        "preview-of-a-committed-version",
        "a version that was committed has no previews any more",
        "preview",
        "if number('l') > version then return {'ENDED'} end\n",
        "",
    ),
    (
        "preview-without-its-blocks",
        "a preview names slices that have all their blocks",
        "preview",
        "if redis.call('HLEN', KEYS[i]) ~= ",
        "if redis.call('HLEN', KEYS[i]) < 0 and 0 ~= ",
    ),
    (
        "slices-for-ever",
        "the slices of a preview expire",
        "stage",
        "redis.call('PEXPIRE', KEYS[2], ARGV[2])",
        "if string.sub(ARGV[1], 1, 1) ~= 'u' then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end",
    ),
    (
        "preview-after-an-abort",
        "an attempt that was given up sets no preview any more, however late a call arrives",
        "abort",
        "if ARGV[2] == 'u' and ",
        "if false and ",
    ),
    (
        "expired-preview",
        "an expired preview is not read",
        "lineage",
        " or tonumber(expires) <= now_ms() then",
        " then",
    ),
    (
        "preview-outlives-its-run",
        "a run that takes a partition ends the previews of the run before",
        "acquire",
        "redis.call('HDEL', META, 'b', 'u')",
        "redis.call('HDEL', META, 'b')",
    ),
    (
        "preview-outlives-the-commit",
        "a commit ends the previews of its version",
        "publish",
        "  redis.call('HDEL', META, 'u')\n",
        "",
    ),
)

PREVIEW_METHODS: tuple[tuple[str, str, Any, str, Callable[..., Any]], ...] = (
    (
        "slices-in-the-wrong-order",
        "of two slices the newer one counts",
        previews,
        "_previewed",
        _oldest_slice_first,
    ),
    (
        "older-slices-forgotten",
        "a preview has the rows of all its slices",
        previews,
        "_previewed",
        _newest_slice_alone,
    ),
)
