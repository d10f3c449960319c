import csv
import io

import numpy as np
import pytest
from PIL import Image

from trainers.evaluation.image_predictions import (
    Examples,
    ImagePrediction,
    OtherModel,
    TellingImages,
    check_same_images,
    make_pictures,
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
    truth = 1 - PREDICTIONS[0].truth
    changed = PREDICTIONS | {0: PREDICTIONS[0]._replace(truth=truth)}
    with pytest.raises(ValueError, match="same labels; .*'cat/a, b.jpg'"):
        check_same_images(OtherModel({}, changed), PREDICTIONS)
    check_same_images(OtherModel({}, changed), PREDICTIONS, False)


def collect(probabilities, truths, batch_size):
    found = TellingImages()
    images = np.arange(len(truths))[:, None, None, None]
    names = [f"{i}.png" for i in range(len(truths))]
    for start in range(0, len(truths), batch_size):
        part = slice(start, start + batch_size)
        positions = np.arange(len(truths))[part]
        found.add(
            positions,
            images[part].copy(),
            np.log(probabilities[part]),
            probabilities[part],
            truths[part],
            names[part],
        )
    return found


def made(count=200, num_classes=4):
    draws = np.random.default_rng(0)
    probabilities = draws.dirichlet(np.ones(num_classes), count)
    labels = draws.integers(0, num_classes, count)
    return probabilities, np.eye(num_classes, dtype=bool)[labels]


def test_the_worst_and_the_doubtful_as_by_sorting_everything():
    probabilities, truths = made()
    predictions, labels = probabilities.argmax(-1), truths.argmax(-1)
    highest = np.sort(probabilities, -1)
    margins = highest[:, -1] - highest[:, -2]
    wrong = np.flatnonzero(predictions != labels)
    worst = wrong[np.argsort(-highest[wrong, -1])][:24]
    for batch_size in (7, 200):
        found = collect(probabilities, truths, batch_size)
        assert [row.position for row in found.mistakes] == worst.tolist()
        doubtful = np.argsort(margins)[:24].tolist()
        assert [row.position for row in found.doubtful] == doubtful
        for row in found.all:
            assert row.truth == labels[row.position]
            assert row.prediction == predictions[row.position]
            assert row.image.item() == row.position
            name = found.predictions[row.position].name
            assert name == f"{row.position}.png"
            np.testing.assert_allclose(row.margin, margins[row.position])


def test_only_the_kept_images_are_in_memory():
    """A view of an image would keep its batch."""
    probabilities, truths = made()
    found, drawn = collect(probabilities, truths, 10), Examples([])
    for start in range(0, 200, 10):
        part = slice(start, start + 10)
        images = np.zeros((10, 1, 1, 1))
        hits = np.zeros(10, bool)
        drawn.add(images, probabilities[part], truths[part], hits)
    kept = [row.image for rows in found._lists for row in rows]
    kept += [array for row in drawn.rows for array in row[:2]]
    assert {array.base is None for array in kept} == {True}
    assert len({id(row.image) for row in found.all}) == len(found.all)


def test_pictures_show_the_image_and_where_the_model_looked(run, digits):
    model = run.load_model()
    images = np.stack(
        [image.numpy() for image, _ in digits.examples("test").take(3)]
    )
    scaled = images.astype("float32") / 127.5 - 1
    found = TellingImages()
    names = ["a.png", "b.png", "c.png"]
    found.add(
        np.arange(3),
        scaled,
        np.zeros((3, 10)),
        np.full((3, 10), 0.1),
        np.eye(10, dtype=bool)[:3],
        names,
    )
    assert make_pictures(TellingImages(), None, "vit") == {}
    without = make_pictures(found, object(), "vit")  # Without attention.
    assert {shown.look for shown in without.values()} == {b""}
    pictures = make_pictures(found, model, "vit")
    assert sorted(pictures) == [0, 1, 2]
    for position, shown in pictures.items():
        assert shown.name == names[position]
        pixels = np.asarray(Image.open(io.BytesIO(shown.image)))
        assert pixels.shape == (112, 112)
        np.testing.assert_array_equal(
            pixels[::14, ::14], images[position, ..., 0]
        )
        look = np.asarray(Image.open(io.BytesIO(shown.look)))
        assert (look <= pixels).all()
        assert (look < pixels).any()
