import io
import pathlib

import numpy as np
import pytest
from PIL import Image

from tests import pictures
from trainers.data import inspection as examination
from trainers.data.datasets import open_dataset
from trainers.data.inspection import compute_look, examine, inspect_images


def waves(seed, size=(120, 160)):
    """Return a picture of a few smooth waves, (H, W, 3)."""
    draws = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]] / np.max(size)
    total = sum(
        draws.normal() * np.cos(a * x + b * y + c)
        for a, b, c in draws.uniform(-20, 20, (12, 3))
    )
    grey = 127 + 60 * total / np.abs(total).max()
    return np.repeat(grey[..., None], 3, -1).astype("uint8")


def encode(pixels, kind="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def different_bits(one, other):
    return (one ^ other).bit_count()


@pytest.mark.parametrize("seed", range(2))
def test_a_look_survives_scaling_and_compression(seed):
    pixels = waves(seed)
    small = Image.fromarray(pixels).resize((90, 70))
    changed = [
        np.asarray(small),
        np.asarray(Image.open(io.BytesIO(encode(pixels, "JPEG", quality=40)))),
        np.clip(pixels * 0.8 + 20, 0, 255).astype("uint8"),
    ]
    look = compute_look(pixels)
    for other in changed:
        assert different_bits(look, compute_look(other)) <= 4
    for other in range(5):
        if other != seed:
            assert different_bits(look, compute_look(waves(other))) > 10


def test_what_is_known_of_a_photo():
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = encode(waves(0), "JPEG", exif=exif, quality=95)
    found = examine("a.jpg", "train", "cat", encoded)
    assert (found.name, found.split, found.label) == ("a.jpg", "train", "cat")
    assert (found.fault, found.size, found.kind) == ("", (160, 120), "JPEG RGB")
    assert found.is_turned
    upright = compute_look(np.rot90(waves(0), -1))
    assert different_bits(found.look, upright) <= 4
    thumbnail = Image.open(io.BytesIO(found.thumbnail))
    assert thumbnail.size == (72, 96)  # Turned as well.


@pytest.mark.parametrize(
    "pixels, kind",
    [
        (np.zeros((5, 6), "uint8"), "PNG L"),
        (np.zeros((5, 6, 4), "uint8"), "PNG RGBA"),
        (np.zeros((5, 6), "uint16"), "PNG I;16"),
    ],
)
def test_kinds_of_pixels(pixels, kind):
    found = examine("a", "test", "x", encode(pixels))
    assert (found.kind, found.fault, found.look) == (kind, "", None)


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_transparent_colours_of_a_png(mode):
    """A colour of the palette, or the key colour of the chunk tRNS."""
    photo = Image.fromarray(waves(0)).convert(mode)
    key = (1, 2, 3) if mode == "RGB" else 3
    photo.putpixel((0, 0), key)
    for options in ({}, {"transparency": key}):
        stream = io.BytesIO()
        photo.save(stream, "PNG", **options)
        found = examine("a.png", "test", "x", stream.getvalue())
        assert found.kind == f"PNG {mode}"
        assert found.is_transparent == bool(options)


@pytest.mark.parametrize("mode, alpha", [("RGBA", 255), ("LA", 254)])
def test_an_opaque_alpha_channel_is_no_transparency(mode, alpha):
    photo = Image.fromarray(waves(0)).convert(mode)
    pixel = photo.getpixel((4, 5))
    photo.putpixel((4, 5), (*pixel[:-1], alpha))
    stream = io.BytesIO()
    photo.save(stream, "PNG")
    found = examine("a.png", "test", "x", stream.getvalue())
    assert found.is_transparent == (alpha < 255)


PHOTO = encode(waves(0), "JPEG")


@pytest.mark.parametrize(
    "encoded, fault",
    [
        (b"", "the file is empty"),
        (b"hello", "not an image"),
        (PHOTO[: len(PHOTO) // 2], "the file is cut off"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image, which needs"),
        (b"II*\0 and nothing more", ""),
    ],
)
@pytest.mark.filterwarnings("ignore:.*EXIF data:UserWarning")
def test_faults_are_told_apart(encoded, fault, monkeypatch):
    monkeypatch.setattr(examination, "can_read_heif", lambda: False)
    found = examine("a.jpg", "train", "cat", encoded)
    assert found.fault.startswith(fault)
    assert found.fault
    assert found.look is None
    assert not found.thumbnail


def test_what_training_cannot_read_is_a_fault_and_nothing_else():
    for name, encoded in pictures.UNREADABLE.items():
        assert examine(name, "train", "cat", encoded).fault, name
    readable = pictures.COMMON | pictures.OTHER
    for name in ("alpha.webp", "avif.jpg", "film.webp", "damaged_exif.png"):
        found = examine(name, "train", "cat", readable[name])
        assert (found.fault, found.size) == ("", (30, 20)), name


@pytest.fixture
def photos(tmp_path):
    """Return a folder with six photos of two classes."""
    for index in range(6):
        place = tmp_path / "photos" / ("cat", "dog")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path / "photos"


def test_all_images_of_both_splits_are_examined(photos, capsys):
    dataset = open_dataset(f"folder:{photos}")
    (photos / "dog/3.png").unlink()
    images = inspect_images(dataset)
    assert len(images) == 6
    for image in images:
        path = pathlib.Path(image.name)
        assert image.label == path.parent.name
        assert (str(path), dataset.class_names.index(image.label)) in (
            dataset.reader.files[image.split]
        )
        assert image.fault == ("the file is empty" if path.stem == "3" else "")
    assert "6/6" in capsys.readouterr().out


def test_a_data_set_of_records(digits):
    images = inspect_images(
        open_dataset("digits", train_split="train[:9]", eval_split="test[:4]")
    )
    assert [image.split for image in images] == ["train[:9]"] * 9 + [
        "test[:4]"
    ] * 4
    labels = [int(label) for _, label in digits.examples("train[:9]")]
    assert [int(image.label) for image in images[:9]] == labels
    assert {image.kind for image in images} == {"PNG L"}
