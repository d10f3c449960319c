"""python -m trainers.inspect: the model of a run, on its test images."""

import dataclasses

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.analysis import gallery
from tests.tiny import randomize, tiny_config
from tests.trainers.made import write_photos
from tests.weights.cases import path_of
from trainers import inspect
from trainers.evaluation.predictions import make_load_image
from trainers.inspect import first_test_images, inspect_run, open_run
from trainers.recipes.recipes import RECIPES
from trainers.training.run_folder import RunFolder

NAMES = [str(digit) for digit in range(10)]


def make_run(folder, model=None, **changes):
    """Make the folder of a finished run on digits, without training."""
    config = tiny_config(image_size=8, patch_size=2, channels=1, num_classes=10)
    model = model or randomize(VisionTransformer(config), 0)
    run = RunFolder(folder)
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    run.save_recipe(recipe, NAMES)
    run.save_model(model)
    return str(folder)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def looks(monkeypatch):
    """Return the arguments of each `write_gallery`; nothing is written."""
    calls = []

    def note(subjects, images, out_dir, suffix):
        calls.append((subjects, images, str(out_dir), suffix))
        return []

    monkeypatch.setattr(inspect, "write_gallery", note)
    return calls


def test_a_run_brings_its_images_and_its_folder(run_dir, tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    (folder / "positions").mkdir()
    for step in (0, 10):
        similarity = np.eye(16, dtype="float16").reshape(4, 4, 4, 4)
        np.save(folder / "positions" / f"step-{step:08d}.npy", similarity)
    paths = inspect_run(str(folder), num_images=1)
    assert {path.name for path in paths} == {
        "report.html",
        *(
            f"{name}.png"
            for name in (
                "reading heads_1 distances norms positions filters".split()
            )
        ),
    }
    assert all(path.parent == folder / "inspection" for path in paths)
    page = (folder / "inspection/report.html").read_text(encoding="utf-8")
    assert "test image 1: " in page


def test_what_the_run_says_is_told(tmp_path, looks):
    operations = "resize_small(12)|central_crop(8)|value_range(0, 1)"
    folder = make_run(
        tmp_path / "run",
        loss="sigmoid",
        augment=operations,
        eval_preprocess=operations,
    )
    inspect_run(folder, suffix=".svg", out_dir=tmp_path / "out")
    [([subject], [images], out_dir, suffix)] = looks
    assert subject.name == "run"
    assert list(subject.class_names) == NAMES
    assert subject.activation == "sigmoid"
    assert subject.normalization == ((0,), (1,))
    assert images.pixels.shape == (4, 8, 8, 1)
    assert 0 <= images.pixels.min() < 0.1 < 0.9 < images.pixels.max() < 1.001
    assert out_dir == str(tmp_path / "out") and suffix == ".svg"


def test_test_images_are_those_of_the_data_set(run_dir, digits):
    subject = open_run(run_dir)
    images = first_test_images(digits, subject, 3, "", inspect.BadExamples())
    for i, (image, label) in zip(range(3), digits.examples("test")):
        want = np.asarray(image, "float32") / 127.5 - 1
        np.testing.assert_allclose(images.pixels[i], want, atol=1e-5)
        assert images.names[i] == f"test image {i + 1}: {NAMES[label]}"
    images = first_test_images(digits, subject, 400, "", inspect.BadExamples())
    assert len(images.pixels) == len(images.names) == 355  # All there are.


def test_image_files_are_made_ready_as_for_the_evaluation(tmp_path, looks):
    operations = "resize_small(12)|central_crop(8)|value_range(0, 1)"
    folder = make_run(
        tmp_path / "run", augment=operations, eval_preprocess=operations
    )
    path = str(tmp_path / "image.png")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), "uint8")
    Image.fromarray(pixels).save(path)
    inspect_run(folder, [path])
    [(_, [images], _, _)] = looks
    np.testing.assert_array_equal(
        images.pixels[0], make_load_image((8, 8, 1), operations)(path)
    )
    assert images.names == ["image.png"]


