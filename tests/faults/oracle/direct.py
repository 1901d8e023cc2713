"""The cheapest connection to the server of a schedule: one socket, no pool, no retries.

Half of a schedule's time went into the client library around the same bytes. Replies mean what they
mean to that library, whose tables say which error and which type each of them is.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hiredis
import redis
from redis._parsers.base import BaseParser

from redis_state.backend.script import Command
from redis_state.backend.transport import Transport

_READ_BYTES = 1 << 16


class DirectTransport:
    """One server on a unix socket, for one thread. A watchdog ends what waits for ever."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader(replyError=BaseParser.parse_error)
        with redis.Redis(protocol=2) as library:
            self._meanings = dict(library.response_callbacks)
        self._info: Any = None
        self._hashes: dict[str | bytes, bytes] = {}

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands as `Transport.exchange` does; the reply of `INFO` is cached."""
        if commands == [("INFO",)]:
            self._info = self._info or self._sent(commands)
            return list(self._info)
        return self._sent(commands)

    def parts(self) -> Sequence[Transport]:
        """Itself."""
        return [self]

    def owner_known(self, _slot: int | None) -> None:
        """Implements `Transport.owner_known`."""
        return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def forget_scripts(self) -> None:
        """Somebody else may have flushed them."""
        self._hashes.clear()

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if commands[0] == ("SCRIPT", "FLUSH"):
            self.forget_scripts()
        return self._answered([self._short(one) if one[0] == "EVAL" else one for one in commands])

    def _short(self, command: Command) -> Command:
        """The text of a script is not sent again while the server has it."""
        text = command[1]
        if text not in self._hashes:
            (self._hashes[text],) = self._answered([("SCRIPT", "LOAD", text)])
        return ("EVALSHA", self._hashes[text], *command[2:])

    def _answered(self, commands: Sequence[Command]) -> list[Any]:
        packed: list[bytes] = [hiredis.pack_command(one) for one in commands]  # type: ignore[arg-type]  # its stub wants tuples of one
        self._socket.sendall(b"".join(packed))
        return [self._meant(command[0], self._reply()) for command in commands]

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            read = self._socket.recv(_READ_BYTES)
            if not read:
                raise redis.ConnectionError("the server closed the connection")
            self._reader.feed(read)
        return reply

    def _meant(self, name: str | bytes, reply: Any) -> Any:
        if isinstance(reply, Exception):
            if isinstance(reply, redis.ConnectionError):
                raise reply
            return reply
        meaning = self._meanings.get(name)
        return reply if meaning is None else meaning(reply)
