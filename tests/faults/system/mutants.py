"""Mended faults put back, one at a time: each has to be found by the schedules.

A mutant changes texts. Those of Scala are compiled, those of Lua are read by both languages, those
of Python are functions that are replaced.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from redis_state.backend import script
from tests.faults.oracle.mutants import StaleMutantError
from tests.faults.oracle.wire import forget_scripts
from tests.faults.system.forks.mutants import FORK_MUTANTS
from tests.faults.system.repair_mutants import (
    move_logs_first,
    set_back_its_own,
    set_back_what_is_there,
    set_back_what_lacks,
    set_one,
)
from tools.jvm import ROOT

_SPARK = "jvm-adapter/spark/src/main/scala/org/apache/spark/sql/redisstate"
_CORE = "jvm-adapter/core/src/main/scala/org/redisstate/core"
_LUA = "redis_state/backend/scripts"
_RESOURCES = "org/redisstate/scripts"


@dataclass(frozen=True)
class Mutant:
    """One rule less.

    Attributes:
        rule: What is not done any more.
        edits: File, old text, new text.
        patches: Python's functions, and what stands in for them.
    """

    name: str
    rule: str
    edits: tuple[tuple[str, str, str], ...] = ()
    patches: tuple[tuple[str, Any], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[str]:
        """The folder of what the JVM takes instead of its own; Python's side is patched."""
        with tempfile.TemporaryDirectory(prefix="rs-mutant-") as folder, ExitStack() as stack:
            texts = self.texts()
            sources = [_write(Path(folder, "src"), name) for name in texts if _is_scala(name)]
            for path, text in zip(sources, (texts[n] for n in texts if _is_scala(n)), strict=True):
                path.write_text(text)
            if sources:
                _compile(sources, Path(folder))
            scripts = {Path(n).stem: text for n, text in texts.items() if n.endswith(".lua")}
            for name, text in scripts.items():
                _write(Path(folder), f"{_RESOURCES}/{name}.lua").write_text(text)
            read = script._read
            for target, stand_in in self.patches:
                stack.enter_context(mock.patch(target, stand_in))
            if scripts:
                replaced = mock.patch.object(
                    script, "_read", lambda name: scripts.get(name) or read(name)
                )
                stack.enter_context(replaced)
                forget_scripts()
                stack.callback(forget_scripts)
            yield folder

    def texts(self) -> dict[str, str]:
        """The changed files.

        Raises:
            StaleMutantError: One no longer has the text that is taken out.
        """
        texts: dict[str, str] = {}
        for name, old, new in self.edits:
            text = texts.get(name) or (ROOT / name).read_text()
            if text.count(old) != 1:
                raise StaleMutantError(f"{name} has {text.count(old)} times: {old}")
            texts[name] = text.replace(old, new)
        return texts


def _is_scala(name: str) -> bool:
    return name.endswith(".scala")


def _write(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _compile(sources: list[Path], target: Path) -> None:
    spark = ROOT / ".venv" / "pyspark-jars" / "*"
    (jar,) = (ROOT / "redis_state" / "jars").glob("redis-state-spark-4.3_*.jar")
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(spark), "scala.tools.nsc.Main"]
    command += ["-nowarn", "-release", "17", "-cp", f"{jar}:{spark}", "-d", str(target)]
    subprocess.run([*command, *map(str, sources)], check=True, cwd=ROOT)


def _nothing(*_: object, **__: object) -> None:
    return None


def _no(*_: object) -> bool:
    return False


