"""Workers that are killed and replaced, while a test watches their jobs."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.forked import Forked


class Crew:
    """Workers; from time to time, one is killed and replaced.

    child: the script of each worker. Its arguments are the URL, a unique name, `words`, and a
        random seed.
    """

    def __init__(
        self, child: Path, count: int, rng: random.Random, url: str, *words: object
    ) -> None:
        self._child, self._rng = child, rng
        self._url, self._words = url, words
        self._started = 0
        self._workers = [self._start() for _ in range(count)]

    def _start(self) -> Forked:
        self._started += 1
        name = f"worker-{self._started}"
        words = [self._child, self._url, name, *self._words, self._rng.random()]
        return Forked(words, out=False, err=False)

    def kill_one(self) -> None:
        at = self._rng.randrange(len(self._workers))
        self._workers[at].kill()
        self._workers[at].wait()
        self._workers[at] = self._start()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
