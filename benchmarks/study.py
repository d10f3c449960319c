"""Studies: variants of a recipe, each with its best learning rate.

A study trains each of its arms several times. The learning rate of an arm is
chosen on images that are not reported, with a seed that is not reported. Each
result goes to a CSV file at once, and an interrupted study goes on from there.
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping

from tqdm import tqdm

from benchmarks.harness import (
    add_csv_option,
    make_parser,
    read_csv,
    write_table,
)
from benchmarks.study_training import train_once
from keras_vit.tables import format_table
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.sweeps.trials import CHOICE, REPORT, best_rate
from trainers.train import Job

CHOICE_SEED = 100
# The splits of the digits. The test split is only for the report.
DIGIT_SPLITS = {
    CHOICE: {"train_split": "train[:80%]", "eval_split": "train[80%:]"},
    REPORT: {},
}


@dataclasses.dataclass(frozen=True)
class StudyTrial:
    """One training.

    Args:
        purpose: CHOICE of the learning rate, or REPORT.
        arm: The name of the arm.
        learning_rate: The highest.
        seed: Of the weights, the order and the augmentation.
        updates: Number.
        batch_size: Images of an update.
        image_size: Side of the images, in pixels.
        accuracy: On images that were not trained on.
        loss: On these images.
    """

    purpose: str
    arm: str
    learning_rate: float
    seed: int
    updates: int
    batch_size: int
    image_size: int
    accuracy: float
    loss: float

    @property
    def case(self) -> tuple:
        """The settings of the training: all values before the accuracy."""
        return dataclasses.astuple(self)[:CASE_LENGTH]


CASE_LENGTH = [f.name for f in dataclasses.fields(StudyTrial)].index("accuracy")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the variants that a study compares.

    Args:
        fields: Fields of the recipe that it changes.
        build: Returns its model, see `prepare`; None for that of the recipe.
        length: Its updates, as a multiple of `--updates`.
        rate: Its learning rates, as a multiple of `--rates`.
        rate_of: The arm, itself or one before it, that chooses its learning
            rate; None for itself.
    """

    fields: Mapping = dataclasses.field(default_factory=dict)
    build: Callable | None = None
    length: float = 1.0
    rate: float = 1.0
    rate_of: str | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """A study: variants of a recipe, and their trainings.

    Args:
        name: Name of its module and its files.
        arms: By name.
        rates: Learning rates.
        chooses_rate: Whether each arm reports its best rate, or all rates.
        recipe: What the arms have in common.
        splits: CHOICE and REPORT -> fields of the recipe.
        kind: The dataclass of a row of the CSV file, a Trial.
        measure: Maps a trained job to the values that `kind` has beyond those
            of a Trial.
        seeds: Default of `--seeds`.
        updates: Default of `--updates`.
    """

    name: str
    arms: dict[str, Arm]
    rates: tuple[float, ...]
    chooses_rate: bool = True
    recipe: Recipe = dataclasses.replace(RECIPES["digits"], batch_size=32)
    splits: Mapping[str, dict] = dataclasses.field(
        default_factory=DIGIT_SPLITS.copy
    )
    kind: type[StudyTrial] = StudyTrial
    measure: Callable[[Job], dict] = lambda job: {}
    seeds: int = 5
    updates: int = 1000


def parse_options(
    study: Study, doc: str, arguments: list[str] | None
) -> argparse.Namespace:
    """Return the options of the command line of a study."""
    parser = make_parser(doc)
    add = parser.add_argument
    add("--seeds", type=int, default=study.seeds, help="number, from 0")
    add("--updates", type=int, default=study.updates, help="of a training")
    add(
        "--rates",
        type=_split_rates,
        default=study.rates,
        help="learning rates, separated by commas",
    )
    add_csv_option(add, study.name, "file to write; the picture is beside it")
    return parser.parse_args(arguments)


def _split_rates(text):
    try:
        rates = tuple(float(rate) for rate in text.split(","))
    except ValueError:
        rates = (0.0,)
    if not min(rates) > 0:
        raise argparse.ArgumentTypeError(f"not positive numbers: {text!r}")
    return rates