def test_a_second_model_reads_the_images_of_the_first_run(
    run_dir, tmp_path, looks
):
    operations = "value_range(0, 1)"
    ranges = {"augment": operations, "eval_preprocess": operations}
    other = make_run(tmp_path / "other" / "first", **ranges)
    file = str(tmp_path / "model.keras")
    RunFolder(tmp_path / "other" / "first").load_model().save(file)
    inspect_run(run_dir, compare=other, num_images=2)
    inspect_run(run_dir, compare=file, num_images=2)
    inspect_run(run_dir, compare=f"{other}/model.keras", num_images=2)
    (subjects, (first, second), *_), (_, (again, plain), *_), last = looks
    # The file of a run is read as the run.
    assert [subject.name for subject in last[0]] == [run_dir, other]
    np.testing.assert_array_equal(last[1][1].pixels, second.pixels)
    assert [subject.name for subject in subjects] == [run_dir, other]
    np.testing.assert_allclose(second.pixels, (first.pixels + 1) / 2, atol=1e-6)
    np.testing.assert_array_equal(again.pixels, plain.pixels)


def test_bad_test_images_are_counted_and_others_have_their_names(
    tmp_path, looks
):
    places = ["train/cat", "train/dog", *3 * ["test/cat", "test/dog"]]
    photos = write_photos(tmp_path / "photos", places, size=(8, 8))
    (photos / "test/cat/2.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    config = tiny_config(image_size=8, patch_size=2, num_classes=2)
    run = RunFolder(tmp_path / "run")
    recipe = dataclasses.replace(
        RECIPES["digits"], dataset=f"folder:{photos}", augment=""
    )
    run.save_recipe(recipe, ["cat", "dog"])
    run.save_model(VisionTransformer(config))
    with pytest.raises(ValueError, match="`out` must be outside"):
        inspect_run(str(run.folder), out_dir=str(photos / "seen"))
    with pytest.raises(ValueError, match="max_bad_examples=0"):
        inspect_run(str(run.folder), num_images=6)
    assert not looks
    inspect_run(str(run.folder), num_images=6, max_bad_examples=1)
    [(_, [images], _, _)] = looks
    assert sorted(images.names) == [  # All but 2.png.
        *("3.png: dog", "4.png: cat", "5.png: dog", "6.png: cat", "7.png: dog")
    ]
    assert len(images.pixels) == 5


def test_images_of_which_nothing_is_known_are_shown(tmp_path, looks):
    write_photos(tmp_path, 4 * ["photos"], size=(8, 8))
    table = "path,cat,dog,split\n0.png,1,0,train\n1.png,0,1,train\n"
    table += "2.png,,,test\n3.png,,,test\n"
    (tmp_path / "photos/labels.csv").write_text(table)
    recipe = dataclasses.replace(
        RECIPES["digits"],
        dataset=f"csv:{tmp_path}/photos/labels.csv",
        augment="",
        labels="several",
        loss="sigmoid",
    )
    run = RunFolder(tmp_path / "run")
    run.save_recipe(recipe, ["cat", "dog"])
    config = tiny_config(image_size=8, patch_size=2, num_classes=2)
    run.save_model(VisionTransformer(config))
    inspect_run(str(run.folder), num_images=2)
    [(_, [images], _, _)] = looks
    assert images.names == ["2.png: no label", "3.png: no label"]


def test_what_does_not_fit_is_said_before_anything_runs(
    run_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(gallery, "look", None)
    other = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    no_vit = make_run(tmp_path / "no_vit", other)
    a_file = tmp_path / "a_file"
    a_file.write_text("")
    checkpoint = str(path_of("official_token.npz"))
    for arguments, words in (
        (
            {"run_dir": no_vit},
            "must contain a VisionTransformer. Received: Sequential",
        ),
        ({"run_dir": str(tmp_path)}, "folder of a finished run"),
        ({"run_dir": "gs://bucket/run"}, "--out must be given"),
        ({"paths": ["none.png"]}, "no image file 'none.png'"),
        ({"compare": checkpoint}, "images of 3 channels"),
        ({"out_dir": a_file}, "a_file"),
        ({"out_dir": "gs://bucket/x"}, "`out` must be.*'gs://bucket/x'"),
        ({"out_dir": "/proc/none"}, "`out` must be a folder that can be"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            inspect_run(**{"run_dir": run_dir, **arguments})
    assert not (tmp_path / "no_vit" / "inspection").exists()
