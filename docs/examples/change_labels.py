"""Make pictures of digits, of which 5 % have a wrong label.

    python docs/examples/change_labels.py FOLDER

FOLDER gets the 1,797 digits of scikit-learn as pictures, `labels.csv` with 89
labels that were changed at random, and `truth.csv` with the right ones.

    python docs/examples/change_labels.py FOLDER --checked=CHECKED/labels.csv

prints how many of the changed labels are among the first 89 lines of a table
that `trainers.check_labels` wrote.
"""

import argparse
import csv
import pathlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SHARE = 0.05


def make_pictures(folder: pathlib.Path):
    """Write the pictures and both tables."""
    digits = load_digits()
    random = np.random.default_rng(0)
    truth = digits.target
    changed = random.choice(len(truth), int(SHARE * len(truth)), replace=False)
    labels = truth.copy()
    # Any of the nine other digits.
    labels[changed] += random.integers(1, 10, len(changed))
    labels %= 10
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{index:04d}.png" for index in range(len(truth))]
    for name, pixels in zip(names, digits.images):
        grey = (pixels * 255 / 16).round().astype("uint8")
        Image.fromarray(grey).save(folder / name)
    for file, column in (("labels.csv", labels), ("truth.csv", truth)):
        with open(folder / file, "w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["path", "label"])
            table.writerows(zip(names, column))


def read_labels(path: pathlib.Path) -> dict[str, str]:
    """Return the label of each picture of a table, in its order."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream)
        return {pathlib.Path(r["path"]).name: r["label"] for r in rows}


def count_found(folder: pathlib.Path, checked: pathlib.Path):
    """Print how many changed labels a table has in its first lines."""
    labels = read_labels(folder / "labels.csv")
    truth = read_labels(folder / "truth.csv")
    changed = {name for name in labels if labels[name] != truth[name]}
    first = list(read_labels(checked))[: len(changed)]
    found = len(changed.intersection(first))
    print(
        f"{found} of {len(changed)} changed labels are among the first "
        f"{len(changed)} lines: {found / len(changed):.1%}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--checked", type=pathlib.Path)
    options = parser.parse_args()
    if options.checked:
        count_found(options.folder, options.checked)
    else:
        make_pictures(options.folder)
