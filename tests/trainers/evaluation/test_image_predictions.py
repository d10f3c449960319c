import csv

import pytest

from trainers.evaluation.image_predictions import (
    ImagePrediction,
    OtherModel,
    check_same_images,
    read_image_predictions,
    write_image_predictions,
)

NAMES = ["cat, tabby", "犬", "bird"]
PREDICTIONS = {
    7: ImagePrediction(2, 1, 0.5, "bird/ä.jpg"),
    0: ImagePrediction(0, 0, 0.875, "cat/a, b.jpg"),
}


def test_a_table_for_people_that_is_read_back(tmp_path):
    path = tmp_path / "image_predictions.csv"
    write_image_predictions(path, PREDICTIONS, NAMES)
    with path.open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "position": "0",
        "image": "cat/a, b.jpg",
        "true class": "cat, tabby",
        "prediction": "cat, tabby",
        "probability": "0.875",
    }
    assert second["image"] == "bird/ä.jpg"
    assert (second["true class"], second["prediction"]) == ("bird", "犬")
    found = read_image_predictions(path, NAMES)
    assert found == PREDICTIONS
    assert [found[n].is_right for n in (0, 7)] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "position,true class,prediction,probability\n0,fox,fox,0.5\n",
        "position,true class,prediction,probability\n0,bird,bird\n",
    ],
)
def test_other_tables_are_refused(tmp_path, text):
    path = tmp_path / "image_predictions.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="table of predictions for the same"):
        read_image_predictions(path, NAMES)


def test_only_evaluations_of_the_same_images_are_compared():
    check_same_images(None, PREDICTIONS)
    check_same_images(OtherModel({}, {}), PREDICTIONS)
    check_same_images(OtherModel({}, dict(PREDICTIONS)), PREDICTIONS)
    with pytest.raises(ValueError, match="one of 1 images, and 2 now"):
        check_same_images(OtherModel({}, {0: PREDICTIONS[0]}), PREDICTIONS)
    unnamed = PREDICTIONS | {0: PREDICTIONS[0]._replace(name="")}
    check_same_images(OtherModel({}, unnamed), PREDICTIONS)  # An old table.
    check_same_images(OtherModel({}, PREDICTIONS), unnamed)
    replaced = PREDICTIONS | {0: PREDICTIONS[0]._replace(name="cat/new.jpg")}
    with pytest.raises(ValueError, match="'cat/new.jpg' where 'cat/a, b.jpg'"):
        check_same_images(OtherModel({}, replaced), PREDICTIONS)
