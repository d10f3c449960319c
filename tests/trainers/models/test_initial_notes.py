import dataclasses
import json
import shutil

import pytest

from keras_vit import VisionTransformer
from tests.tiny import tiny_config
from trainers.models.factory import build_model
from trainers.models.initial_model import (
    explain_ignored_flags,
    explain_other_classes,
    explain_other_size,
)


def test_a_head_for_other_classes_is_replaced(run, digits):
    """Also if they are as many; those of a run lie in its folder."""
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    names = digits.class_names
    assert explain_other_classes(recipe, names) is None
    file = run.folder / "recipe.json"
    content = json.loads(file.read_text())
    theirs = {**content, "class_names": [*names[1:], names[0]]}
    file.write_text(json.dumps(theirs))
    folder = dataclasses.replace(recipe, init_from=str(run.folder))
    assert explain_other_classes(folder, names)
    reason = explain_other_classes(recipe, names)
    assert "other classes (1, 2, 3, 4, 5, ...): a new one" in reason
    head = build_model(recipe, digits).get_layer("predictions")
    assert not any(weight.any() for weight in head.get_weights())
    # Nothing is said where there is nothing to say.
    reset = dataclasses.replace(recipe, init_head="reset")
    assert explain_other_classes(reset, names) is None
    assert explain_other_classes(recipe, names[:3]) is None
    for wrong in ([["x"], *names], names[:3]):
        file.write_text(json.dumps({**content, "class_names": wrong}))
        with pytest.raises(ValueError, match=f"{file}: `class_names` must be"):
            build_model(recipe, digits)
    # Any other file in the folder is not the model of the run.
    other = shutil.copy(run.model_path, run.folder / "other.keras")
    build_model(dataclasses.replace(recipe, init_from=str(other)), digits)
    file.write_text(json.dumps(content))


def test_images_of_another_size_than_before_are_noted(run, tmp_path):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    assert explain_other_size(recipe) is None
    larger = dataclasses.replace(recipe, image_size=16)
    assert "--image_size=8" in explain_other_size(larger)
    shutil.copy(run.model_path, tmp_path / "model.keras")
    for beside in (None, "no JSON", "[1]", '{"recipe": 1}'):
        if beside:
            (tmp_path / "recipe.json").write_text(beside)
        alone = dataclasses.replace(larger, init_from=f"{tmp_path}/model.keras")
        assert explain_other_size(alone) is None
    assert explain_other_size(dataclasses.replace(larger, init_from="")) is None


@pytest.mark.parametrize(
    "given, named",
    [
        ({"depth": 3, "patch_size": 8}, "--depth=3 (it is 2)"),
        ({"model": "B/16"}, "--model=B/16 (its sizes are others)"),
        ({"model": "R50x1", "num_heads": 3, "pooling": "avg"}, None),
        # All sizes of the variant are replaced by other flags.
        (
            {
                **{"model": "mu/16", "width": 24, "depth": 2, "mlp_dim": 48},
                **{"num_heads": 3, "patch_size": 8},
            },
            None,
        ),
    ],
)
def test_flags_that_do_not_change_the_initial_model_are_named(given, named):
    model = VisionTransformer(tiny_config())
    found = explain_ignored_flags(given, "a.npz", model)
    assert named in found if named else found is None
    assert explain_ignored_flags(given, "", model) is None
