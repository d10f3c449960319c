"""Make a folder of photos to try the guide with: three classes, 150 files.

    python docs/examples/make_photos.py FOLDER NEW_FOLDER

FOLDER/CLASS/ gets the photos, and NEW_FOLDER one more of each class, to
classify. All are cut from three photographs that scikit-learn and matplotlib
ship, so the photos of a class show parts of the same thing: they show how the
commands work, not how good a model is. As in real folders, some photos were
turned by the camera, some are CMYK, have 16 bits, a palette or transparency,
one is there twice, names have spaces and other scripts, and two files are no
images.
"""

import argparse
import pathlib

import matplotlib.cbook
import numpy as np
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_image

COUNTS = {"flower": 60, "portrait": 42, "temple": 46}
# The sides of a cut, in pixels.
SMALLEST, LARGEST = 120, 300
ORIENTATION = 0x0112  # The Exif tag.
# How the pixels have to be turned for a viewer that obeys the tag.
TURNS = {3: 180, 6: 90, 8: 270}


def load_photographs() -> dict[str, Image.Image]:
    """Return {class: the photograph that its photos are cut from}."""
    hopper = matplotlib.cbook.get_sample_data(
        "grace_hopper.jpg", asfileobj=False
    )
    with Image.open(hopper) as portrait:
        return {
            "flower": Image.fromarray(load_sample_image("flower.jpg")),
            "portrait": portrait.convert("RGB"),
            "temple": Image.fromarray(load_sample_image("china.jpg")),
        }


def cut(photograph: Image.Image, rng) -> Image.Image:
    """Return a part of a photograph, in another light, perhaps mirrored."""
    width, height = (int(n) for n in rng.integers(SMALLEST, LARGEST, size=2))
    x = int(rng.integers(photograph.width - width + 1))
    y = int(rng.integers(photograph.height - height + 1))
    photo = photograph.crop((x, y, x + width, y + height))
    if rng.random() < 0.5:
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(photo).enhance(rng.uniform(0.7, 1.3))


def save(photo: Image.Image, path: pathlib.Path, index: int):
    """Save a photo; every tenth or so in a way that takes readers aback."""
    kind = index % 12
    if kind in TURNS:
        exif = Image.Exif()
        exif[ORIENTATION] = kind
        turned = photo.rotate(TURNS[kind], expand=True)
        turned.save(path.with_suffix(".jpg"), exif=exif)
    elif kind == 1:
        photo.convert("CMYK").save(path.with_suffix(".jpg"))
    elif kind == 2:
        photo.convert("P").save(path.with_suffix(".png"))
    elif kind == 4:
        photo.putalpha(200)
        photo.save(path.with_suffix(".png"))
    elif kind == 5:
        deep = np.asarray(photo.convert("L")).astype("uint16") * 257
        Image.fromarray(deep).save(path.with_suffix(".png"))
    elif kind == 7:
        photo.save(path.with_suffix(".webp"))
    else:
        photo.save(path.with_suffix(".jpg"), quality=92)


def make_folder(folder: pathlib.Path, photographs: dict, rng):
    """Write FOLDER/CLASS/*, and two files that are not images."""
    for name, photograph in photographs.items():
        of_class = folder / name
        of_class.mkdir(parents=True, exist_ok=True)
        for index in range(COUNTS[name]):
            stem = ["photo", "Foto aus Köln", "фото"][index % 3]
            photo = cut(photograph, rng)
            save(photo, of_class / f"{stem} {index:02d}", index)
    first = folder / "temple/Foto aus Köln 10.jpg"
    (folder / "temple/copy of 10.jpg").write_bytes(first.read_bytes())
    # What an interrupted transfer leaves, and a text with a wrong ending.
    (folder / "flower/half.jpg").write_bytes(first.read_bytes()[:900])
    (folder / "portrait/notes.jpg").write_text("Ask Anna for the others.\n")


def make_new(folder: pathlib.Path, photographs: dict, rng):
    """Write FOLDER/*.jpg, a photo of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, photograph in enumerate(photographs.values(), start=1):
        cut(photograph, rng).save(folder / f"{index}.jpg", quality=92)


def make_photos(folder: str, new_folder: str):
    """Write both folders; see the top of this file."""
    photographs, rng = load_photographs(), np.random.default_rng(0)
    make_folder(pathlib.Path(folder), photographs, rng)
    make_new(pathlib.Path(new_folder), photographs, rng)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("new_folder")
    make_photos(**vars(parser.parse_args()))