_IDENTITY = f"{_SPARK}/checkpoint/CheckpointIdentity.scala"
_REGISTRY = f"{_SPARK}/executor/ExecutorRegistry.scala"
_ENTRY = f"{_SPARK}/checkpoint/QueryEntry.scala"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "marker-not-compared",
        "who writes has opened the gen that the marker has",
        ((_IDENTITY, "if (marker.gen != gen) {", "if (false) {"),),
    ),
    Mutant(
        "marker-written-over-itself",
        "a marker that is there is never written again",
        (
            (
                _IDENTITY,
                "decide(mine).fold(marker => marker, make)",
                "decide(mine).fold(marker => make(marker.gen), make)",
            ),
            (
                f"{_SPARK}/checkpoint/OnceFile.scala",
                "renamed = read().isEmpty && fs.rename(temporary, path)",
                "org.apache.hadoop.fs.FileContext.getFileContext(path.toUri, hadoopConf).rename(\n"
                "temporary, path, org.apache.hadoop.fs.Options.Rename.OVERWRITE)\n"
                "renamed = true",
            ),
        ),
    ),
    Mutant(
        "commits-of-a-living-run-dropped",
        "a run drops what another one has committed only if Spark's log went back",
        (
            (
                f"{_LUA}/acquire.lua",
                "if unsure and ARGV[10] ~= text(opened) .. ' ' .. meta('r') then return",
                "if false then return",
            ),
        ),
    ),
    Mutant(
        "store-of-a-forked-process",
        "what was opened before a fork is refused in the child",
        patches=(
            ("redis_state.process.Home.check", _nothing),
            ("redis_state.store.partition_store.PartitionReadStore.after_fork", _nothing),
            ("redis_state.store.partition_store.PartitionStore.after_fork", _nothing),
        ),
    ),
    Mutant(
        "memory-without-a-bound",
        "who brings rows into the local memory makes room for them",
        (
            (
                f"{_CORE}/store/resources/MemoryBudget.scala",
                "if (usedBytes > boundBytes) {\n      making.lock()",
                "if (false) {\n      making.lock()",
            ),
        ),
    ),
    Mutant(
        "readers-register",
        "only who writes is shown as an instance",
        (
            (
                _ENTRY,
                "    StoreLink(instance, store, new Metrics(store), entry, history)",
                "    ExecutorRegistry.register(conf.connection, instance)\n"
                "    StoreLink(instance, store, new Metrics(store), entry, history)",
            ),
        ),
    ),
    Mutant(
        "unregistered-by-place",
        "a provider that is closed takes itself out of the registry, and no other",
        (
            (
                _REGISTRY,
                "backends.get(settings).foreach(_.instances -= instance)",
                "backends.get(settings).foreach(_.instances.filterInPlace(_.id != instance.id))",
            ),
        ),
    ),
    Mutant(
        "older-instance-takes-its-place-back",
        "of two processes that serve a partition the one that began last is shown",
        (
            (
                f"{_CORE}/protocol/RunRegistry.scala",
                "if (report.isNew) Command(",
                "if (report.isNew || true) Command(",
            ),
        ),
    ),
    Mutant(
        "abort-on-the-caller's-thread",
        "an abort works on a thread that is interrupted",
        (
            (
                f"{_CORE}/store/WriteSession.scala",
                "      val removal = client.later(client.abort(ident, hasPreviews))\n"
                "      Staging.awaitRemoval(removal, ident, client.id)\n",
                "      client.abort(ident, hasPreviews)\n",
            ),
        ),
    ),
    Mutant(
        "listed-without-a-second-look",
        "who enters a query in the list looks for a purge behind the entry",
        ((f"{_CORE}/protocol/RunRegistry.scala", "if (isPurged) {", "if (what.isEmpty) {"),),
    ),
    Mutant(
        "latest-without-a-second-look",
        "who opened the newest version looks behind that whether the query went back",
        patches=(("redis_state.reader.versions._went_back", _no),),
    ),
    Mutant(
        "purge-of-what-is-used",
        "a checkpoint that may be in use is not purged without --force",
        patches=(("redis_state.cli.operate.purge.refuse_if_used", _nothing),),
    ),
    Mutant(
        "vanished-by-the-start-of-the-run",
        "the age of a checkpoint counts from its last use",
        patches=(
            (
                "redis_state.maintain.vanished.SeenCheckpoint.used_ms",
                property(lambda seen: seen.info.seen_ms),
            ),
        ),
    ),
    Mutant(
        "stale-frames-let-in",
        "a frame that was shown for one batch is let into no other",
        ((f"{_LUA}/join.lua", "(of_run or shown_for)", "of_run"),),
    ),
    Mutant(
        "started-within-a-day-of-a-purge",
        "nothing of a purged checkpoint is renewed but by a recall",
        (
            (
                f"{_LUA}/join.lua",
                "if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end",
                "",
            ),
        ),
    ),
    Mutant(
        "rewound-logs-alone",
        "who sets the logs back sets the batches of Python's stores back",
        (
            (
                f"{_LUA}/rewind.lua",
                "redis.call('HSET', query, 'batch:' .. place, wanted)",
                "",
            ),
        ),
    ),
    Mutant(
        "rewound-with-what-was-begun",
        "a batch that is set back has not begun",
        ((f"{_LUA}/rewind.lua", "redis.call('HDEL', query, 'begun:' .. place)", ""),),
    ),
    Mutant(
        "imported-with-what-was-begun",
        "a batch that an import sets back has not begun",
        (
            (
                f"{_LUA}/rewind.lua",
                "redis.call('HDEL', query, 'begun:' .. place)",
                "if ARGV[4] ~= 'imported' then redis.call('HDEL', query, 'begun:' .. place) end",
            ),
        ),
    ),
    Mutant(
        "rewind-not-undone",
        "the batches of a store are set forward where its partitions hold them",
        (
            (
                f"{_LUA}/rewind.lua",
                "if found == wanted then return {'OK'} end",
                "if found == wanted or tonumber(ARGV[3]) > tonumber(string.match(ARGV[2], '%d+')) "
                "then return {'OK'} end",
            ),
        ),
    ),
    Mutant(
        "rewind-without-the-stores",
        "a rewind sets Python's stores before it ends",
        patches=(("redis_state.recovery.query_state.QueryState.set_to", _nothing),),
    ),
    Mutant(
        "rewind-of-one-store",
        "a rewind sets all stores of a query",
        patches=(("redis_state.recovery.query_state.QueryState.set_to", set_one),),
    ),
    Mutant(
        "logs-before-the-stores",
        "a rewind sets the stores before it moves the first entry of the logs",
        patches=(("redis_state.cli.operate.rewind.run", move_logs_first),),
    ),
    Mutant(
        "import-without-the-batches",
        "an import sets back what the registry that survived says",
        patches=(("redis_state.exports.import_plan.Import._set_batches_back", _nothing),),
    ),
    Mutant(
        "import-where-nothing-was-lost",
        "an import sets batches back where all partitions are there",
        patches=(("redis_state.exports.import_plan._to_set_back", set_back_what_lacks),),
    ),
    Mutant(
        "import-where-one-partition-was-lost",
        "an import sets batches back where a partition is lacking",
        patches=(("redis_state.exports.import_plan._to_set_back", set_back_what_is_there),),
    ),
    Mutant(
        "import-of-one-store",
        "an import sets the other stores of the query back, too",
        patches=(("redis_state.exports.import_plan._to_set_back", set_back_its_own),),
    ),
    *(Mutant(name, rule, edits, patches) for name, rule, edits, patches in FORK_MUTANTS),
)
