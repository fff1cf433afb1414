from contextlib import asynccontextmanager

import pytest
from pollwise_example.source import LogLines

from pollwise.sources import MemoryCursors
from pollwise.testing.contracts import SourceContract


class LogContract(SourceContract):
    def __init__(self, folder):
        self.path = folder / "app.log"
        self.path.touch()
        self.cursors = MemoryCursors()

    async def source(self):
        return self.keep(LogLines(self.path, cursor=self.cursors, limit=self.batch))

    async def add(self, keys):
        with self.path.open("a") as file:
            file.writelines(f"{key}\n" for key in keys)

    def key(self, item):
        return item

    @asynccontextmanager
    async def broken(self):
        away = self.path.rename(self.path.with_name("away.log"))
        yield
        away.rename(self.path)


@pytest.mark.parametrize("check", LogContract.checks())
def test_contract(check, tmp_path):
    LogContract(tmp_path).run(check)
