"""Command that runs test classes of a Maven module on a JVM.

Maven's plugins run tests on the classes of a module. This command runs them on the shaded jar that
users get, and also on the Spark of pyspark.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=240m",
    "-Djdk.lang.Process.launchMechanism=VFORK",
)
"""Options for a JVM of a few minutes, in which the optimising compiler costs CPU.

The compiler takes more CPU than it saves in that time. Without it a JVM has 48 MiB for compiled
code. Spark's generated classes fill this space, and the JVM then spends CPU on discarding code. The
last option is for Hadoop, which without its native library starts a `chmod` for each file of a
checkpoint: 1.7 ms of CPU instead of 2.7 each.
"""

_ARCHIVE = ROOT / ".venv" / "spark.jsa"
# The log options silence the warning about another class path.
_ARCHIVED = (f"-XX:SharedArchiveFile={_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")

OF_A_QUERY = (
    *SHORT_LIVED,
    *(_ARCHIVED if _ARCHIVE.is_file() else ()),
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""Options for drivers and executors, of which tests start dozens.

Half the CPU of a start and a first query is loading and verification of Spark's classes. `make`
runs `tools/class_archive.py` for an archive of these classes. The Scala suites verify the project's
classes.
"""

CHECKPOINT_FILES = (
    "-Dspark.sql.streaming.checkpointFileManagerClass=org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Option that writes checkpoint files as Spark (4.1 and newer) writes them to an object store.

On a local disk Spark uses a class of Hadoop that starts `readlink` four times for each renamed
file: a quarter of the CPU of a short query. `tests/spark/test_checkpoints.py` leaves the choice to
Spark, and so do the Scala suites, `make test-long` and `make compatibility`.
"""

# Spark on JDK 17: the list of org.apache.spark.launcher.JavaModuleOptions.
_OPENED_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)


def java_command(module: str, spark_jars: Path | None, *, heap: str = "2g") -> list[str]:
    """Returns program, options and class path; the main class and its arguments follow.

    Args:
        module: A test-compiled folder of `jvm-adapter/`.
        spark_jars: Folder with the Spark jars to run on; `None` uses the module's own dependencies.
    """
    target = ROOT / "jvm-adapter" / module / "target"
    scratch = target / "test-tmp"
    scratch.mkdir(exist_ok=True)
    return [*java_options(scratch, heap=heap), "-cp", _class_path(module, target, spark_jars)]


def java_options(scratch: Path, *, heap: str = "2g") -> list[str]:
    """Returns program and options of a JVM that runs Spark in a test.

    Args:
        scratch: A folder for temporary files.
    """
    home = os.environ.get("JAVA_HOME")
    return [
        str(Path(home, "bin", "java")) if home else "java",
        *[f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED_PACKAGES],
        f"-Xmx{heap}",
        "-Xss4m",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "--enable-native-access=ALL-UNNAMED",
        f"-Djava.io.tmpdir={scratch}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        # The models lose tens of thousands of requests; the backend would log each of them.
        "-Dorg.slf4j.simpleLogger.log.org.redisstate.core.backend.RedisBackend=error",
        "-Dspark.testing=true",
        "-Dspark.ui.enabled=false",
        "-Dspark.driver.bindAddress=127.0.0.1",
        "-Dspark.driver.host=127.0.0.1",
    ]


def _class_path(module: str, target: Path, spark_jars: Path | None) -> str:
    """Returns the class path: test classes, the tested classes, and the dependencies of both.

    The Spark modules are tested through the jar that users get. So the core's own classes, and the
    Redis client that is shaded into that jar, must not be on the class path as well.
    """
    entries = [str(target / "test-classes")]
    dependencies = (target / "test-classpath.txt").read_text().split(os.pathsep)
    if module == "core":
        return os.pathsep.join([*entries, str(target / "classes"), *dependencies])
    minor = module.removeprefix("spark-")
    entries += map(str, (ROOT / "redis_state" / "jars").glob(f"redis-state-spark-{minor}_*.jar"))
    core = ROOT / "jvm-adapter" / "core" / "target"
    entries += [
        entry
        for entry in dependencies
        if not _is_within(entry, core) and not (spark_jars and _is_within(entry, spark_jars))
    ]
    if spark_jars:
        entries.append(f"{spark_jars}{os.sep}*")
    return os.pathsep.join(entries)


def _is_within(entry: str, folder: Path) -> bool:
    return os.path.realpath(entry).startswith(os.path.realpath(folder) + os.sep)
