"""A session whose UI, event log and INFO log are on: `python canary_job.py FOLDER URL PASSWORD`.

It runs three queries on a server that wants the password: with the password as an option, with a
file, and with a wrong password. Then it writes each page of the UI to FOLDER/pages, and what the
wrong password raised to FOLDER/errors.
"""

from __future__ import annotations

import os
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import redis_state

PREFIX = "spark.sql.streaming.stateStore.redis."
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
logger.ours.name = org.redisstate
logger.ours.level = trace
logger.edge.name = org.apache.spark.sql.redisstate
logger.edge.level = trace
logger.confs.name = org.apache.spark.sql.execution.streaming
logger.confs.level = debug
"""


def session(folder: Path, url: str, password: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (folder / "events").mkdir()
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state canary")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.logConf", "true")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    return redis_state.configure(builder, url=url, password=password, deadline="2s").getOrCreate()


def run(spark: SparkSession, folder: Path, name: str) -> str:
    """Processes what there is and prints the plan; gives back the run's id."""

    def keep(batch: DataFrame, _batch_id: int) -> None:
        batch.collect()

    reader = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1)
    counts = reader.json(str(folder / "input")).groupBy("k").count()
    query = (
        counts.writeStream.outputMode("update")
        .queryName(name)
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.explain(extended=True)
    return str(query.runId)


def pages(spark: SparkSession, run_ids: list[str]) -> dict[str, str]:
    ui = spark.sparkContext.uiWebUrl
    assert ui is not None
    rest = f"api/v1/applications/{spark.sparkContext.applicationId}"
    paths = [
        "jobs/",
        "stages/",
        "storage/",
        "environment/",
        "executors/",
        "SQL/",
        "SQL/execution/?id=0",
        "StreamingQuery/",
        *(f"StreamingQuery/statistics/?id={run_id}" for run_id in run_ids),
        f"{rest}/environment",
        f"{rest}/jobs",
        f"{rest}/stages?details=true",
        f"{rest}/sql?details=true&planDescription=true",
        f"{rest}/allexecutors",
    ]
    found = {}
    for path in paths:
        with urllib.request.urlopen(f"{ui}/{path}", timeout=30) as answer:
            found[path] = answer.read().decode()
    return found


def main(folder: Path, url: str, password: str) -> None:
    (folder / "input").mkdir()
    for i in range(2):
        (folder / "input" / f"{i}.json").write_text('{"k": "a"}\n{"k": "b"}\n')
    spark = session(folder, url, password)
    run_ids = [run(spark, folder, "with_password")]

    file = folder / "secret"
    file.write_text(password + "\n")
    spark.conf.unset(PREFIX + "password")
    spark.conf.set(PREFIX + "passwordFile", str(file))
    run_ids.append(run(spark, folder, "with_file"))
    file.unlink()

    spark.conf.unset(PREFIX + "passwordFile")
    spark.conf.set(PREFIX + "password", password + "-wrong")
    try:
        run(spark, folder, "with_wrong_password")
    except StreamingQueryException as error:
        cause: Any = error
        java = cause._origin.toString() if cause._origin is not None else ""
        text = "\n".join((str(error), error.getMessage() or "", java, traceback.format_exc()))
        (folder / "errors").write_text(text)

    (folder / "pages").mkdir()
    for i, (path, text) in enumerate(pages(spark, run_ids).items()):
        (folder / "pages" / f"{i:02d}").write_text(f"{path}\n{text}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
