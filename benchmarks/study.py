"""Studies: variants of a recipe, each with its best learning rate.

A study trains each of its arms several times. The learning rate of an arm is
chosen on images that are not reported, with a seed that is not reported. Each
result goes to a CSV file at once, and an interrupted study goes on from there.
"""

import argparse
import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Iterable, Iterator

import keras
from tqdm import tqdm

from benchmarks.harness import make_parser, read_csv, write_csv
from keras_vit.tables import format_table
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.sweeps.trials import CHOICE, REPORT, best_rate
from trainers.train import Job, prepare

CHOICE_SEED = 100
# Of the digits. The test split is only for the report.
SPLITS = {
    CHOICE: {"train_split": "train[:80%]", "eval_split": "train[80%:]"},
    REPORT: {},
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Args:
        purpose: CHOICE of the learning rate, or REPORT.
        arm: The name of the arm.
        learning_rate: The highest.
        seed: Of the weights, the order and the augmentation.
        accuracy: On images that were not trained on.
        loss: On these images.
    """

    purpose: str
    arm: str
    learning_rate: float
    seed: int
    accuracy: float
    loss: float

    @property
    def case(self) -> tuple:
        """What was trained."""
        return self.purpose, self.arm, self.learning_rate, self.seed


@dataclasses.dataclass(frozen=True)
class Study:
    """What a study trains.

    Args:
        name: Name of its module and its files.
        arms: Name -> fields of the recipe that the arm changes.
        rates: Learning rates.
        chooses_rate: Whether each arm reports its best rate, or all rates.
        recipe: What the arms have in common.
    """

    name: str
    arms: dict[str, dict]
    rates: tuple[float, ...]
    chooses_rate: bool = True
    recipe: Recipe = dataclasses.replace(RECIPES["digits"], batch_size=32)


def parse_options(
    study: Study, doc: str, arguments: list[str] | None
) -> argparse.Namespace:
    """Return the options of the command line of a study."""
    parser = make_parser(doc)
    add = parser.add_argument
    add("--seeds", type=int, default=5, help="number, from 0")
    add("--updates", type=int, default=1000, help="of each training")
    add(
        "--rates",
        type=_split_rates,
        default=study.rates,
        help="learning rates, separated by commas",
    )
    add(
        "--csv",
        type=pathlib.Path,
        default=f"benchmarks/results/{study.name}.csv",
        help="file to write; the picture is beside it",
    )
    return parser.parse_args(arguments)


def _split_rates(text):
    try:
        rates = tuple(float(rate) for rate in text.split(","))
    except ValueError:
        rates = (0.0,)
    if not min(rates) > 0:
        raise argparse.ArgumentTypeError(f"not positive numbers: {text!r}")
    return rates


def run(study: Study, options: argparse.Namespace) -> list[Trial]:
    """Train what the CSV file lacks, and return all that the study has."""
    known = {t.case: t for t in read_trials(options.csv)}
    num_rates, seeds = len(options.rates), options.seeds
    per_arm = num_rates + seeds if study.chooses_rate else num_rates * seeds
    trials = []
    with tqdm(total=per_arm * len(study.arms), desc=study.name) as bar:
        for arm in study.arms:
            own = []
            for case in _cases(study, arm, options, own):
                trial = known.get(case) or train_trial(study, case, options)
                own.append(trial)
                rows = [*trials, *own]
                rows += [t for t in known.values() if t not in rows]
                write_csv(options.csv, [dataclasses.asdict(t) for t in rows])
                bar.update()
            trials += own
    return trials


def _cases(study, arm, options, done) -> Iterator[tuple]:
    """Yield what to train of an arm, given what was trained so far."""
    rates = options.rates
    if study.chooses_rate:
        for rate in rates:
            yield CHOICE, arm, rate, CHOICE_SEED
        rates = [best_rate(done)]
    for rate in rates:
        for seed in range(options.seeds):
            yield REPORT, arm, rate, seed


def train_trial(
    study: Study, case: tuple, options: argparse.Namespace
) -> Trial:
    """Train one case of a study."""
    purpose, arm, rate, seed = case
    recipe = dataclasses.replace(
        study.recipe,
        **SPLITS[purpose],
        **study.arms[arm],
        learning_rate=rate,
        seed=seed,
        total_steps=options.updates,
        warmup_steps=options.updates // 10,
    )
    logs = train_once(recipe)
    return Trial(*case, float(logs["val_accuracy"]), float(logs["val_loss"]))


def train_once(recipe: Recipe) -> dict:
    """Train without checkpoints; return what the evaluation at the end found.

    Args:
        recipe: A recipe with `total_steps`.
    """
    keras.backend.clear_session()
    recipe = dataclasses.replace(recipe, peak_tflops=1.0)  # Not measured.
    with tempfile.TemporaryDirectory() as folder:
        return train_job(prepare(recipe, folder))


def train_job(
    job: Job, callbacks: Iterable[keras.callbacks.Callback] = ()
) -> dict:
    """Train a job without checkpoints, and evaluate it once, at the end.

    Args:
        job: Of a recipe with `total_steps`.
        callbacks: Called during the training.
    """
    job.loop.checkpoints = None
    return job.loop.train(
        job.train_batches,
        job.eval_batches,
        total_steps=job.recipe.total_steps,
        steps_per_epoch=job.recipe.total_steps,
        eval_steps=job.eval_steps,
        steps_per_loop=job.recipe.steps_per_loop,
        callbacks=callbacks,
    )


def read_trials(path: pathlib.Path, kind: type = Trial) -> list:
    """Return the trials of a CSV file; none if there is no file.

    Args:
        path: The file.
        kind: The dataclass of a row.
    """
    fields = {f.name: f.type for f in dataclasses.fields(kind)}
    rows = read_csv(path) if path.exists() else []
    return [
        kind(**{name: parse(row[name]) for name, parse in fields.items()})
        for row in rows
    ]


def reported(trials: list[Trial], arm: str, rate: float | None = None) -> list:
    """Return the trials of the report of an arm, if need be at one rate."""
    return [
        t
        for t in trials
        if (t.purpose, t.arm) == (REPORT, arm)
        and rate in (None, t.learning_rate)
    ]


def describe_arms(trials: list[Trial]) -> str:
    """Return a table with the medians of each arm at its best rate."""
    rows = []
    for arm in dict.fromkeys(t.arm for t in trials):
        own = reported(trials, arm)
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
