"""Samples the memory of Redis, of one key prefix or of all, by the server's own count."""

from __future__ import annotations

import threading

import redis

EVERY_S = 0.1

SCRIPT = """
local used = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = string.match(key, '}:(.)')
  if kind and string.find('dsnm', kind, 1, true) then
    used = used + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) or 0)
  end
end
return used
"""


class MemorySampler:
    """Samples blocks and manifests every 100 ms while it is entered.

    One script takes a sample, so no commit falls between two of its keys: a segment that leaves and
    the one that comes in its place are never both counted. Registry and lists of files are left
    out: no bound is about them.

    Args:
        prefix: The option `keyPrefix` of the queries; ``None`` for all memory of the server.

    Attributes:
        peak: Most bytes of a sample.
    """

    def __init__(self, url: str, prefix: str | None) -> None:
        self._url, self._prefix = url, prefix
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = self.samples = 0

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            sample = client.register_script(SCRIPT)
            while not self._stopped.wait(EVERY_S):
                if self._prefix is None:
                    used = int(client.info("memory")["used_memory"])
                else:
                    used = int(sample(args=[f"{{{self._prefix}:rs:*"]))
                self.peak, self.samples = max(self.peak, used), self.samples + 1
