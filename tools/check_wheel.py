"""Checks that a wheel contains all packaged files: jars, scripts, options, pages, the demo."""

from __future__ import annotations

import fnmatch
import sys
import zipfile

REQUIRED = (
    "redis_state/jars/redis-state-spark-4.0_2.13-*.jar",
    "redis_state/jars/redis-state-spark-4.1_2.13-*.jar",
    "redis_state/jars/redis-state-spark-4.2_2.13-*.jar",
    "redis_state/jars/redis-state-spark-4.3_2.13-*.jar",
    "pyspark_redis_state/__init__.py",
    "redis_state/backend/scripts/publish.lua",
    "redis_state/dashboard/static/style.css",
    "redis_state/dashboard/templates/queries.html",
    "redis_state/demo/job.py",
    "redis_state/options.json",
    "redis_state/py.typed",
    "*.dist-info/licenses/LICENSE",
    "*.dist-info/licenses/NOTICE",
)


def main(path: str) -> int:
    names = zipfile.ZipFile(path).namelist()
    missing = [pattern for pattern in REQUIRED if not fnmatch.filter(names, pattern)]
    for pattern in missing:
        print(f"error: {path} has no {pattern}")
    if not missing:
        print(f"{path}: {len(names)} files, all jars inside")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
