"""Measure pre-training without labels: python -m benchmarks.self_supervision.

An encoder learns scikit-learn's digits without their labels, by masked patch
prediction and as a masked autoencoder. Then classifiers learn few labelled
digits, from both encoders and from new weights. All make the same number of
updates. The learning rate of each is chosen on other images than those of the
report. An interrupted run goes on where its CSV file ends.
"""

import argparse
import dataclasses
import pathlib
import sys

import keras

from benchmarks.harness import (
    add_csv_option,
    make_parser,
    most_accurate_rate,
    split_numbers,
    write_table,
)
from benchmarks.self_supervision_report import describe, draw
from benchmarks.study import CHOICE_SEED, read_study
from benchmarks.study_training import train_once
from keras_vit.tables import pick
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.train import prepare, train

# Way -> the recipe that its encoder comes from.
WAYS = {
    "new weights": None,
    "masked patches": "mpp_digits",
    "autoencoder": "mae_digits",
}
# Images to learn from, to choose the rate with, and to report: the last are
# those of the test split.
NUM_TRAINED = 1153  # 80 % of the training split.
TRAINED, CHOICE, REPORT = "train[:80%]", "train[80%:]", "test"
NUM_LABELS = (10, 30, 100, 300, NUM_TRAINED)
RATES = (3e-4, 1e-3, 3e-3)


@dataclasses.dataclass(frozen=True)
class Result:
    """One classifier.

    Args:
        purpose: "choice" of the learning rate, or "report".
        way: A key of WAYS.
        labels: Number of labelled images.
        learning_rate: The highest.
        seed: Of the head, the order and the augmentation.
        first_image: Place of the first labelled image in the training split.
        updates: Of the classifier.
        epochs: Of the encoder; 0 without one.
        accuracy: On images that were not trained on.
    """

    purpose: str
    way: str
    labels: int
    learning_rate: float
    seed: int
    first_image: int
    updates: int
    epochs: int
    accuracy: float


def main(arguments: list[str] | None = None) -> int:
    """Run everything that the CSV file lacks, and print the table."""
    options = parse(arguments)
    known = {_key(r): r for r in read_study(options.csv, Result)}
    results = []
    cases = 0
    for labels in options.labels:
        for way in WAYS:
            choice = []
            for rate in RATES:
                settings = _settings(way, labels, CHOICE_SEED, options)
                case = ("choice", way, labels, rate, *settings)
                choice.append(known.get(case) or tune(case, options))
                _add(results, choice[-1], known, options.csv)
            for seed in range(options.seeds):
                settings = _settings(way, labels, seed, options)
                rate = most_accurate_rate(choice)
                case = ("report", way, labels, rate, *settings)
                result = known.get(case) or tune(case, options)
                _add(results, result, known, options.csv)
            cases += 1
            total = len(options.labels) * len(WAYS)
            print(f"{cases}/{total}: {labels} labels, {way}", flush=True)
    print(describe(results))
    draw(results, options.csv.with_suffix(".png"))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=5, help="number, from 0")
    add(
        "--labels",
        type=split_numbers,
        default=",".join(map(str, NUM_LABELS)),
        help="numbers of labelled images",
    )
    add("--updates", type=int, default=1000, help="of a classifier")
    add("--epochs", type=int, default=400, help="of an encoder")
    add(
        "--folder",
        type=pathlib.Path,
        default="build/self_supervision",
        help="for the encoders",
    )
    text = "file to write; the picture is beside it"
    add_csv_option(add, "self_supervision", text)
    options = parser.parse_args(arguments)
    for labels in options.labels:
        if not 0 < labels <= NUM_TRAINED:
            parser.error(f"--labels must be from 1 to {NUM_TRAINED}: {labels}")
    return options


def tune(case: tuple, options: argparse.Namespace) -> Result:
    """Return the result of one classifier."""
    purpose, way, labels, rate, seed, first, updates, _ = case
    encoder = find_encoder(way, options)
    recipe = dataclasses.replace(
        RECIPES["digits"],
        train_split=f"train[{first}:{first + labels}]",
        eval_split=CHOICE if purpose == "choice" else REPORT,
        init_from=encoder and str(encoder / "model.keras"),
        batch_size=min(32, labels),
        total_steps=updates,
        warmup_steps=updates // 10,
        learning_rate=rate,
        seed=seed,
    )
    return Result(*case, float(train_once(recipe)["val_accuracy"]))


def find_encoder(way: str, options) -> pathlib.Path | None:
    """Return the folder of the encoder of a way, trained if need be.

    Encoders of another number of epochs have another folder.
    """
    name = pick(WAYS, way, "way")
    if name is None:
        return None
    folder = options.folder / f"{name}_{options.epochs}"
    if not (folder / "model.keras").exists():
        keras.backend.clear_session()
        train(prepare(pretraining(name, options.epochs), str(folder)))
    return folder


def pretraining(name: str, epochs: int) -> Recipe:
    """Return the recipe of an encoder, without the images of the choice."""
    return dataclasses.replace(
        RECIPES[name],
        train_split=TRAINED,
        eval_split=CHOICE,
        epochs=epochs,
        warmup_steps=min(RECIPES[name].warmup_steps, epochs),
        epochs_per_eval=max(epochs // 4, 1),
    )


def spread(labels: int, num_seeds: int) -> float:
    """Return how far the labelled images of two seeds are apart."""
    return (NUM_TRAINED - labels) / max(num_seeds - 1, 1)


def _settings(way, labels, seed, options) -> tuple:
    """Return seed, first image, updates and epochs of a classifier."""
    first = round(seed % options.seeds * spread(labels, options.seeds))
    epochs = options.epochs if WAYS[way] else 0
    return seed, first, options.updates, epochs


def _key(result):
    return dataclasses.astuple(result)[:-1]


def _add(results, new, known, path):
    """Add a result, and write the file.

    Results of the file that other options made stay there, behind these.
    """
    results.append(new)
    rows = [*results, *(r for r in known.values() if r not in results)]
    # After each, so that an interrupted run keeps its results.
    write_table(path, [dataclasses.asdict(result) for result in rows])


if __name__ == "__main__":
    sys.exit(main())
