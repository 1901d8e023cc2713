"""Users' mistakes with the Python API and the command line, each with the last message of it.

A mistake is a function that makes it on a real server and returns the text; its first line of
documentation is the title under which docs/errors.md shows that text. What differs from run to run
(ports, folders, ids, times) is written as `Scene.plain` says.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable

import redis_state
from redis_state import keys
from redis_state.cli.main import main
from redis_state.spark.conf import conf_settings
from tests.contract.mistake_scene import UA, URL, Scene, begin, command, read, told
from tests.contract.planting import GEN, Planted
from tests.support.forking import in_child
from tests.support.redis_server import free_port

# ---- reaching the server ------------------------------------------------------------------------


def no_server(scene: Scene) -> str:
    """Nothing listens there: the server is down, or the port is wrong"""
    port = free_port()
    scene.call(f"127.0.0.1:{port}", "localhost:6379")
    return read(f"redis://127.0.0.1:{port}/0")


def no_host(_scene: Scene) -> str:
    """The host name is wrong"""
    return read("redis://redis.invalid:6379/0")


def no_password(scene: Scene) -> str:
    """The password is missing"""
    return read(scene.server(password="right-secret").url)


def wrong_password(scene: Scene) -> str:
    """The password is wrong"""
    return read(scene.server(password="right-secret").url, password="wrong-secret")


def password_in_url(_scene: Scene) -> str:
    """The password is in the URL"""
    return read("redis://:right-secret@localhost:6379/0")


def no_password_file(scene: Scene) -> str:
    """The password file is missing"""
    return read(URL, password_file=scene.folder / "redis.password")


def empty_password_file(scene: Scene) -> str:
    """The password file is empty"""
    file = scene.folder / "redis.password"
    file.write_text("\n")
    return read(URL, password_file=file)


def no_database(scene: Scene) -> str:
    """There is no such database"""
    server = scene.server()
    return read(server.url.removesuffix("/0") + "/17")


def missing_right(scene: Scene) -> str:
    """The user lacks a right"""
    server = scene.server()
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "job", "on", ">secret", "~*", "+@all", "-hgetall")
    return read(server.url, username="job", password="secret")


def tls_to_a_plain_port(scene: Scene) -> str:
    """rediss:// to a port without TLS"""
    return read(scene.server().url.replace("redis://", "rediss://"))


def plain_to_a_tls_port(scene: Scene) -> str:
    """redis:// to a port with TLS"""
    return read(scene.server(tls=True).url.replace("rediss://", "redis://"))


def unknown_authority(scene: Scene) -> str:
    """The certificate is signed by somebody unknown"""
    return read(scene.server(tls=True).url)


def evicting_server(scene: Scene) -> str:
    """The server may evict state"""
    server = scene.server(maxmemory="50mb", options={"maxmemory-policy": "allkeys-lru"})
    return told(lambda: scene.store(server))


def replica(scene: Scene) -> str:
    """The server is a replica"""
    master = scene.server()
    follower = scene.start(options={"replicaof": f"{master.host} {master.port}"})
    scene.call(f"{follower.host}:{follower.port}", "localhost:6379")
    return told(lambda: begin(follower, number=0))


def no_free_connection(scene: Scene) -> str:
    """The server takes no more connections"""
    server = scene.server(options={"maxclients": "1"})
    with server.client(single_connection_client=True) as only:
        only.ping()
        return read(server.url)


def lacking_command(scene: Scene) -> str:
    """A command is renamed or disabled, or a proxy lacks it"""
    return told(lambda: scene.store(scene.server(lacks=["MULTI", "EXEC"])))


def low_limit(scene: Scene) -> str:
    """A row is larger than the server takes"""
    server = scene.server(options={"client-query-buffer-limit": "1mb"})
    provider = scene.provider(server)
    store = provider.get_store(0)
    store.put("o-1", bytes(os.urandom(1 << 21)))
    return re.sub(r"has \d{7} bytes", "has 2097201 bytes", told(store.commit))


def sentinel(scene: Scene) -> str:
    """A redis+sentinel:// URL, and no Sentinel listens there"""
    server = scene.server()
    return read(server.url.replace("redis://", "redis+sentinel://").replace("/0", "/main/0"))


def full_server(scene: Scene) -> str:
    """The server is full"""
    server = scene.server()
    provider = scene.store(server)
    with server.client() as raw:
        raw.config_set("maxmemory", "100kb")
        return told(lambda: provider.get_store(1).commit())


# ---- options ------------------------------------------------------------------------------------


def misspelt_option(_scene: Scene) -> str:
    """An option is misspelt"""
    return told(lambda: redis_state.connect(URL, pasword_file="/run/secrets/redis"))  # type: ignore[call-arg]  # that is it


def value_without_unit(_scene: Scene) -> str:
    """A duration has no unit"""
    return told(lambda: redis_state.connect(URL, deadline="30"))


