"""Recovery of a query whose driver is killed and started again, with the right result.

The script starts itself as the driver of a query and kills this driver with SIGKILL. Then
`redis-state doctor` prints what Redis can serve, and the driver is started again. Run it with
`python examples/recovery.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import redis_state


def drive(folder, url):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    builder = builder.config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
    with redis_state.configure(builder, url=url, ephemeral=True).getOrCreate() as spark:
        source = spark.readStream.schema("kind string").option("maxFilesPerTrigger", 1)
        counts = source.csv(f"{folder}/*.csv").groupBy("kind").count()
        writer = counts.writeStream.outputMode("complete").trigger(availableNow=True)
        result = Path(folder, "result.json")
        query = writer.foreachBatch(lambda df, _: result.write_text(json.dumps(dict(df.collect()))))
        query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
if len(sys.argv) > 1:
    sys.exit(drive(*sys.argv[1:]))
with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    for number in range(8):
        (folder / f"{number}.csv").write_text("odd\n" if number % 2 else "even\n")
    for log in ("commits/2", "no such log"):  # the second driver runs to its end
        driver = subprocess.Popen([sys.executable, __file__, folder, url], start_new_session=True)
        try:
            while driver.poll() is None and not (folder / "checkpoint" / log).exists():
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        print(f"a driver ended with status {driver.returncode}; the doctor says:", flush=True)
        doctor = ["doctor", "--checkpoint", f"{folder}/checkpoint", "--url", url]
        subprocess.run([sys.executable, "-m", "redis_state", *doctor], check=True)
    found = json.loads((folder / "result.json").read_text())
    print("every row counted once:", found == {"even": 4, "odd": 4})
