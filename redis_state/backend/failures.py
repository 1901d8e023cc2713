"""Classification of failed exchanges: errors to retry, and final errors with advice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis

from redis_state.backend import needs
from redis_state.backend.connection import (
    final_error,
    hint,
    in_words,
    is_hung_up,
    no_redis,
    refused,
)
from redis_state.backend.replies import (
    MAXCLIENTS,
    failure,
    hint_of,
    is_lacking_in_script,
    is_login,
    is_transient,
    lacking,
    name_of,
)
from redis_state.backend.retry import TransientError
from redis_state.backend.script import Command
from redis_state.backend.transport import NoServerError, ReplacedError, Transport, message_of
from redis_state.config import Config
from redis_state.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    Kind,
    RedisStateError,
    UnavailableError,
)
from redis_state.url import ClusterEndpoint

LateError = type[UnavailableError] | type[CommitOutcomeUnknownError]
"""Class of the error after the deadline: a read has no outcome, a commit may have one."""


class ServersChangedError(UnavailableError):
    """A server was replaced or restarted, so all servers must be asked again."""


class FailureClassifier:
    """Turns failures of connections and replies into a `TransientError` or a final error.

    Asks the server for its limits and commands if a failure may be due to them.
    """

    def __init__(self, config: Config, transport: Transport) -> None:
        self._config = config
        self._transport = transport
        # Before the first answer of a Redis, another protocol means that the address is wrong.
        self._was_answered = False

    def reached(
        self, attempted: str, once: Callable[[], list[Any]], commands: Sequence[Command] = ()
    ) -> list[Any]:
        """Returns the result of an exchange, or raises the class of its failure."""
        try:
            replies = once()
            self._was_answered = True
            return replies
        except redis.exceptions.InvalidResponse as error:
            if not self._was_answered:
                raise no_redis(attempted, self._config) from error
            raise TransientError(
                "the program that listens there does not speak the Redis protocol"
            ) from error
        except ReplacedError as error:
            raise ServersChangedError(attempted, found=str(error)) from error
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
            final = final_error(attempted, error, self._config)
            if final is not None:
                raise final from error
            answers = redis.ResponseError, redis.exceptions.BusyLoadingError
            if isinstance(error, answers) or MAXCLIENTS in str(error):
                raise self.classified(attempted, message_of(error)) from error
            why = hint(error, self._config, was_answered=self._was_answered)
            if isinstance(error, NoServerError):
                raise TransientError(message_of(error), hint_of(str(error)) or why) from error
            shown = in_words(error, self._config)
            hung_up = commands if is_hung_up(error) else ()
            too_large = self._too_large(attempted, hung_up)
            if too_large is not None:
                raise too_large from error
            raise TransientError(shown, why, hung_up=hung_up) from error

    def checked(self, attempted: str, replies: list[Any], commands: Sequence[Command]) -> list[Any]:
        """Returns the replies if none is an error, or raises the class of the first error."""
        for reply, command in zip(replies, commands, strict=False):
            if isinstance(reply, redis.AuthenticationError):
                raise refused(attempted, str(reply), self._config)
            if isinstance(reply, redis.RedisError):
                raise self.classified(attempted, message_of(reply), name_of(command)) from reply
        return replies

    def classified(self, attempted: str, message: str, command: str = "") -> Exception:
        """Returns the error for an error message of the server."""
        url = self._config.url
        if is_login(message):
            return refused(attempted, message, self._config)
        if message.startswith(("MOVED ", "ASK ")) and not isinstance(url, ClusterEndpoint):
            return ConfigError(
                attempted,
                found=f"{url.url} is a node of a cluster, and another node has the key ('"
                f"{message.split(' ')[0]}')",
                advice="Give the cluster's URL: redis+cluster://host:port.",
            )
        if is_lacking_in_script(message):
            names = self._asked_aside(needs.trial())
            return lacking(attempted, needs.absent(names) or ["that a script calls"], at=url.url)
        if not is_transient(message):
            return failure(attempted, message, command)
        return TransientError(message.rstrip("."), hint_of(message), is_answer=True)

    def too_late(
        self, attempted: str, error: TransientError, tries: int, late: LateError
    ) -> RedisStateError:
        """Returns the error after the deadline, with what the server's limits say of its cause."""
        if not error.lasts:
            return self._not_durable(attempted, tries, error)
        url, advice, why = self._config.url.url, late.default_advice, error.hint
        if error.hung_up:
            sent, longest = needs.sizes_of(error.hung_up)
            limits = self._limits()
            if limits or self._was_answered or longest > needs.BYTES_ALLOWED_MIN:
                named = needs.hint_of_limits(limits, sent_bytes=sent, argument_bytes=longest)
                why = f"{named} {why}".rstrip()
        if late is UnavailableError and (error.is_answer or why != error.hint):
            advice = "" if why else "Try again when it can."
        did = "refused it" if error.is_answer else "gave no answer"
        return late(
            attempted,
            found=f"{url} {did} in {tries} tries: {error}",
            advice=f"{advice} {why}".strip(),
        )

    def _not_durable(
        self, attempted: str, tries: int, error: TransientError
    ) -> CommitOutcomeUnknownError:
        return CommitOutcomeUnknownError(
            attempted,
            kind=Kind.NOT_DURABLE,
            found=(
                f"{self._config.url.url} has the commit, but after {tries} tries it is not as "
                f"durable as durability={self._config.durability} requires: {error}"
            ),
            advice=(
                "Run the same batch again: the commit then waits again. Check INFO replication "
                "and INFO persistence of the server: do the replicas follow, and does the disk "
                "keep up?"
            ),
        )

    def _too_large(self, attempted: str, commands: Sequence[Command]) -> ConfigError | None:
        """Returns the error for a request above the server's limits; ``None`` if it is not."""
        _, longest = needs.sizes_of(commands)
        limit = longest > needs.BYTES_ALLOWED_MIN and needs.exceeded(self._limits(), longest)
        if not limit:
            return None
        return ConfigError(
            attempted,
            found=f"{self._config.url.url} closes the connection: it has {limit}, and an "
            f"argument has {longest} bytes",
            advice="Raise that limit on the server, or make the rows smaller.",
        )

    def _limits(self) -> dict[str, str]:
        """Asks the server for its limits; empty if it does not answer."""
        return needs.settings_in(self._asked_aside(needs.ASK_LIMITS))

    def _asked_aside(self, commands: Sequence[Command]) -> list[Any]:
        """Asks the server about a failure; empty if it does not answer."""
        try:
            # Any node of a cluster will do, because the commands have no keys.
            return self._transport.parts()[0].exchange(commands)
        except (redis.RedisError, RedisStateError):
            return []
