"""The flags of the command."""

import pytest

from trainers.probe import parse_numbers, print_probes


def test_numbers_of_a_flag():
    assert parse_numbers("shots", ["1", " 5"]) == (1, 5)
    with pytest.raises(ValueError, match="`shots` must be whole.*shots=1,a"):
        parse_numbers("shots", ["1", "a"])


@pytest.mark.parametrize("smallest, is_noted", [(2, True), (5, False)])
def test_unequal_classes_are_noted(smallest, is_noted, capsys):
    row = {"mean": 0.5, "deviation": None}
    report = {"model": "m", "dataset": "d", "num_train": 7, "num_test": 5}
    report |= {"num_features": 8, "smallest_class": smallest}
    print_probes({**report, "probes": {"few_shot/5": row, "knn/20": row}})
    printed = capsys.readouterr().out
    assert "few_shot/5       0.5000\n" in printed
    assert ("the smallest class has 2 images" in printed) is is_noted
