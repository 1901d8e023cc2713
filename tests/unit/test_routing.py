"""Commands that stay together when a pipeline is split for a cluster."""

from __future__ import annotations

from importlib import resources

from redis_state.backend.routing import slot_of, split
from redis_state.backend.script import Command, script, touches_undeclared_keys

COMMIT: list[Command] = [("MULTI",), ("EVAL", "return 1", "1", "{a}:m"), ("EXEC",)]


def test_waits_after_a_transaction_go_to_its_slot() -> None:
    waits: list[Command] = [("WAIT", "1", "100"), ("CONFIG", "GET", "append*")]
    read: Command = ("HGET", "{b}:m", "l")
    first, second = split([*COMMIT, *waits, read])
    assert (list(first.commands), first.at, first.slot) == (
        [*COMMIT, *waits],
        0,
        slot_of(COMMIT[1]),
    )
    assert (second.commands, second.at, second.slot) == ((read,), 5, slot_of(read))


def test_wait_after_a_plain_command_is_sent_again_with_it() -> None:
    write: list[Command] = [("SET", "{a}:k", "1"), ("WAIT", "1", "100")]
    settings: Command = ("CONFIG", "GET", "append*")
    first, second = split([*write, settings])
    assert (list(first.commands), first.at, first.slot) == (write, 0, slot_of(write[0]))
    assert (second.commands, second.at, second.slot) == ((settings,), 2, first.slot)


def test_scripts_that_count_memory_wait_for_a_slot_that_moves() -> None:
    texts = resources.files("redis_state.backend").joinpath("scripts").iterdir()
    counting = [
        one.name.removesuffix(".lua") for one in texts if "--#include room\n" in one.read_text()
    ]
    assert "stage" in counting
    for name in counting:
        assert touches_undeclared_keys(script(name).by_hash(["{a}:m"])), name
