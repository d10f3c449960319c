import pytest

from keras_vit.tables import guess, pick

TABLE = {"one": 1, "none": None, "zero": 0}


@pytest.mark.parametrize("name", TABLE)
def test_returns_the_row_even_if_it_is_false(name):
    assert pick(TABLE, name, "number") is TABLE[name]


# The last two cannot be the key of a dict.
@pytest.mark.parametrize("name", ["two", "ONE", "", None, 1, ["one"], {}])
def test_an_unknown_name_is_an_error_that_lists_the_known(name):
    with pytest.raises(ValueError) as error:
        pick(TABLE, name, "number")
    assert str(error.value) == (
        "`number` must be one of 'one', 'none', 'zero'. "
        f"Received: number={name!r}"
    )
    # The KeyError says nothing that the message does not.
    assert error.value.__suppress_context__


def test_an_error_names_what_was_probably_meant():
    with pytest.raises(ValueError, match=r"='noen'\. Did you mean 'none'\?$"):
        pick(TABLE, "noen", "number")


def test_a_guess():
    known = ["relu", "gelu", "gelu_tanh", 3]
    assert guess("gleu", known) == ". Did you mean 'gelu'?"
    assert guess("elu", known, 2) == ". Did you mean 'relu' or 'gelu'?"
    for name in ("softmax", "", 3, None, ["gelu"]):
        assert guess(name, known) == ""