def run(study: Study, options: argparse.Namespace) -> list[StudyTrial]:
    """Train the missing trials, and return all trials of the study.

    Trials of the file that other options made stay there, behind these.
    """
    known = {t.case: t for t in read_study(options.csv, study.kind)}
    trials = []
    total = count_cases(study, options)
    with tqdm(total=total, desc=study.name) as bar:
        for arm in study.arms:
            for case in _cases(study, arm, options, trials):
                trial = known.get(case) or train_trial(study, case)
                trials.append(trial)
                rows = [
                    *trials,
                    *(t for t in known.values() if t not in trials),
                ]
                write_table(options.csv, [dataclasses.asdict(t) for t in rows])
                bar.update()
    return trials


def count_cases(study: Study, options: argparse.Namespace) -> int:
    """Return the number of trainings of a study."""
    num_rates = len(options.rates)
    if not study.chooses_rate:
        return len(study.arms) * num_rates * options.seeds
    choosing = {arm.rate_of or name for name, arm in study.arms.items()}
    return len(choosing) * num_rates + len(study.arms) * options.seeds


def _cases(study, name, options, done) -> Iterator[tuple]:
    """Yield the cases of an arm to train, given the trials so far."""
    rates = [study.arms[name].rate * rate for rate in options.rates]
    make = functools.partial(_make_case, study, name, options)
    if study.chooses_rate:
        chooser = study.arms[name].rate_of or name
        if chooser == name:
            for rate in rates:
                yield make(CHOICE, rate, CHOICE_SEED)
        choice = [t for t in done if (t.purpose, t.arm) == (CHOICE, chooser)]
        rates = [best_rate(choice)]
    for rate in rates:
        for seed in range(options.seeds):
            yield make(REPORT, rate, seed)


def _make_case(study, name, options, purpose, rate, seed):
    """Return the values of a Trial that are known before the training."""
    arm = study.arms[name]
    recipe = dataclasses.replace(study.recipe, **arm.fields)
    updates = max(round(arm.length * options.updates), 1)
    sizes = recipe.batch_size, recipe.image_size
    return purpose, name, rate, seed, updates, *sizes


def train_trial(study: Study, case: tuple) -> StudyTrial:
    """Train one case of a study."""
    purpose, name, rate, seed, updates, *_ = case
    arm = study.arms[name]
    recipe = dataclasses.replace(
        study.recipe,
        **study.splits[purpose],
        **arm.fields,
        learning_rate=rate,
        seed=seed,
        total_steps=updates,
        warmup_steps=updates // 10,
    )
    logs = train_once(recipe, arm.build, study.measure)
    logs |= {"accuracy": logs["val_accuracy"], "loss": logs["val_loss"]}
    measured = dataclasses.fields(study.kind)[CASE_LENGTH:]
    return study.kind(*case, *(f.type(logs[f.name]) for f in measured))


def read_study(path: pathlib.Path, kind: type = StudyTrial) -> list:
    """Return the trials of a CSV file; none if there is no file.

    Args:
        path: The file.
        kind: The dataclass of a row.

    Raises:
        ValueError: If the file lacks a column.
    """
    fields = {f.name: f.type for f in dataclasses.fields(kind)}
    rows = read_csv(path) if path.exists() else []
    missing = [name for name in fields if rows and name not in rows[0]]
    if missing:
        raise ValueError(
            "`path` must be a file with all columns of the results. Received: "
            f"{path} without {', '.join(missing)}; choose another file"
        )
    return [
        kind(**{name: parse(row[name]) for name, parse in fields.items()})
        for row in rows
    ]


def reported_trials(
    trials: list[StudyTrial], arm: str, rate: float | None = None
) -> list:
    """Return the trials of the report of an arm, if need be at one rate."""
    return [
        t
        for t in trials
        if (t.purpose, t.arm) == (REPORT, arm)
        and rate in (None, t.learning_rate)
    ]


def describe_arms(trials: list[StudyTrial]) -> str:
    """Return a table with the medians of each arm at its best rate."""
    rows = []
    for arm in dict.fromkeys(t.arm for t in trials):
        own = reported_trials(trials, arm)
        found = [100 * t.accuracy for t in own]
        rows.append(
            [
                arm,
                f"{own[0].learning_rate:g}",
                f"{statistics.median(found):.1f} %",
                f"{min(found):.1f} to {max(found):.1f} %",
                f"{statistics.median(t.loss for t in own):.3f}",
            ]
        )
    titles = ["", "learning rate", "accuracy", "of the seeds", "loss"]
    return format_table(titles, rows)
