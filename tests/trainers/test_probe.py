"""The flags of the command."""

import pytest

from trainers.probe import parse_numbers


def test_numbers_of_a_flag():
    assert parse_numbers("shots", ["1", " 5"]) == (1, 5)
    with pytest.raises(ValueError, match="`shots` must be whole.*shots=1,a"):
        parse_numbers("shots", ["1", "a"])
