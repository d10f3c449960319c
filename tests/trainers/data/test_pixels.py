"""Files of more than 8 bits, and of other channels than 1 and 3."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.decoding import upright_decoder
from keras_vit.preprocessing.description import Preprocessing
from keras_vit.serving.models import load_version
from trainers.commands import open_source
from trainers.data.datasets import open_dataset
from trainers.data.decoding import decode_pixels
from trainers.data.inspection import find, inspect_images
from trainers.data.pixels import PixelOptions, parse_pixel_range
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.file_predictions import predict_each
from trainers.evaluation.predictions import predict_dataset
from trainers.export_model import export_source
from trainers.recipes.recipe import Recipe
from trainers.training.trainer import prepare

TWELVE = (0.0, 4095.0)
# Fields of the recipes of this file.
TINY = {
    "model": "Ti/16",
    "patch_size": 4,
    "image_size": 8,
    "depth": 1,
    "width": 8,
    "mlp_dim": 8,
    "num_heads": 1,
    "batch_size": 8,
    "peak_tflops": 1.0,
}


def scaled(array, low, high):
    """Return what a range makes of numbers, computed in float64."""
    shares = np.clip((np.float64(array) - low) / (high - low), 0, 1)
    return np.rint(shares * 255).astype("uint8")


def png(array):
    return tf.io.encode_png(array).numpy()


def saved(image, kind="TIFF", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture
def deep():
    """Return 12-bit numbers (6, 5), with the ends of the range and more."""
    numbers = (
        np.random.default_rng(0).integers(0, 4096, (6, 5)).astype("uint16")
    )
    numbers[0, :3] = 0, 4095, 5000
    return numbers


def test_a_range_scales_files_of_every_kind_alike(deep):
    want = scaled(deep, *TWELVE)
    floats = deep.astype("float32")
    for content in (
        png(deep[..., None]),
        saved(Image.fromarray(deep)),
        saved(Image.fromarray(floats)),
        saved(Image.fromarray(deep.astype("int32"))),
        npy(deep),
        npy(floats[..., None]),
    ):
        for channels in (1, 3):
            found = read_image(
                io.BytesIO(content), channels, pixel_range=TWELVE
            )
            assert found.shape == (6, 5, channels)
            for each in np.moveaxis(found, -1, 0):
                np.testing.assert_array_equal(each, want)
    in_graph = upright_decoder(1, TWELVE)(png(deep[..., None]))
    np.testing.assert_array_equal(in_graph[..., 0], want)


def test_colours_of_16_bits_are_read_in_a_graph_and_refused_by_pillow(deep):
    colours = np.stack([deep, deep // 2, deep // 3], -1)
    found = upright_decoder(3, TWELVE)(png(colours))
    np.testing.assert_array_equal(found, scaled(colours, *TWELVE))
    with pytest.raises(ValueError, match="pixel_range"):
        read_image(io.BytesIO(png(colours)), pixel_range=TWELVE)
    content = npy(colours)
    found = read_image(io.BytesIO(content), pixel_range=TWELVE)
    np.testing.assert_array_equal(found, scaled(colours, *TWELVE))


def test_zeros_at_the_end_of_a_file_are_of_its_pixels():
    """In a graph, NumPy would take them for the end of a text."""
    pixels = np.ones((4, 3, 5), "uint8")
    pixels[-1] = 0
    stream = io.BytesIO()
    np.save(stream, pixels)
    files = tf.data.Dataset.from_tensors(stream.getvalue())
    options = PixelOptions(channels=5)
    [found] = files.map(lambda x: decode_pixels(x, options))
    np.testing.assert_array_equal(found, pixels)


def test_a_range_leaves_files_of_8_bits_alone():
    array = np.random.default_rng(0).integers(0, 256, (5, 4, 3), "uint8")
    for content in (png(array), npy(array)):
        found = read_image(io.BytesIO(content), pixel_range=TWELVE)
        np.testing.assert_array_equal(found, array)
    found = upright_decoder(3, TWELVE)(png(array))
    np.testing.assert_array_equal(found, array)


def test_without_a_range_numbers_without_a_white_are_refused(deep):
    for content in (
        npy(deep),
        npy(deep.astype("float32")),
        saved(Image.fromarray(deep.astype("float32"))),
    ):
        with pytest.raises(ValueError, match="pixel_range"):
            read_image(io.BytesIO(content), 1)


def stack(arrays):
    first, *rest = [Image.fromarray(x) for x in arrays]
    return saved(first, save_all=True, append_images=rest)


def test_channels_are_those_of_stacks_and_arrays(deep):
    five = np.stack([deep // n for n in range(1, 6)], -1)
    for content in (npy(five), stack(np.moveaxis(five, -1, 0))):
        found = read_image(io.BytesIO(content), 5, pixel_range=TWELVE)
        np.testing.assert_array_equal(found, scaled(five, *TWELVE))
    half = scaled(five, *TWELVE)[..., :2]
    pair = Image.merge("LA", [Image.fromarray(half[..., n]) for n in (0, 1)])
    found = read_image(io.BytesIO(saved(pair, "PNG")), 2)
    np.testing.assert_array_equal(found, half)


@pytest.mark.parametrize("channels", [2, 4, 6])
def test_other_channels_than_those_of_a_file_are_refused(deep, channels):
    five = np.stack([deep] * 5, -1)
    for content in (npy(five), stack(np.moveaxis(five, -1, 0))):
        if channels == 4 and content.startswith(b"II"):
            continue  # The first frame, made colours and opacity.
        with pytest.raises(ValueError, match="channels"):
            read_image(io.BytesIO(content), channels, pixel_range=TWELVE)


@pytest.mark.parametrize("text", ["1", "2,1", "a,b", "0,inf", "1,2,3"])
def test_wrong_ranges_are_refused(text):
    with pytest.raises(ValueError, match="`pixel_range`"):
        parse_pixel_range(text)
    with pytest.raises(ValueError, match="`pixel_range`"):
        Preprocessing(pixel_range=text)


@pytest.fixture
def cells(tmp_path):
    """Return a folder of 12-bit pictures of five channels, in two classes."""
    random = np.random.default_rng(0)
    for split, number in (("train", 8), ("test", 3)):
        for name, level in (("cell", 700), ("none", 2600)):
            folder = tmp_path / "cells" / split / name
            folder.mkdir(parents=True)
            for index in range(number):
                array = random.integers(0, 900, (9, 8, 5)) + level
                np.save(folder / f"{index}.npy", array.astype("uint16"))
    return tmp_path / "cells"


def test_a_run_reads_its_files_alike_everywhere(cells, tmp_path, without_xla):
    """In training, evaluation, prediction; and an export says how."""
    recipe = Recipe(
        dataset=f"folder:{cells}",
        channels=5,
        pixel_range="0,4095",
        total_steps=6,
        learning_rate=0.01,
        augment="inception_crop|flip_lr",
        **TINY,
    )
    trainer = prepare(recipe, str(tmp_path / "run"))
    trainer.train()
    source, dataset = open_source(str(tmp_path / "run"))
    model = source.load_model()
    assert model.input_shape == (None, 8, 8, 5)
    assert model.config.preprocessing.pixel_range == TWELVE
    report = evaluate(source, dataset)
    assert report["num_unreadable"] == 0 and report["num_examples"] == 6
    [(images, logits, _, _, names)] = predict_dataset(model, dataset)
    paths = [*names]
    # The last operation resizes: here, of 9 rows to 8.
    whole = np.stack([scaled(np.load(path), *TWELVE) for path in paths])
    resized = tf.image.resize(whole.astype("float32"), (8, 8))
    np.testing.assert_allclose(images, resized / 127.5 - 1, atol=1e-5)
    rows = [*predict_each(source, paths)]
    assert not any(row.fault for row in rows)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    want = odds / odds.sum(-1, keepdims=True)
    for row, each in zip(rows, want):
        found = dict(row.classes)
        assert found["cell"] == pytest.approx(each[0], abs=1e-5)
    tf.config.run_functions_eagerly(False)
    report = export_source(
        source,
        dataset,
        formats=["saved_model"],
        export_dir=tmp_path / "export",
        num_images=4,
        threads=(),
    )
    assert "| ok |" in str(report)
    named, again = open_source(
        model=str(source.model_path), dataset=f"folder:{cells}"
    )
    assert again.reader.pixels == PixelOptions(5, TWELVE)


def test_a_server_of_a_model_scales_as_it_was_trained(
    deep, tmp_path, without_xla
):
    for split, number in (("train", 4), ("test", 2)):
        for name in ("a", "b"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for index in range(number):
                array = np.roll(deep, index, 1)[..., None]
                content = png(array // (1 + (name == "b")))
                (folder / f"{index}.png").write_bytes(content)
    recipe = Recipe(
        dataset=f"folder:{tmp_path}/photos",
        pixel_range="0,4095",
        total_steps=2,
        **TINY,
    )
    prepare(recipe, str(tmp_path / "run")).train()
    source, dataset = open_source(str(tmp_path / "run"))
    tf.config.run_functions_eagerly(False)
    report = export_source(
        source,
        dataset,
        formats=["saved_model"],
        export_dir=tmp_path / "export",
        num_images=4,
        threads=(),
    )
    assert "| ok |" in str(report)
    [folder] = (tmp_path / "export/saved_model").glob("*/1")
    [row, *_] = predict_each(source, [f"{tmp_path}/photos/test/a/0.png"])
    content = (tmp_path / "photos/test/a/0.png").read_bytes()
    assert load_version(folder).pixel_range == [*TWELVE]
    served = tf.saved_model.load(str(folder)).signatures["serve_bytes"]
    answer = served(image_bytes=tf.constant([content]))
    assert float(answer["probabilities"][0, 0]) == pytest.approx(
        row.classes[0][1], abs=1e-5
    )
    with pytest.raises(ValueError, match="pixel_range"):
        export_source(
            source, dataset, formats=["web"], export_dir=tmp_path / "web"
        )


def test_an_inspection_proposes_the_range(cells):
    dataset = open_dataset(f"folder:{cells}", pixels=PixelOptions(channels=5))
    findings = find(inspect_images(dataset), dataset.class_names)
    [found] = [x for x in findings if "--pixel_range=" in str(x)]
    assert found.level == "warning" and "--pixel_range=0,4095" in found.text
    levels = [np.load(path) for path in cells.rglob("*.npy")]
    low, high = min(x.min() for x in levels), max(x.max() for x in levels)
    assert f"from {low} to {high}" in found.text
    faults = {x.fault for x in inspect_images(dataset)}
    assert len(faults) == 1 and "pixel_range" in faults.pop()
    ready = dataset.with_pixels(PixelOptions(5, TWELVE))
    images = inspect_images(ready)
    assert not [x for x in images if x.fault]
    findings = find(images, dataset.class_names)
    assert not [x for x in findings if "pixel_range" in x.text]


def test_data_sets_of_their_own_channels_take_no_others(digits):
    with pytest.raises(ValueError, match="`channels`"):
        digits.with_pixels(PixelOptions(pixel_range=TWELVE))


def test_a_model_that_begins_from_another_reads_files_as_it_does():
    recipe = Recipe()
    settings = Preprocessing(pixel_range=TWELVE)
    found = recipe.normalized_for(settings)
    assert found.pixel_options.pixel_range == TWELVE
    own = dataclasses.replace(recipe, pixel_range="0,9")
    assert own.normalized_for(settings).pixel_range == "0,9"
