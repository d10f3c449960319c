"""Maps of photos as files: their names, numbers and colours."""

import io
import os
import types

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS
from trainers.data.maps import MapRule
from trainers.evaluation.map_predictions import (
    check_apart,
    encode_classes,
    encode_depths,
    make_predict_maps,
    name_maps,
)
from trainers.evaluation.predictions import make_load_image

SIZE = (4, 6)  # Of the images of the model.
NAMES = ["red", "green", "blue", "never"]


def make_model(kernel, bias=0.0):
    """Return a model whose outputs are sums of the colours of a pixel."""
    kernel = np.float32(kernel)
    layer = keras.layers.Conv2D(kernel.shape[1], 1)
    model = keras.Sequential([keras.Input((*SIZE, 3)), layer])
    layer.set_weights([kernel[None, None], np.full(kernel.shape[1], bias)])
    return model


def predict(model, names, pixels, folder, preprocess=""):
    """Return the answers for a file, the levels of its map and the overlay."""
    path = str(folder / "photo.png")
    Image.fromarray(pixels).save(path)
    out = folder / "out"
    source = types.SimpleNamespace(pixel_range=None)
    run = make_predict_maps(
        source, model, names, preprocess, out, name_maps([path])
    )
    place, *answers = run(path)
    assert place == str(out / "photo.png")
    levels, over = (
        Image.open(x / "photo.png") for x in (out, out / "overlays")
    )
    return answers, levels, np.asarray(over)


def colours_of(texts):
    return np.array([[*bytes.fromhex(text[1:])] for text in texts])


def test_classes_have_the_colours_of_all_pages(tmp_path):
    """At the size of the photo: of pure colours, the class is the colour."""
    classes = np.zeros((8, 12), int)
    classes[:2, 10:], classes[2:, :4] = 1, 2
    pixels = 255 * np.eye(3, dtype="uint8")[classes]
    [shares, summary], image, over = predict(
        make_model(np.eye(3, 4)), NAMES, pixels, tmp_path
    )
    np.testing.assert_array_equal(np.asarray(image), classes)
    colours = colours_of(CLASS_COLOURS)[classes]
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), colours)
    np.testing.assert_allclose(over, 0.45 * pixels + 0.55 * colours, atol=0.51)
    counts = {"red": 68, "blue": 24, "green": 4}
    assert shares == [(name, n / 96) for name, n in counts.items()]
    assert summary == "red 70.8%, blue 25.0%, green 4.2%"


@pytest.mark.parametrize("larger", ["far", "near"])
def test_the_nearest_pixel_is_the_brightest(larger, tmp_path):
    levels = np.arange(24, dtype="uint8").reshape(SIZE) * 10
    pixels = np.repeat(levels[..., None], 3, -1)
    model = make_model([[20], [0], [0]], 21.0)  # From 1 to 41.
    model.larger_depths = larger
    [_, summary], image, over = predict(model, None, pixels, tmp_path)
    found, metres = np.asarray(image, float), 20 * (levels / 127.5 - 1) + 21
    lowest, highest = colours_of(NUMBER_COLOURS)[[0, -1]]
    if larger == "near":
        steps = levels / 230 * 65535
        nearest, farthest = over[-1, -1], over[0, 0]
        assert "up to scale" in summary
    else:
        steps = 1000 * metres
        nearest, farthest = over[0, 0], over[-1, -1]
        assert summary == f"1.00 to {metres.max():.2f} m"
    np.testing.assert_allclose(found, steps, atol=0.6)
    np.testing.assert_array_equal([nearest, farthest], [highest, lowest])


def test_depths_are_rounded_and_end_at_65_metres():
    depths = np.float32([[-1, 0.0004, 1.2346, 70]])
    found = encode_depths(depths, False)
    assert found.tolist() == [[0, 0, 1235, 65535]]
    found = encode_depths(np.float32([[3, 1, 2]]), True)
    assert found.tolist() == [[65535, 0, 32768]]
    assert encode_depths(np.ones((1, 2)), True).tolist() == [[0, 0]]


@pytest.mark.parametrize("count", [2, 255, 256, 300])
def test_maps_of_classes_can_be_read_as_truths(count):
    classes = np.array([[0, 1], [count - 2, count - 1]])
    stream = io.BytesIO()
    encode_classes(classes, count).save(stream, "PNG")
    found = MapRule("segment", count).read(stream.getvalue())
    np.testing.assert_array_equal(found, classes)


@pytest.mark.parametrize("line", ["", "resize(None, bicubic)|normalize(clip)"])
def test_a_photo_is_read_as_by_an_evaluation(line, tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (19, 23, 3), "uint8")
    model, seen = make_model(np.eye(3, 4)), []
    answer = model.predict_on_batch
    monkeypatch.setattr(
        model, "predict_on_batch", lambda x: seen.append(x) or answer(x)
    )
    _, levels, _ = predict(model, NAMES, pixels, tmp_path, line)
    levels.close()
    [image] = seen[0]
    expected = make_load_image((*SIZE, 3), line)(str(tmp_path / "photo.png"))
    np.testing.assert_array_equal(image, expected)


def test_outputs_that_are_not_finite_are_a_fault_of_the_file(tmp_path):
    pixels = np.zeros((*SIZE, 3), "uint8")
    for names in (NAMES, None):
        model = make_model(np.full((3, 4 if names else 1), np.nan))
        with pytest.raises(ValueError, match="photo.png: .* NaN or infinity"):
            predict(model, names, pixels, tmp_path)
        assert not (tmp_path / "out").exists()


def test_images_that_lose_a_part_are_refused(tmp_path):
    pixels = np.zeros((*SIZE, 3), "uint8")
    for line in ("resize_small(9)|central_crop", "central_crop"):
        with pytest.raises(ValueError, match="`preprocess` must keep"):
            predict(make_model(np.eye(3, 4)), NAMES, pixels, tmp_path, line)


def test_no_two_files_have_one_name():
    paths = ["a.jpg", "a.gif", "a.jpg.gif", "b/a.jpg", "b.png", "overlays/c.x"]
    names = name_maps(paths)
    assert list(names) == paths
    places = [*names.values()]
    places += [os.path.join("overlays", name) for name in places]
    assert len(set(places)) == 2 * len(paths)
    with pytest.raises(ValueError, match="overlays/b.png"):
        name_maps(["b.png", "overlays/b.jpg"])


def test_no_result_takes_the_place_of_an_image(tmp_path):
    (tmp_path / "maps/overlays").mkdir(parents=True)
    for name in ("a.png", "b.jpg", "maps/a.png", "maps/overlays/a.png"):
        (tmp_path / name).touch()
    paths = [str(tmp_path / name) for name in ("a.png", "b.jpg")]
    check_apart(name_maps(paths), tmp_path / "maps")
    with pytest.raises(ValueError, match=r"`out` .*a\.png"):
        check_apart(name_maps(paths), tmp_path)
    check_apart(name_maps(paths[1:]), tmp_path)
    # Nor of one that is beside them.
    (tmp_path / "b.png").touch()
    with pytest.raises(ValueError, match=r"`out` .*b\.png"):
        check_apart(name_maps(paths[1:]), tmp_path)
    # Nor of a mask that a person drew, which has no overlay.
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn/a.png").touch()
    with pytest.raises(ValueError, match=r"`out` .*drawn/a\.png.*overlays"):
        check_apart(name_maps(paths), tmp_path / "drawn")
    # A second time, the maps of the first would be taken for images.
    paths.append(str(tmp_path / "maps/a.png"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="`out` .*link"):
        check_apart(name_maps(paths), tmp_path / "link")
