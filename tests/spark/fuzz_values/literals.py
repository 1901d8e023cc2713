"""Values as expressions of Spark's SQL, which make exactly them."""

from __future__ import annotations

from typing import Any

from tests.spark.fuzz_values.schemas import Kind, fields

_SECOND = 1_000_000


def literal(kind: Kind, value: Any) -> str:
    """An expression with this value, of this type, in a session whose zone is UTC."""
    if value is None:
        return f"CAST(NULL AS {kind.ddl})"
    if kind.name == "array":
        (part,) = kind.parts
        return f"CAST(array({', '.join(literal(part, one) for one in value)}) AS {kind.ddl})"
    if kind.name == "map":
        key, part = kind.parts
        pairs = (f"{literal(key, one)}, {literal(part, other)}" for one, other in value)
        return f"CAST(map({', '.join(pairs)}) AS {kind.ddl})"
    if kind.name == "struct":
        named = zip(fields(kind), kind.parts, value, strict=True)
        return (
            f"named_struct({', '.join(f'{n!r}, {literal(part, one)}' for n, part, one in named)})"
        )
    return _atom(kind, value)


def _atom(kind: Kind, value: Any) -> str:
    match kind.name:
        case "string":
            return f"CAST(X'{value.hex()}' AS STRING)"
        case "collated":
            return f"(CAST(X'{value.hex()}' AS STRING) COLLATE UTF8_LCASE)"
        case "binary":
            return f"X'{value.hex()}'"
        case "date":
            return f"date_from_unix_date(CAST('{value}' AS INT))"
        case "timestamp":
            return _moment(value)
        case "timestamp_ntz":
            return f"CAST({_moment(value)} AS TIMESTAMP_NTZ)"
        case "time":
            seconds, nanos = divmod(value, 1_000_000_000)
            text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            return f"CAST('{text}.{nanos // 1000:06}' AS {kind.ddl})"
        case "day-time":
            return f"({_moment(value)} - {_moment(0)})"
        case "year-month":
            return f"make_ym_interval(0, CAST('{value}' AS INT))"
        case "calendar":
            months, days, micros = value
            sign = "-" if micros < 0 else ""
            seconds, rest = divmod(abs(micros), _SECOND)
            return (
                f"make_interval(0, CAST('{months}' AS INT), 0, CAST('{days}' AS INT), 0, 0, "
                f"CAST('{sign}{seconds}.{rest:06}' AS DECIMAL(18, 6)))"
            )
        case "variant":
            return f"parse_json(CAST(X'{value.encode().hex()}' AS STRING))"
        case "geometry":
            return f"ST_GeomFromWKB(X'{value.hex()}', 4326)"
        case "geography":
            return f"ST_GeogFromWKB(X'{value.hex()}')"
        case _:
            return f"CAST('{value}' AS {kind.ddl})"


def _moment(micros: int) -> str:
    return f"timestamp_micros(CAST('{micros}' AS BIGINT))"


def written(kind: Kind, given: str, depth: int = 0) -> str:
    """An expression with the text of another expression's value: that of `texts.text`.

    Reals, decimals and variants are marked, and are made equal by `texts.settled`.
    """
    if kind.name == "array":
        name = f"x{depth}"
        each = f"transform({given}, {name} -> {written(kind.parts[0], name, depth + 1)})"
        return f"coalesce(concat('[', array_join({each}, ','), ']'), 'NULL')"
    if kind.name == "map":
        name = f"x{depth}"
        key = written(kind.parts[0], f"{name}.key", depth + 1)
        value = written(kind.parts[1], f"{name}.value", depth + 1)
        each = f"transform(map_entries({given}), {name} -> concat({key}, ':', {value}))"
        return f"coalesce(concat('{{', array_join({each}, ','), '}}'), 'NULL')"
    if kind.name == "struct":
        names = zip(fields(kind), kind.parts, strict=True)
        each = ", ".join(written(part, f"{given}.{name}", depth) for name, part in names)
        return f"if({given} IS NULL, 'NULL', concat('(', concat_ws(',', {each}), ')'))"
    return f"coalesce({_written(kind.name, given)}, 'NULL')"


def _written(name: str, given: str) -> str:
    match name:
        case "void":
            return "'NULL'"
        case "float" | "double":
            return f"concat('{name[0]}<', CAST({given} AS STRING), '>')"
        case "decimal" | "nanos" | "nanos_ntz" | "time":
            return f"concat('{name[0]}<', CAST({given} AS STRING), '>')".replace("d<", "m<")
        case "string" | "collated":
            return f"hex(CAST({given} AS BINARY))"
        case "binary":
            return f"hex({given})"
        case "date":
            return f"CAST(unix_date({given}) AS STRING)"
        case "timestamp":
            return f"CAST(unix_micros({given}) AS STRING)"
        case "timestamp_ntz":
            return f"CAST(unix_micros(CAST({given} AS TIMESTAMP)) AS STRING)"
        case "day-time":
            return f"CAST(unix_micros({_moment(0)} + {given}) AS STRING)"
        case "year-month":
            return f"CAST(extract(YEAR FROM {given}) * 12L + extract(MONTH FROM {given}) AS STRING)"
        case "calendar":
            months = f"extract(YEAR FROM {given}) * 12L + extract(MONTH FROM {given})"
            micros = (
                f"extract(HOUR FROM {given}) * 3600000000L + extract(MINUTE FROM {given}) * "
                f"60000000L + CAST(extract(SECOND FROM {given}) * 1000000 AS BIGINT)"
            )
            days = f"extract(DAY FROM {given})"
            return f"concat({months}, '/', {days}, '/', {micros})"
        case "variant":
            return f"concat('v<', hex(CAST(to_json({given}) AS BINARY)), '>')"
        case "geometry" | "geography":
            return f"hex(ST_AsBinary({given}))"
        case _:
            return f"CAST({given} AS STRING)"
