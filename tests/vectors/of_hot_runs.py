"""Vectors of the manifest fields of hot runs."""

from __future__ import annotations

from typing import Any

UID = "9f000000000000000000000000000001"


def hot_runs() -> Any:
    return {
        "good": [
            {
                "field": "r:12:u",
                "text": "7 v w 3 10 2 512 4 4294967295 3 h",
                "ident": "r:12:w",
                "version": 7,
                "uid": "v",
                "entry": "w 3 10 2 512 4 4294967295 3 h",
            },
            {
                "field": f"r:9007199254740993:{UID}",
                "text": f"9007199254740992 {UID} w 1 1 2 90 1 7 1764265440 ht",
                "ident": "r:9007199254740993:w",
                "version": 9007199254740992,
                "uid": UID,
                "entry": "w 1 1 2 90 1 7 1764265440 ht",
            },
        ],
        "bad": [
            "",
            "7 v",
            "7 w 1 1 2 90 1 7 h",
            "12 v w 1 1 2 90 1 7 h",
            "0 - w 1 1 2 90 1 7 h",
            "07 v w 1 1 2 90 1 7 h",
            "7 v:1 w 1 1 2 90 1 7 h",
            "7  v w 1 1 2 90 1 7 h",
            "7 v - 1 1 2 90 1 7 h",
            "7 v w 1 1 2 90 1 7 ch",
            "7 v w 1 1 2 90 1 7",
        ],
    }
