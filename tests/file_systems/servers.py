"""A real S3 server and a real HDFS on loopback, whose programs Maven brings."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError

from tests.support.redis_server import free_port
from tests.support.waiting import await_end, wait_until
from tools.jvm import SHORT_LIVED

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "jvm-adapter" / "file-systems" / "pom.xml"
KEY, SECRET = "local-identity", "local-credential"
BUCKET = "checkpoints"
_MAVEN_S = 280
_STOP_S = 20
_ADMIN, _ADMIN_S = "org.apache.hadoop.hdfs.tools.DFSAdmin", 120
# Without it Logback writes every line of the server's debugging: megabytes in a minute.
_QUIET = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger -- %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def class_path(profile: str) -> str:
    """Returns the class path of a profile of the pom; the first call may download its files.

    Args:
        profile: `s3`, `hdfs`, `s3a` or `cloud`.
    """
    file = ROOT / "jvm-adapter" / "target" / f"file-systems-{profile}.txt"
    if not file.exists() or file.stat().st_mtime < POM.stat().st_mtime:
        maven = subprocess.run(
            [ROOT / "tools" / "find_maven.sh"], capture_output=True, text=True, check=True
        )
        words = [maven.stdout.strip(), "-B", "-ntp", "-q", "-Dstyle.color=never", "-f", str(POM)]
        subprocess.run(
            [*words, "-P", profile, f"-DclassPathFile={file}", "initialize"],
            check=True,
            timeout=_MAVEN_S,
        )
    return file.read_text()


@dataclass(frozen=True)
class Store:
    """A file system under test.

    Attributes:
        url: Of a folder in it, as Spark writes it.
        options: What the tools are given for it.
        conf: Settings of Hadoop by which Spark reaches it.
        admin: The same file system, by its own library.
        root: The folder, as that library has it.
        pid: Process of the server; 0 for a local folder.
    """

    url: str
    options: dict[str, Any]
    conf: dict[str, str]
    admin: Any
    root: str
    pid: int = 0


@contextmanager
def _java(
    profile: str, main: str, *words: str, log: Path, options: tuple[str, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    command = ["java", *SHORT_LIVED, *options, "-cp", class_path(profile), main, *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        await_end(process, _STOP_S)


def _ready(process: subprocess.Popen[bytes], log: Path, ask: Callable[[], object]) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
        try:
            ask()
        # A name node that starts is an error of the server.
        except (OSError, RuntimeError, BotoCoreError):
            return False
        return True

    wait_until(answers, f"the server whose log is {log}")


@contextmanager
def s3(folder: Path, *, heap: str = "512m") -> Iterator[Store]:
    """S3Proxy over its store in memory.

    Args:
        heap: What the server and all objects may take, as the JVM's option has it.
    """
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    settings = {
        "s3proxy.endpoint": endpoint,
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "jclouds.provider": "transient-nio2",
        "jclouds.identity": "",
        "jclouds.credential": "",
    }
    properties = folder / "s3proxy.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    conf = {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.attempts.maximum": "2",
    }
    log = folder / "s3proxy.log"
    quiet = folder / "logback.xml"
    quiet.write_text(_QUIET)
    with _java(
        "s3",
        "org.gaul.s3proxy.Main",
        "--properties",
        str(properties),
        log=log,
        options=(f"-Xmx{heap}", f"-Dlogback.configurationFile={quiet}"),
    ) as process:
        admin = fsspec.filesystem(
            "s3", **options, use_listings_cache=False, skip_instance_cache=True
        )
        _ready(process, log, lambda: admin.call_s3("create_bucket", Bucket=BUCKET))
        yield Store(f"s3a://{BUCKET}", options, conf, admin, BUCKET, process.pid)


@contextmanager
def hdfs(folder: Path) -> Iterator[Store]:
    """Hadoop's mini cluster: a name node and a data node in one JVM."""
    http, rpc = free_port(), free_port()
    log = folder / "hdfs.log"
    with _java(
        "hdfs",
        "org.apache.hadoop.test.MiniDFSClusterManager",
        *("-format", "-datanodes", "1", "-httpport", str(http), "-nnport", str(rpc)),
        log=log,
        options=("-Xmx768m", f"-Dtest.build.data={folder}", f"-Dhadoop.log.dir={folder}"),
    ) as process:
        options = {"port": http}
        admin = fsspec.filesystem(
            "webhdfs", host="127.0.0.1", port=http, user=getpass.getuser(), skip_instance_cache=True
        )
        _ready(process, log, lambda: admin.pipe_file("/ready", b"now"))
        conf = {"dfs.replication": "1", "dfs.client.use.datanode.hostname": "false"}
        yield Store(f"hdfs://127.0.0.1:{rpc}", options, conf, admin, "", process.pid)


def set_safe_mode(store: Store, *, is_on: bool) -> None:
    """Switches the safe mode of a name node, which refuses changes."""
    words = ["-fs", store.url, "-safemode", "enter" if is_on else "leave"]
    command = ["java", *SHORT_LIVED, "-cp", class_path("hdfs"), _ADMIN, *words]
    environment = {**os.environ, "HADOOP_USER_NAME": getpass.getuser()}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_ADMIN_S)
