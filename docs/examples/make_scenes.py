"""Make pictures with several labels: parts of three photographs, side by side.

    python docs/examples/make_scenes.py FOLDER

FOLDER/*.jpg are 320 scenes of four fields. A field is a cut of a flower, a
portrait or a temple, or a plain wall. FOLDER/labels.csv names what is in each;
a scene of four walls has no label. The photographs are those of make_photos.py.
"""

import argparse
import csv
import pathlib
import runpy

import numpy as np
from PIL import Image

SIDE = 64  # Of a field, in pixels.
WALL = 0.5  # Share of the fields.


def make_scenes(folder: str, count: int = 320):
    """Write the scenes and the table; see the top of this file."""
    place = pathlib.Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    photos = runpy.run_path(pathlib.Path(__file__).parent / "make_photos.py")
    photographs, rng = photos["load_photographs"](), np.random.default_rng(0)
    rows = []
    for index in range(count):
        scene, labels = Image.new("RGB", (2 * SIDE, 2 * SIDE)), set()
        for corner in ((0, 0), (SIDE, 0), (0, SIDE), (SIDE, SIDE)):
            field = Image.new(
                "RGB", (SIDE, SIDE), (int(rng.integers(256)),) * 3
            )
            if rng.random() > WALL:
                name = str(rng.choice([*photographs]))
                cut = photos["cut"](photographs[name], rng)
                field, labels = cut.resize((SIDE, SIDE)), labels | {name}
            scene.paste(field, corner)
        scene.save(place / f"scene {index:03d}.jpg", quality=92)
        rows.append((f"scene {index:03d}.jpg", ", ".join(sorted(labels))))
    with open(place / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "labels"), *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    make_scenes(**vars(parser.parse_args()))
