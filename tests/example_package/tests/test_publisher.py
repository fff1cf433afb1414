import json

import pytest
from pollwise_example.publisher import JournalPublisher

from pollwise.testing.contracts import Delivered, PublisherContract


class JournalContract(PublisherContract):
    def __init__(self, folder):
        self.path = folder / "journal.jsonl"

    def publisher(self):
        return JournalPublisher(str(self.path))

    def unreachable(self):
        return JournalPublisher(str(self.path.parent / "no folder" / "journal.jsonl"))

    async def arrived(self):
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        found = [json.loads(line) for line in lines]
        return [Delivered(each["id"], each["body"].encode()) for each in found]


@pytest.mark.parametrize("check", JournalContract.checks())
def test_contract(check, tmp_path):
    JournalContract(tmp_path).run(check)
