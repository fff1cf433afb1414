import pytest
from pollwise_example.strategy import Patient

from pollwise.testing.contracts import StrategyContract


class PatientContract(StrategyContract):
    def strategies(self):
        return [Patient(), Patient("1s", "1s"), Patient(patience=0)]


@pytest.mark.parametrize("check", PatientContract.checks())
def test_contract(check):
    PatientContract().run(check)