def user_without_password(_scene: Scene) -> str:
    """A user name without a password"""
    return told(lambda: redis_state.connect(URL, username="job"))


def old_spark(_scene: Scene) -> str:
    """A Spark that is too old"""
    return told(lambda: conf_settings({"url": URL}, spark_version="3.5.1", existing={}))


def unknown_codec(scene: Scene) -> str:
    """Another codec than the store was begun with"""
    server = scene.server()
    scene.store(server)
    other = scene.provider(server, codec=redis_state.codec.RAW)
    return told(lambda: other.get_store(1).get(b"o-1"))


# ---- looking for something ----------------------------------------------------------------------


def _get(scene: Scene, *words: str, query: str = "flights") -> str:
    server = scene.server()
    scene.planted(server)
    return command("get", query, "--url", server.url, *words)


def unknown_query(scene: Scene) -> str:
    """There is no such query"""
    return _get(scene, "carrier=UA", query="flihgts")


def unknown_operator(scene: Scene) -> str:
    """There is no such operator"""
    return _get(scene, "--operator", "5", "carrier=UA")


def unknown_column(scene: Scene) -> str:
    """There is no such key column"""
    return _get(scene, "airline=UA")


def version_to_come(scene: Scene) -> str:
    """A version that was never there"""
    return _get(scene, "--version", "99", "carrier=UA")


def unknown_checkpoint(scene: Scene) -> str:
    """purge of a checkpoint that Redis does not know"""
    return command("purge", "--url", scene.server().url, "--gen", GEN, "--yes")


def no_id(scene: Scene) -> str:
    """purge of what is not an id"""
    return command("purge", "--url", scene.server().url, "--gen", "flights", "--yes")


# ---- checkpoint folders -------------------------------------------------------------------------


def deleted_folder(scene: Scene) -> str:
    """The checkpoint folder was deleted"""
    server = scene.server()
    return command("doctor", "--url", server.url, "--checkpoint", f"{scene.folder}/checkpoint")


def no_checkpoint(scene: Scene) -> str:
    """The folder is not a checkpoint"""
    return command("doctor", "--url", scene.server().url, "--checkpoint", str(scene.folder))


def no_marker(scene: Scene) -> str:
    """The marker file was deleted, or the query keeps its state elsewhere"""
    server = scene.server()
    folder = scene.planted(server)
    (folder / "state" / "_redis_state").unlink()
    return command("doctor", "--url", server.url, "--checkpoint", str(folder))


def moved_folder(scene: Scene) -> str:
    """The folder was moved or copied"""
    server = scene.server()
    moved = scene.planted(server).rename(scene.folder / "copy")
    return command("purge", "--url", server.url, "--checkpoint", str(moved), "--yes")


def without_a_driver(_scene: Scene) -> str:
    """The folder is in a file system without its driver"""
    return command("doctor", "--url", URL, "--checkpoint", "gs://bucket/flights")


def file_system_down(_scene: Scene) -> str:
    """The file system of the folder gives no answer"""
    return command("doctor", "--url", URL, "--checkpoint", "webhdfs://127.0.0.1:1/flights")


def purge_while_running(scene: Scene) -> str:
    """purge while the query runs"""
    return _while_running(scene, "purge", "--yes")


def rewind_while_running(scene: Scene) -> str:
    """rewind while the query runs"""
    return _while_running(scene, "rewind", "--to-batch", "1", "--yes")


