import numpy as np
import pytest
from PIL import Image

from trainers.data.datasets import open_dataset
from trainers.help.reading import read_help
from trainers.help.recipe_values import count_images, find_values
from trainers.recipes.flags import ChosenRecipe, flag_fields
from trainers.recipes.photo_rules import FITTED_FIELDS, RULES

RECIPE_ROWS = read_help()["recipes"]
DEFAULTS = {field.name: field.default for field in flag_fields()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder with 20 and 5 photos of two classes, and a table."""
    folder = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    rows = []
    for name, count in (("cat", 20), ("dog", 5)):
        (folder / "all" / name).mkdir(parents=True)
        for index in range(count):
            pixels = draws.integers(0, 256, (9, 9, 3), "uint8")
            path = folder / "all" / name / f"{index}.png"
            Image.fromarray(pixels).save(path)
            rows.append(f"{path},{name},{'test' if index % 5 else 'train'}")
    table = "\n".join(["path,label,split", *rows])
    (folder / "labels.csv").write_text(table)
    return folder


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "given",
    [{}, {"init_from": "B/16-augreg", "batch_size": 4}, {"total_steps": 40}],
)
def test_a_folder_gives_the_values_of_its_run(photos, name, given):
    dataset = f"folder:{photos}/all"
    given = {"dataset": dataset, **given}
    found = find_values(RECIPE_ROWS, DEFAULTS, {"recipe": name, **given})
    number = open_dataset(dataset).num_examples("train")
    want = ChosenRecipe(name, given).fit(number, None)
    assert f" {number} training images" in found.title
    for field in flag_fields():
        if field.name not in found.notes:
            assert found.values[field.name] == getattr(want, field.name)
    assert not found.notes.keys() & set(FITTED_FIELDS)


def test_a_table_is_counted_like_its_run(photos):
    dataset = f"csv:{photos}/labels.csv"
    assert count_images(dataset, None) == 5
    assert count_images(dataset, "test") == 20
    found = find_values(RECIPE_ROWS, DEFAULTS, {"dataset": dataset})
    assert found.recipe == "photos"


def test_without_images_the_values_follow_from_them():
    found = find_values(
        RECIPE_ROWS, DEFAULTS, {"recipe": "photos", "epochs": 3.0}
    )
    for name in FITTED_FIELDS:
        if name != "epochs":
            assert found.notes[name] == "follows from the number of images"
    assert "epochs" not in found.notes
    assert found.values["epochs"] == 3.0


@pytest.mark.parametrize(
    "dataset, split, fault",
    [
        ("folder:nowhere", None, "PATH/CLASS/IMAGE.jpg"),
        ("csv:nowhere", None, "a column `path`"),
        ("cifar10", None, "folder:PATH or csv:PATH or images:PATH"),
    ],
)
def test_images_that_are_not_there_are_no_error(dataset, split, fault):
    given = {"recipe": "photos", "dataset": dataset}
    found = find_values(RECIPE_ROWS, DEFAULTS, given)
    assert fault in found.title
    assert "batch_size" in found.notes


def test_slices_are_not_counted(photos):
    given = {"dataset": f"folder:{photos}/all", "train_split": "train[:50%]"}
    found = find_values(RECIPE_ROWS, DEFAULTS, given)
    assert "`train_split` must be the name of a split" in found.title
    assert "batch_size" in found.notes


def test_epochs_replace_the_steps_of_a_recipe():
    given = {"recipe": "digits_exact", "epochs": 2.0}
    values = find_values(RECIPE_ROWS, DEFAULTS, given).values
    assert values["total_steps"] is None
