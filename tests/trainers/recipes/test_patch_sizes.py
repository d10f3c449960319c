"""The list of patch sizes of a recipe."""

import pytest

from trainers.recipes.recipe import Recipe


@pytest.mark.parametrize(
    ("text", "sizes"), [("", ()), ("4", (4,)), ("8, 2,4", (8, 2, 4))]
)
def test_sizes(text, sizes):
    assert Recipe(patch_sizes=text).patch_size_list == sizes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patch_sizes": "4,x"}, "must be numbers of pixels.*'4,x'"),
        ({"patch_sizes": "0"}, "must be numbers of pixels.*'0'"),
        ({"patch_sizes": "-2"}, "must be numbers of pixels.*'-2'"),
        (
            {"patch_sizes": "4", "pooling": "distilled"},
            "a distillation token do not go together",
        ),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)
