"""Make pictures that show neither digits nor photos.

    python docs/examples/make_unknown.py FOLDER

FOLDER/letters gets 200 white capital letters on black, in the fonts of
matplotlib, turned a little; none looks like a digit. FOLDER/logos gets 200
parts of two drawings that matplotlib ships.
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from matplotlib import cbook
from PIL import Image, ImageDraw, ImageFont

LETTERS = "ACEFHKMNPRTUVWXY"
DRAWINGS = ("logo2.png", "Minduka_Present_Blue_Pack.png")
SIDE = 64


def draw_letter(letter: str, font: str, angle: float) -> Image.Image:
    """Return a letter that touches two sides of its picture."""
    face = ImageFont.truetype(font, SIDE)
    left, top, right, bottom = face.getbbox(letter)
    image = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(image).text((-left, -top), letter, 255, face)
    image = image.rotate(angle, Image.Resampling.BILINEAR, expand=True)
    image.thumbnail((SIDE, SIDE))
    page = Image.new("L", (SIDE, SIDE))
    place = ((SIDE - image.width) // 2, (SIDE - image.height) // 2)
    page.paste(image, place)
    return page


def draw_logo(drawing: Image.Image, random: np.random.Generator) -> Image.Image:
    """Return a square part of a drawing."""
    side = int(random.integers(40, min(drawing.size)))
    left = int(random.integers(0, drawing.width - side + 1))
    top = int(random.integers(0, drawing.height - side + 1))
    part = drawing.crop((left, top, left + side, top + side))
    return part.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def make_unknown(folder: str, count: int = 200):
    """Write the pictures into `folder`."""
    random = np.random.default_rng(0)
    fonts = sorted(
        pathlib.Path(matplotlib.get_data_path(), "fonts/ttf").glob("DejaVu*")
    )
    fonts = [str(font) for font in fonts if "Display" not in font.name]
    drawings = []
    for name in DRAWINGS:
        image = Image.open(cbook.get_sample_data(name, asfileobj=False))
        page = Image.new("RGBA", image.size, "white")
        page.alpha_composite(image.convert("RGBA"))
        drawings.append(page.convert("RGB"))
    for kind in ("letters", "logos"):
        pathlib.Path(folder, kind).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        letter = random.choice([*LETTERS])
        angle = random.uniform(-10, 10)
        picture = draw_letter(letter, random.choice(fonts), angle)
        picture.save(f"{folder}/letters/{index:03d}.png")
        drawing = drawings[index % len(drawings)]
        draw_logo(drawing, random).save(f"{folder}/logos/{index:03d}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    make_unknown(**vars(parser.parse_args()))
