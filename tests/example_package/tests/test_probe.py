import pytest

from pollwise.testing.contracts import ProbeContract


class DiskContract(ProbeContract):
    type = "disk"
    options = {"path": "."}
    failing = {"path": "no/such/folder"}
    wrong = [{}, {"path": ".", "low": "much"}]


@pytest.mark.parametrize("check", DiskContract.checks())
def test_contract(check):
    DiskContract().run(check)
