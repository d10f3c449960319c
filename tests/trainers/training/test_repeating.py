"""The flags of the command of a run."""

import pytest

from trainers.recipes.flags import repeat_flags
from trainers.recipes.recipes import RECIPES
from trainers.train import choose_recipe


def test_a_recipe_as_it_is_needs_no_other_flags():
    for name, recipe in RECIPES.items():
        assert repeat_flags(recipe) == [f"--recipe={name}"]


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe=cifar10", "--seed=3", "--learning_rate=1e-4", "--use_xla"],
        ["--recipe=cifar10_b16_500steps", "--epochs=2.5"],
        ["--recipe=vtab_l16", "--dataset=vtab:clevr_count"],
        ["--recipe=digits", "--augment=flip_lr|mixup(0.2)", "--init_from=a b"],
        ["--recipe=mae_b16", "--nonormalize_pixels"],
    ],
)
def test_the_flags_give_the_same_recipe(parse, words):
    recipe = parse(*words).recipe
    again = parse(*repeat_flags(recipe))
    assert again.recipe == recipe


def test_what_follows_from_the_photos_is_kept_by_the_run(parse):
    words = ["--recipe=photos_lora", "--dataset=folder:my photos"]
    recipe = parse(*words).fit(77, None)
    assert recipe.batch_size != RECIPES["photos_lora"].batch_size
    assert repeat_flags(recipe) == words
    assert parse(*words).fit(120, recipe) == recipe


def test_a_run_alone_is_told_the_command_that_goes_on(trained, monkeypatch):
    values = {"run_dir": str(trained), "recipe": None}
    monkeypatch.setattr("trainers.train.FLAGS", type("F", (), values))

    def refuse():
        raise ValueError("`recipe` must be given, unless")

    monkeypatch.setattr("trainers.train.recipe_flags.recipe_from_flags", refuse)
    fault = f"go on with a run.*keras-vit train --run_dir={trained} --recipe="
    with pytest.raises(ValueError, match=fault):
        choose_recipe()
    values = {"run_dir": str(trained / "absent"), "recipe": None}
    monkeypatch.setattr("trainers.train.FLAGS", type("F", (), values))
    with pytest.raises(ValueError, match="unless$"):
        choose_recipe()
