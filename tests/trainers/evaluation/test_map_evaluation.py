"""The files and the page of an evaluation with an answer for each pixel."""

import base64
import csv
import io
import re
import types

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS
from trainers.data.maps import MapRule
from trainers.evaluation import map_evaluation
from trainers.evaluation.map_evaluation import (
    MapResults,
    start_map_results,
)
from trainers.evaluation.map_scores import DepthTally, SegmentTally

NAMES = ["sky", "sea", "land"]
GREY = [128, 128, 128]


def write(folder, tally, images, outputs, maps):
    """Write the files of an evaluation in two batches; return its page."""
    results = MapResults(keras.Sequential(), tally)
    for start in (0, 2):
        part = slice(start, start + 2)
        names = [f"{n}.png" for n in range(len(maps))][part]
        places = np.arange(len(maps))[part]
        results.add(images[part], outputs[part], maps[part], places, names)
    about = {"dataset": "made", "split": "test", "model": "m", "preprocess": ""}
    report = {**about, "num_left_out": 0, **tally.report()}
    results.write(folder, report)
    return (folder / "evaluation.html").read_text()


def read_csv(path):
    with path.open() as file:
        return list(csv.reader(file))


def read_figures(page):
    """Return the name and the three pictures of each image, in their order."""
    for figure in re.findall(r'<figure class="triple">.*?</figure>', page):
        contents = re.findall(r'base64,(.*?)" alt="(\w+)"', figure)
        assert [what for _, what in contents] == ["image", "truth", "answer"]
        tiles = [
            np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
            for content, _ in contents
        ]
        yield re.search(r"<figcaption>(.*?)<br>", figure)[1], tiles, figure


def colours_of(texts):
    return np.array([[*bytes.fromhex(text[1:])] for text in texts])


@pytest.fixture
def images():
    """Return images of three colours, of pixels from 0 to 255."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 3))
    return pixels, np.float32(pixels / 127.5 - 1)


def test_classes(tmp_path, images, monkeypatch):
    monkeypatch.setattr(map_evaluation, "NUM_WORST", 2)
    monkeypatch.setattr(map_evaluation, "NUM_FIRST", 1)
    pixels, inputs = images
    maps = np.zeros((3, 2, 4), "float32")
    maps[:, 0] = 1
    maps[:, 1, 3] = np.nan
    answers = np.nan_to_num(maps, nan=2).astype(int)
    answers[1, 0, :3] = 2  # Of four. All of the image 0 is right.
    answers[2, 0, 0] = 0
    tally = SegmentTally(NAMES)
    page = write(tmp_path, tally, inputs, np.eye(3)[answers], maps)
    assert read_csv(tmp_path / "confusion.csv") == [
        ["true class", *NAMES],
        ["sky", "9", "0", "0"],
        ["sea", "1", "8", "3"],
        ["land", "0", "0", "0"],
    ]
    head, *rows = read_csv(tmp_path / "image_predictions.csv")
    place = head.index("pixel_accuracy")
    assert [(*row[:2], float(row[place])) for row in rows] == [
        ("0", "0.png", 1),
        ("1", "1.png", pytest.approx(4 / 7, abs=1e-6)),
        ("2", "2.png", pytest.approx(6 / 7, abs=1e-6)),
    ]
    # The class, what it is taken for, and the share of the class.
    wrong = re.findall(r"sea</t[hd]><td>(\w+)</td><td>([\d.]+%)</td>", page)
    assert wrong == [("land", "25.0%"), ("sky", "8.3%")]
    shown = list(read_figures(page))
    assert [name for name, *_ in shown] == ["1.png", "2.png", "0.png"]
    table = colours_of(CLASS_COLOURS)
    for name, (image, truth, answer), figure in shown:
        index = int(name[0])
        np.testing.assert_array_equal(image, pixels[index])
        is_known = np.isfinite(maps[index])[..., None]
        right = table[np.nan_to_num(maps[index]).astype(int)]
        for tile, colours in (
            (truth, np.where(is_known, right, GREY)),
            (answer, table[answers[index]]),
        ):
            mixture = 0.45 * pixels[index] + 0.55 * colours
            np.testing.assert_allclose(tile, mixture, atol=1)
        legend = re.findall(r"background:(#\w+)\"></i>(\w+)<", figure)
        assert legend == [(CLASS_COLOURS[n], NAMES[n]) for n in range(3)]


def test_depths(tmp_path, images):
    """Those of an answer have the colours that the truth has."""
    pixels, inputs = images
    maps = np.linspace(1, 5, 24, dtype="float32").reshape(3, 2, 4)
    maps[:, 0, 1] = np.nan
    outputs = np.nan_to_num(maps, nan=3.0)
    outputs[1, 0, 0], outputs[2] = 40, outputs[2] + 1
    tally = DepthTally(False, 50.0)
    page = write(tmp_path, tally, inputs, outputs[..., None], maps)
    assert not (tmp_path / "confusion.csv").exists()
    shown = list(read_figures(page))
    assert [name[0] for name, *_ in shown] == [*"120", *"012"]
    nearest, farthest = colours_of(NUMBER_COLOURS)[[-1, 0]]
    for name, (image, truth, answer), figure in shown:
        np.testing.assert_array_equal(image, pixels[int(name[0])])
        np.testing.assert_array_equal(
            truth[[0, 1], [0, 3]], [nearest, farthest]
        )
        np.testing.assert_array_equal(truth[0, 1], GREY)
        if name == "1.png":
            np.testing.assert_array_equal(answer[0, 0], farthest)
            np.testing.assert_array_equal(answer[1], truth[1])
        assert 'class="class"' not in figure


@pytest.mark.parametrize("largest", [None, 7.0])
@pytest.mark.parametrize("larger", ["far", "near"])
def test_outputs_without_metres_are_fitted(larger, largest):
    model = types.SimpleNamespace(
        output_shape=(None, 4, 4, 1), larger_depths=larger
    )
    dataset = types.SimpleNamespace(
        maps=MapRule("depth", max_depth=largest), class_names=[], name="made"
    )
    tally = start_map_results(model, dataset).tally
    assert tally == DepthTally(larger == "near", largest or 100.0)


def test_a_large_split_is_not_kept_in_memory():
    results = MapResults(keras.Sequential(), SegmentTally(NAMES))
    classes = np.zeros((40, 4, 4), "float32")
    outputs = np.eye(3, dtype="float32")[classes.astype(int)]
    for start in range(0, 40, 8):
        part = slice(start, start + 8)
        places, names = np.arange(40)[part], 8 * [""]
        images = np.zeros((8, 4, 4, 3), "float32")
        results.add(images, outputs[part], classes[part], places, names)
    for shown in (*results.worst, *results.first):
        for array in (shown.image, shown.truth, shown.answer):
            assert array.base is None
