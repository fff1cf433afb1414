"""The contracts of strategies, probes, publishers and sources, as checks for any implementation.

Say in a subclass what is to be checked, and run its checks, each as a test:

    class PatientContract(StrategyContract):
        def strategies(self):
            return [Patient(), Patient("1h")]

    @pytest.mark.parametrize("check", PatientContract.checks())
    def test_contract(check):
        PatientContract().run(check)

Without pytest: `report = PatientContract().exercise()`, `print(report)`, and `assert report.ok`.
That of queues is `pollwise.testing.conformance`.
"""

from pollwise.testing.contracts.base import Contract
from pollwise.testing.contracts.probe import ProbeContract
from pollwise.testing.contracts.publisher import Delivered, PublisherContract
from pollwise.testing.contracts.source import SourceContract
from pollwise.testing.contracts.strategy import StrategyContract

__all__ = [
    "Contract",
    "Delivered",
    "ProbeContract",
    "PublisherContract",
    "SourceContract",
    "StrategyContract",
]
