import io
import os

import numpy as np
import pytest
from PIL import Image

from keras_vit import Preprocessing, VisionTransformer, read_image
from tests import commands
from tests.tiny import tiny_config

pillow = pytest.importorskip("PIL.Image")


def test_images_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    whole = tmp_path / "whole.png"
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), "uint8")
    pillow.fromarray(noise).save(whole)
    np.testing.assert_array_equal(read_image(whole), noise)
    content = io.BytesIO(whole.read_bytes())
    np.testing.assert_array_equal(read_image(content), noise)
    assert read_image(whole, 1, (8, 6)).shape == (8, 6, 1)
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:900])
    with pytest.raises(ValueError, match=r"cut\.png"):
        read_image(cut)
    for channels in (0, 2, 2.5, "3"):
        with pytest.raises(ValueError, match="`channels` must be"):
            read_image(whole, channels)
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"whole\.png .*decompression bomb"):
        read_image(whole)
    with pytest.raises(OSError, match=r"none\.png"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ValueError, match="`path` must be .*path=None"):
        read_image(None)


def draw(folder, shape=(90, 61, 3)):
    """Return the path and the pixels of an image."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    pillow.fromarray(pixels).save(folder / "photo.png")
    return folder / "photo.png", pixels


def test_an_image_for_a_model(tmp_path):
    path, pixels = draw(tmp_path)
    model = VisionTransformer(tiny_config())
    found = read_image(path, model=model)
    assert found.shape == (32, 32, 3) and found.dtype == "uint8"
    photo = pillow.fromarray(pixels)
    expected = photo.resize((32, 32), pillow.Resampling.BILINEAR)
    np.testing.assert_array_equal(found, np.asarray(expected))
    settings = Preprocessing("vit", "squash", "bicubic", 0.5)
    model = VisionTransformer(tiny_config(preprocessing=settings))
    found = read_image(path, model=model)
    whole = photo.resize((64, 64), pillow.Resampling.BICUBIC)
    np.testing.assert_array_equal(found, np.asarray(whole)[16:48, 16:48])


def test_the_short_side_and_the_middle(tmp_path):
    path, pixels = draw(tmp_path)
    settings = Preprocessing("clip", "shortest", "bicubic", 0.8)
    config = tiny_config(preprocessing=settings)
    found = read_image(path, model=VisionTransformer(config))
    # The short side is 32 / 0.8 = 40, the other 90 * 40 / 61 = 59.02.
    whole = pillow.fromarray(pixels).resize((40, 59), pillow.Resampling.BICUBIC)
    expected = np.asarray(whole)[13:45, 4:36]
    np.testing.assert_array_equal(found, expected)


def test_a_grey_image_for_a_model(tmp_path):
    path, _ = draw(tmp_path)
    model = VisionTransformer(tiny_config(channels=1))
    assert read_image(path, model=model).shape == (32, 32, 1)
    with pytest.raises(ValueError, match="`model` must be a VisionTransformer"):
        read_image(path, model=object())


@pytest.mark.parametrize("image_size", [8, (8,), (8, 0), (8, 8.0), "8"])
def test_a_size_that_is_none_is_an_error(tmp_path, image_size):
    path = tmp_path / "image.png"
    pillow.new("RGB", (4, 4)).save(path)
    with pytest.raises(ValueError) as error:
        read_image(path, image_size=image_size)
    assert str(error.value) == (
        "`image_size` must be two positive whole numbers. "
        f"Received: image_size={image_size!r}"
    )


def test_it_may_be_the_first_that_a_program_imports():
    """Keras is imported on the way, and then the rest of the package."""
    code = "from keras_vit.preprocessing import read_image"
    result = commands.run(["-c", code], dict(os.environ))
    assert not result.returncode, result.stderr


def test_the_last_of_four_bands_does_not_weigh_the_others(tmp_path):
    """It need not be a transparency, such as near infrared."""
    pixels = np.full((8, 8, 4), 200, "uint8")
    pixels[:, :4, 3], pixels[:, 4:, 3] = 0, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", 4, image_size=(5, 5))
    assert (found[..., :3] == 200).all()
    assert found[0, 0, 3] == 0 and found[0, -1, 3] == 255
