"""Parses Spark's schemas from DDL text to JSON, without a session, and writes types as DDL.

Spark parses DDL in the JVM, which a Python worker and a test without Spark lack. State variables
use a small part of DDL: names, types, `NOT NULL`, comments.
"""

from __future__ import annotations

import re
from typing import Any

from redis_state.errors import UsageError
from redis_state.types.schema import Array, Map, Type, kind_of

_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_0-9]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))"
)
_DDL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_SIMPLE = {name: name for name in ("boolean", "float", "double", "string", "binary", "void")}
_SIMPLE |= {name: name for name in (*_DDL_NAMES, "date", "timestamp", "timestamp_ntz")}
_SIMPLE |= {alias: name for name, alias in _DDL_NAMES.items()}
_SIMPLE |= {"real": "float", "timestamp_ltz": "timestamp"}
_DECIMALS = {"decimal", "dec", "numeric"}
_LENGTHS = {"char", "character", "varchar"}
_PRECISION, _SCALE = 10, 0
_PRECISION_MAX = 38


def struct_of(text: str) -> dict[str, Any]:
    """Parses the columns of a DDL text such as ``count long, tags array<string>`` to Spark's JSON.

    Raises:
        UsageError: The text is not a list of columns.
    """
    parser = _DdlParser(text)
    fields = parser.columns(end="")
    if parser.at != len(parser.tokens):
        raise parser.bad()
    return {"type": "struct", "fields": fields}


def ddl_of(type_: Type) -> str:
    """Returns a type as DDL text, without the fields of structs."""
    if isinstance(type_, Map):
        return f"map<{ddl_of(type_.key)},{ddl_of(type_.value)}>"
    if isinstance(type_, Array):
        return f"array<{ddl_of(type_.element)}>"
    return _DDL_NAMES.get(kind_of(type_), kind_of(type_))


class _DdlParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.at = place = 0
        stripped = text.rstrip()
        while place < len(stripped):
            found = _TOKEN.match(stripped, place)
            if found is None:
                raise self.bad()
            self.tokens.append(found[0].strip())
            place = found.end()

    def bad(self) -> UsageError:
        near = " ".join(self.tokens[self.at : self.at + 3])
        return UsageError(
            "reading a schema",
            found=f"'{self.text[:200]}' is not a list of columns" + (near and f", near '{near}'"),
            advice="Give it as 'count long, tags array<string>', or as a StructType.",
        )

    def columns(self, *, end: str) -> list[dict[str, Any]]:
        fields = []
        while True:
            name = self.name()
            if self.peek() == ":":
                self.at += 1
            kind = self.kind()
            nullable, metadata = True, {}
            if self.peek().lower() == "not":
                self.at += 1
                self.expect("null")
                nullable = False
            if self.peek().lower() == "comment":
                self.at += 1
                if self.peek()[:1] not in ("'", '"'):
                    raise self.bad()
                metadata = {"comment": self.take()[1:-1]}
            fields.append({"name": name, "type": kind, "nullable": nullable, "metadata": metadata})
            if self.peek() != ",":
                break
            self.at += 1
        if end:
            self.expect(end)
        return fields

    def kind(self) -> Any:
        word = self.take().lower()
        if word == "string" and self.peek().lower() == "collate":
            self.at += 1
            return f"string collate {self.name().upper()}"
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in _DECIMALS:
            numbers = self.numbers()
            precision, scale = (*numbers, *(_PRECISION, _SCALE)[len(numbers) :])[:2]
            if len(numbers) > 2 or not scale <= precision <= _PRECISION_MAX:
                raise self.bad()
            return f"decimal({precision},{scale})"
        if word in _LENGTHS:
            self.numbers()
            return "string"
        if word == "array":
            self.expect("<")
            element = self.kind()
            self.expect(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        if word == "map":
            self.expect("<")
            key = self.kind()
            self.expect(",")
            value = self.kind()
            self.expect(">")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if word == "struct":
            self.expect("<")
            return {"type": "struct", "fields": self.columns(end=">")}
        self.at -= 1
        raise self.bad()

    def numbers(self) -> list[int]:
        if self.peek() != "(":
            return []
        self.at += 1
        found = [self.number()]
        while self.peek() == ",":
            self.at += 1
            found.append(self.number())
        self.expect(")")
        return found

    def number(self) -> int:
        word = self.take()
        if not word.isdigit():
            raise self.bad()
        return int(word)

    def name(self) -> str:
        word = self.take()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", word):
            self.at -= 1
            raise self.bad()
        return word

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        word = self.peek()
        if not word:
            raise self.bad()
        self.at += 1
        return word

    def expect(self, word: str) -> None:
        if self.peek().lower() != word:
            raise self.bad()
        self.at += 1
