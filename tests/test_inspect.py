"""python -m keras_vit.inspect."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from keras_vit import VisionTransformer, inspect, preprocess_input
from keras_vit.analysis import (
    inspect_model,
    plots,
    representation_similarity,
)
from keras_vit.preprocessing import read_image
from tests.tiny import noise, randomize, tiny_config
from tests.weights.cases import path_of
from trainers.evaluation.predictions import load_image
from trainers.recipes.recipes import RECIPES
from trainers.runs.run import Run

CHECKPOINT = str(path_of("official_token.npz"))
NAMES = [str(digit) for digit in range(10)]


def make_model(seed=0):
    config = tiny_config(image_size=8, patch_size=2, channels=1, num_classes=10)
    return randomize(VisionTransformer(config), seed)


def make_run(folder, model=None, **changes):
    """Make the folder of a finished run on digits, without training."""
    model = model or make_model()
    run = Run(folder)
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    run.save_recipe(recipe, NAMES)
    run.save_model(model)
    return str(folder)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "first")


def test_the_film_of_a_training(tmp_path):
    folder = make_run(tmp_path / "run")
    (tmp_path / "run" / "positions").mkdir()
    for step in (0, 10, 20):
        similarity = np.eye(16, dtype="float16").reshape(4, 4, 4, 4)
        path = tmp_path / "run" / "positions" / f"step-{step:08d}.npy"
        np.save(path, similarity * step)
    assert inspect.main([folder, "--num_images=1"]) == 0
    with Image.open(tmp_path / "run/inspection/positions.gif") as film:
        assert film.n_frames > 2


@pytest.fixture
def image_paths(tmp_path):
    """Return two made image files, one of them in grey."""
    pixels = (noise(40, 60, 3, seed=1) * 40 + 128).clip(0, 255).astype("uint8")
    paths = [str(tmp_path / name) for name in ("colours.png", "grey.png")]
    Image.fromarray(pixels).save(paths[0])
    Image.fromarray(pixels[..., 0]).save(paths[1])
    return paths


def written(folder):
    return {
        str(path.relative_to(folder))
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }


OF_ANY_MODEL = {"reading", "distances", "norms", "positions", "filters"}


def files(suffix, num_images, place=""):
    names = OF_ANY_MODEL | {f"heads_{i + 1}" for i in range(num_images)}
    return {f"{place}{name}{suffix}" for name in names}


def test_a_run_brings_its_own_images(run_dir, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    assert inspect.main([run_dir, "--num_images=2", f"--out={out}"]) == 0
    assert written(out) == {"report.html", *files(".png", 2)}
    output = capsys.readouterr().out
    assert "Looking with first" in output
    for name in written(out):
        assert str(out / name) in output
    for path in out.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 100
            assert len(image.convert("L").getcolors(256)) > 2
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "test image 1: " in page


def test_the_default_folder_is_in_the_run(run_dir):
    assert inspect.main([run_dir]) == 0
    assert written(f"{run_dir}/inspection") == {
        "report.html",
        *files(".png", 4),
    }


def test_a_checkpoint_and_image_files(image_paths, tmp_path):
    out = tmp_path / "out"
    arguments = [CHECKPOINT, *image_paths, f"--out={out}", "--format=svg"]
    assert inspect.main(arguments) == 0
    assert written(out) == {"report.html", *files(".svg", 2)}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "colours.png" in page and "grey.png" in page


def test_two_models_side_by_side(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(inspect, "FEWEST_FOR_SIMILARITY", 4)
    other = make_run(tmp_path / "second")
    out = tmp_path / "out"
    arguments = [run_dir, f"--compare={other}", f"--out={out}"]
    assert inspect.main([*arguments, "--num_images=4"]) == 0
    assert written(out) == {
        "report.html",
        "similarity.png",
        *files(".png", 4),
        *files(".png", 4, "compared/"),
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "first" in page and "second" in page


def test_blocks_of_two_models_are_compared_on_images_that_both_read(
    run_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(inspect, "FEWEST_FOR_SIMILARITY", 4)
    drawn = []
    monkeypatch.setattr(
        plots,
        "plot_representation_similarity",
        lambda *what: drawn.append(what) or Figure(),
    )
    other = make_run(tmp_path / "second", make_model(seed=7))
    out = tmp_path / "out"
    arguments = [run_dir, f"--compare={other}", f"--out={out}"]
    assert inspect.main(arguments) == 0
    subjects = [inspect.open_subject(folder) for folder in (run_dir, other)]
    images, _ = inspect.take_images(run_dir, subjects[0], 4)
    [(similarity, names)] = drawn
    expected = representation_similarity(*(s.model for s in subjects), images)
    np.testing.assert_allclose(similarity, expected, atol=1e-5)
    assert names == ("first", "second")
    operations = "resize_small(12)|central_crop(8)"
    other = make_run(tmp_path / "third", eval_preprocess=operations)
    assert inspect.main([run_dir, f"--compare={other}", f"--out={out}"]) == 0
    assert len(drawn) == 1


def test_what_is_known_of_a_model_is_told(tmp_path, monkeypatch):
    known = {}

    def note(model, images, **more):
        known.update(more, images=images)
        more["report"](1, 2)
        return inspect_model(model, images, **more)

    monkeypatch.setattr(inspect, "inspect_model", note)
    operations = "value_range(0, 1)"
    folder = make_run(
        tmp_path / "run",
        loss="sigmoid",
        augment=operations,
        eval_preprocess=operations,
    )
    assert inspect.main([folder, "--num_images=2"]) == 0
    assert known["model_name"] == "run"
    assert known["class_names"] == NAMES
    assert known["activation"] == "sigmoid"
    assert known["value_range"] == (0, 1)
    assert [name[:14] for name in known["image_names"]] == [
        "test image 1: ",
        "test image 2: ",
    ]
    assert known["images"].shape == (2, 8, 8, 1)


def test_flags_for_what_a_checkpoint_leaves_open(
    tmp_path, image_paths, monkeypatch
):
    models = []

    def note(subject, images, names):
        models.append(subject.model)
        return look(subject, images, names)

    look = inspect.look
    monkeypatch.setattr(inspect, "look", note)
    checkpoint = str(path_of("vit_keras.weights.h5"))
    flags = ["--num_heads=3", "--source_image_size=32x48", "--image_size=48"]
    arguments = [checkpoint, image_paths[0], f"--out={tmp_path / 'out'}"]
    assert inspect.main([*arguments, *flags]) == 0
    assert models[0].config.num_heads == 3
    assert models[0].config.image_size == (48, 48)


def test_classes_of_imagenet_have_names(tmp_path):
    path = tmp_path / "model.keras"
    VisionTransformer(tiny_config(num_classes=1000)).save(path)
    names = inspect.open_subject(str(path)).class_names
    assert names[:2] == ["tench", "goldfish"]
    assert inspect.open_subject(CHECKPOINT).class_names is None


def test_images_are_made_ready_as_for_the_evaluation(tmp_path, image_paths):
    operations = "resize_small(12)|central_crop(8)|value_range(0, 1)"
    folder = make_run(
        tmp_path / "run", augment=operations, eval_preprocess=operations
    )
    subject = inspect.open_subject(folder)
    image = subject.read(image_paths[0])
    np.testing.assert_array_equal(
        image, load_image(image_paths[0], (8, 8, 1), operations)
    )
    assert subject.value_range == (0, 1)
    assert subject.class_names == NAMES
    images, names = inspect.take_images(folder, subject, 3)
    assert images.shape == (3, 8, 8, 1)
    assert images.min() >= 0 and len(names) == 3
    labels = [Run(pathlib.Path(folder)).load_class_names()]
    assert all(name.rpartition(": ")[2] in labels[0] for name in names)
    images, names = inspect.take_images(folder, subject, 400)
    assert len(images) == len(names) == 355  # All there are.


def test_images_of_a_checkpoint_are_resized_as_a_whole(image_paths):
    subject = inspect.open_subject(CHECKPOINT)
    size = subject.model.config.image_size
    with Image.open(image_paths[0]) as image:
        resized = image.resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        subject.read(image_paths[0]), preprocess_input(np.asarray(resized))
    )
    assert read_image(image_paths[1], 3).shape == (40, 60, 3)


def test_files_of_one_name_are_told_apart(tmp_path, image_paths):
    subject = inspect.open_subject(CHECKPOINT)
    folder = tmp_path / "other"
    folder.mkdir()
    twin = folder / "grey.png"
    twin.write_bytes(pathlib.Path(image_paths[1]).read_bytes())
    _, names = inspect.read_images(subject, [image_paths[1], str(twin)])
    assert names == [image_paths[1], str(twin)]
    _, names = inspect.read_images(subject, image_paths)
    assert names == ["colours.png", "grey.png"]
    subjects = inspect.name_apart([subject, subject], ["a/x.npz", "b/x.npz"])
    assert [subject.name for subject in subjects] == ["a/x.npz", "b/x.npz"]


def test_what_is_wrong_is_said_in_one_line(
    run_dir, tmp_path, image_paths, capsys
):
    no_image = tmp_path / "words.png"
    no_image.write_text("words")
    a_file = tmp_path / "a_file"
    a_file.write_text("")
    other = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    no_vit = make_run(tmp_path / "no_vit", other)
    out = tmp_path / "out"
    for arguments, words in (
        ([CHECKPOINT, f"--out={out}"], "Name one image file or more"),
        ([CHECKPOINT, "none.png", f"--out={out}"], "no image file 'none.png'"),
        ([CHECKPOINT, str(no_image), f"--out={out}"], "Not an image"),
        (["none.npz", image_paths[0], f"--out={out}"], "none.npz"),
        ([no_vit, f"--out={out}"], "no VisionTransformer but a Sequential"),
        ([run_dir, f"--out={a_file}"], "a_file"),
        ([run_dir, f"--out={out}", "--image_size=16"], "for checkpoints"),
        (
            [run_dir, f"--compare={CHECKPOINT}", f"--out={out}"],
            "images of 3 channels",
        ),
    ):
        assert inspect.main(arguments) == 1, arguments
        captured = capsys.readouterr()
        assert captured.err.startswith("error: "), captured.err
        assert words in captured.err
        assert captured.err.count("\n") == 1
        assert "Looking" not in captured.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([CHECKPOINT, "a.png"], "--out is needed"),
        (["run", "--num_images=0"], "must be 1 or more"),
        (["run", "--num_images=few"], "must be 1 or more"),
        (["run", "--format=gif"], "invalid choice"),
        (["run", "a.png", "--out=x", "--num_images=2"], "for test images"),
        ([CHECKPOINT, "a.png", "--out="], "--out is needed"),
        (["run", "--otu=x"], "unrecognized arguments"),
        ([], "required"),
    ],
)
def test_mistyped_flags(arguments, words, capsys):
    with pytest.raises(SystemExit):
        inspect.main(arguments)
    assert words in capsys.readouterr().err


def test_ctrl_c_is_said_in_a_word(run_dir, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "look", interrupt)
    assert inspect.main([run_dir, f"--out={tmp_path / 'out'}"]) == 130
    assert capsys.readouterr().err.endswith("stopped\n")
    assert not (tmp_path / "out").exists()