def _while_running(scene: Scene, name: str, *arguments: str) -> str:
    server = scene.server()
    folder = scene.planted(server)
    with server.client() as raw:
        seconds, micros = raw.time()
        raw.hset(keys.query(GEN), "seen", str(seconds * 1000 + micros // 1000))
    return command(name, "--url", server.url, "--checkpoint", str(folder), *arguments)


def rewind_too_far(scene: Scene) -> str:
    """rewind to a batch that is not there"""
    server = scene.server()
    folder = scene.planted(server)
    place = ("--url", server.url, "--checkpoint", str(folder))
    return command("rewind", *place, "--to-batch", "9")


def restore_without_copies(scene: Scene) -> str:
    """restore of a query that makes no copies"""
    server = scene.server()
    folder = scene.planted(server)
    return command("restore", "--url", server.url, "--checkpoint", str(folder))


# ---- state that is gone -------------------------------------------------------------------------


def flushed_server(scene: Scene) -> str:
    """The server was flushed: doctor"""
    server = scene.server()
    folder = scene.planted(server)
    with server.client() as raw:
        raw.flushall()
    return command("doctor", "--url", server.url, "--checkpoint", str(folder))


def flushed_store(scene: Scene) -> str:
    """The server was flushed: a store of Python"""
    server = scene.server()
    scene.store(server)
    with server.client() as raw:
        raw.flushall()
    return told(lambda: scene.provider(server).get_store(1))


def older_data(scene: Scene) -> str:
    """The server came back with older data"""
    server = scene.server()
    scene.store(server, versions=2)
    return told(lambda: scene.provider(server).get_store(3))


def lost_version(scene: Scene) -> str:
    """A segment was evicted or deleted: doctor"""
    server = scene.server()
    folder = scene.planted(server)
    planted = Planted(server.client())
    with server.client() as raw:
        (name,) = raw.keys(f"{keys.partition(planted.id(planted.partition(UA)))}:d:3:*")
        raw.unlink(name)
    return command("doctor", "--url", server.url, "--checkpoint", str(folder))


def damaged_block(scene: Scene) -> str:
    """Bytes were changed in Redis"""
    server = scene.server()
    scene.store(server)
    with server.client() as raw:
        (name,) = raw.keys("*}:d:1:*")
        for field in raw.hkeys(name):
            raw.hset(name, field, b"changed")
    return told(lambda: scene.provider(server).get_store(1).get("o-1"))


def purged_checkpoint(scene: Scene) -> str:
    """The checkpoint was purged today"""
    server = scene.server()
    scene.store(server)
    with server.client() as raw:
        (gen,) = raw.hvals(keys.names())
    arguments = ("purge", "--url", server.url, "--gen", gen.decode(), "--yes", "--force")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(list(arguments)) == 0
    return told(lambda: scene.provider(server).get_store(1))


# ---- stores of Python ---------------------------------------------------------------------------


def two_writers(scene: Scene) -> str:
    """Two processes write one partition"""
    server = scene.server()
    with contextlib.closing(scene.store(server)) as first:
        mine = first.get_store(1)
        mine.put("o-2", "open")

        def other() -> int:
            theirs = scene.provider(server).get_store(1)
            theirs.put("o-3", "open")
            return theirs.commit()

        assert in_child(other) == 2
        text = told(mine.commit)
    return re.sub(r"\(epoch.*?\)", "(epoch 1763863200000)", text)


def forked_process(scene: Scene) -> str:
    """A store is used in a process that was forked off"""
    server = scene.server()
    with contextlib.closing(scene.store(server)) as provider:
        store = provider.get_store(1)
        return str(in_child(lambda: told(lambda: store.put("o-2", "open"))))


def used_after_commit(scene: Scene) -> str:
    """A store is used after its commit"""
    server = scene.server()
    store = scene.provider(server).get_store(0)
    store.commit()
    return told(lambda: store.put("o-2", "open"))


def strange_key(scene: Scene) -> str:
    """A key that has no encoding"""
    store = scene.provider(scene.server()).get_store(0)
    return told(lambda: store.put({1, 2}, "open"))


def large_value(scene: Scene) -> str:
    """A value that is too large"""
    store = scene.provider(scene.server()).get_store(0)
    return told(lambda: store.put("o-1", b"x" * ((64 << 20) + 1)))


def other_partitions(scene: Scene) -> str:
    """The number of partitions of a foreachBatch store was changed"""
    server = scene.server()
    begin(server, number=0)
    return told(lambda: begin(server, number=0, partitions=8))


def skipped_batch(scene: Scene) -> str:
    """A batch was left out"""
    server = scene.server()
    begin(server, number=0)
    return told(lambda: begin(server, number=2))


MISTAKES: dict[str, list[Callable[[Scene], str]]] = {
    "Reaching the server": [
        no_server,
        no_host,
        no_password,
        wrong_password,
        password_in_url,
        no_password_file,
        empty_password_file,
        no_database,
        missing_right,
        tls_to_a_plain_port,
        plain_to_a_tls_port,
        unknown_authority,
        evicting_server,
        replica,
        no_free_connection,
        lacking_command,
        low_limit,
        sentinel,
        full_server,
    ],
    "Options": [
        misspelt_option,
        value_without_unit,
        user_without_password,
        old_spark,
        unknown_codec,
    ],
    "Looking for something": [
        unknown_query,
        unknown_operator,
        unknown_column,
        version_to_come,
        unknown_checkpoint,
        no_id,
    ],
    "Checkpoint folders": [
        deleted_folder,
        no_checkpoint,
        no_marker,
        moved_folder,
        without_a_driver,
        file_system_down,
        purge_while_running,
        rewind_while_running,
        rewind_too_far,
        restore_without_copies,
    ],
    "State that is gone": [
        flushed_server,
        flushed_store,
        older_data,
        lost_version,
        damaged_block,
        purged_checkpoint,
    ],
    "Stores of Python": [
        two_writers,
        forked_process,
        used_after_commit,
        strange_key,
        large_value,
        other_partitions,
        skipped_batch,
    ],
}


def title_of(mistake: Callable[[Scene], str]) -> str:
    """Under which the page shows it."""
    return str(mistake.__doc__).strip()


def all_of_them() -> list[Callable[[Scene], str]]:
    """Returns all mistakes in the order of the page."""
    return [one for several in MISTAKES.values() for one in several]
