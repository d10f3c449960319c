"""Sweeps: learning rates tried on held-out images, then several seeds.

`open_sweep` checks one, `run_sweep` trains the runs that are missing and
writes the report.
"""

import contextlib
import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.tables import format_table
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.data.splits import count_examples, format_ranges, take_ranges
from trainers.engine.cluster import ALONE, WorkerConfig
from trainers.engine.strategies import make_engine
from trainers.evaluation.probing import summarize
from trainers.paths import (
    Path,
    as_path,
    check_folder,
    parse_object,
    read_written,
    write_csv_file,
)
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import CLASSIFY, Recipe
from trainers.training.loop import NonFiniteLossError
from trainers.training.memory import warn_of_shortage
from trainers.training.pictures import describe_skipped
from trainers.training.run_folder import (
    RunFolder,
    binding_fields,
    list_changes,
    write_report,
)
from trainers.training.trainer import (
    Trainer,
    check_labels,
    open_in_turn,
    prepare,
)


def hold_out(dataset: ImageDataset, held_out: str) -> tuple[str, str]:
    """Return the training split without its last images, and these images.

    Both are in the notation of TFDS. They name images by number, so that a
    sweep notices if the data set has changed.

    Args:
        dataset: The data set.
        held_out: The share of the images to hold out, such as "2%", or their
            number, such as "1000".

    Raises:
        ValueError: If `held_out` has another form, or no image would be left
            on one of the sides.
    """
    ranges = dataset.ranges(dataset.train_split)
    total = count_examples(ranges)
    if re.fullmatch(r"\d+(\.\d*)?%", held_out):
        number = round(total * float(held_out[:-1]) / 100)
    elif re.fullmatch(r"\d+", held_out):
        number = int(held_out)
    else:
        raise ValueError(
            "`held_out` must be a share such as 2% or a number of images such "
            f"as 1000. Received: held_out={held_out!r}"
        )
    if not 0 < number < total:
        raise ValueError(
            "`held_out` must leave images on both sides. Received: "
            f"held_out={held_out!r}, {number:,} of the {total:,} images of "
            f"train_split={dataset.train_split!r}"
        )
    parts = (0, total - number), (total - number, total)
    train, rest = (format_ranges(take_ranges(ranges, *part)) for part in parts)
    return train, rest


def check_classes_held_out(dataset: ImageDataset, split: str):
    """Raise a ValueError if the held-out images are all of one class.

    Records that are in the order of their classes cannot be divided by
    position. If there are fewer classes than expected, this is a warning.
    """
    names = dataset.class_names
    if len(names) < 2 or dataset.has_several_classes(split):
        return
    with BadExamples(0).named_errors():
        labels = dataset.labels(split)
    found = np.unique(labels)
    if len(found) == 1:
        raise ValueError(
            "`held_out` must hold out images of several classes; shuffle the "
            "data set if it is in the order of its classes, or hold out more. "
            f"Received: {split!r}, {len(labels):,} images, all of class "
            f"{names[found[0]]!r}"
        )
    expected = len(names) * (1 - (1 - 1 / len(names)) ** len(labels))
    if len(found) < expected / 2:
        warnings.warn(
            f"The {len(labels):,} held-out images are of {len(found):,} of the "
            f"{len(names):,} classes. If the data set is in the order of its "
            "classes, shuffle it before the sweep.",
            stacklevel=2,
        )


CHOICE, REPORT = "choice", "report"
REPORT_NAME = "sweep.json"


class Case(NamedTuple):
    """The settings of one run of a sweep.

    Args:
        purpose: CHOICE of the learning rate, or REPORT.
        learning_rate: The highest.
        seed: Of the weights, the order and the augmentation.
    """

    purpose: str
    learning_rate: float
    seed: int

    @property
    def folder(self) -> str:
        """Name of the folder of the run."""
        return f"{self.purpose}_{self.learning_rate}_seed{self.seed}"

    def __str__(self):
        return f"learning rate {self.learning_rate:g}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of one run of a sweep.

    Args:
        purpose, learning_rate, seed: See `Case`.
        accuracy: On the held-out images, or for the report on the test split;
            None if the loss was not finite.
        loss: On the same images.
    """

    purpose: str
    learning_rate: float
    seed: int
    accuracy: float | None
    loss: float | None

    @property
    def case(self) -> Case:
        """The settings of the run."""
        return Case(self.purpose, self.learning_rate, self.seed)


def read_report(folder: Path) -> dict:
    """Return the report of an earlier start, empty if there is none.

    Raises:
        ContentError: If the file is not a report.
    """
    path = folder / REPORT_NAME
    if not path.exists():
        return {}

    def parse(text):
        report = parse_object(text)
        report["trials"] = [Trial(**row) for row in report["trials"]]
        return report

    return read_written(path, parse, "choose another folder")


def read_trials(folder: Path) -> list[Trial]:
    """Return the trials of earlier starts."""
    return read_report(folder).get("trials", [])


class Grid(NamedTuple):
    """The learning rates of a sweep, and the images that choose among them.

    Args:
        learning_rates: The highest learning rate of each run.
        held_out: Share or number of training images, see `hold_out`.
    """

    learning_rates: tuple[float, ...]
    held_out: str


# Other recipes try this many times their learning rate.
FACTORS = (1 / 3, 1, 3)
HELD_OUT = "10%"

# arXiv:2010.11929, table 4 and appendix B.1.1.
_IMAGENET = Grid((0.003, 0.01, 0.03, 0.06), "1%")
_CIFAR = Grid((0.001, 0.003, 0.01, 0.03), "2%")
_PETS = Grid((0.001, 0.003, 0.01, 0.03), "10%")

GRIDS = {
    "imagenet_b16": _IMAGENET,
    "imagenet_l16_512": _IMAGENET,
    "cifar10_b16": _CIFAR,
    "cifar100_b16": _CIFAR,
    "pets_b16": _PETS,
    "flowers_b16": _PETS,
    # One rate for all tasks, and 200 of the 1,000 images.
    "vtab_l16": Grid((0.01,), "20%"),
}


def choose_grid(name: str | None, recipe: Recipe) -> Grid:
    """Return the grid of a recipe, or one around its learning rate.

    Example:
        >>> choose_grid(None, Recipe(learning_rate=0.003)).learning_rates
        (0.001, 0.003, 0.009)
    """
    if name in GRIDS:
        return GRIDS[name]
    rates = [float(f"{x * recipe.learning_rate:.2g}") for x in FACTORS]
    return Grid(tuple(rates), HELD_OUT)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep that has been checked and can start.

    Args:
        run: The folder of the sweep, with the recipe that its runs share.
        recipe: This recipe.
        grid: The learning rates and the held-out images.
        num_seeds: Number of runs on the whole training split.
        splits: The training split without the held-out images, and these.
        dataset: The data set.
        config: How this process finds the other workers.
        chosen: The choice that `recipe` comes from, if it has a name.
        is_writer: Whether this process writes files and reports.
    """

    run: RunFolder
    recipe: Recipe
    grid: Grid
    num_seeds: int
    splits: tuple[str, str]
    dataset: ImageDataset
    config: WorkerConfig
    chosen: ChosenRecipe | None
    is_writer: bool

    @property
    def num_runs(self) -> int:
        """Number of runs of the whole sweep."""
        num_rates = len(self.grid.learning_rates)
        return (num_rates if num_rates > 1 else 0) + self.num_seeds

    def __str__(self):
        train, held_out = self.splits
        count = self.dataset.num_examples
        choice = f"trained on {train} ({count(train):,} images), chosen on "
        choice += f"{held_out} ({count(held_out):,})"
        if len(self.grid.learning_rates) == 1:
            choice = "no other to choose from"
        seeds = "1 seed" if self.num_seeds == 1 else f"{self.num_seeds} seeds"
        whole, test = self.dataset.train_split, self.dataset.eval_split
        return (
            f"Sweep of {self.num_runs} runs in {self.run}\n"
            f"Learning rates {join_rates(self.grid.learning_rates)}: {choice}\n"
            f"Then {seeds}: trained on {whole} "
            f"({count(whole):,}), tested on {test} ({count(test):,})"
        )

    def cases(self, done: Sequence[Trial]) -> Iterator[Case]:
        """Yield the cases to train, given the trials that are done meanwhile.

        Raises:
            NonFiniteLossError: If the loss is not finite with any rate.
        """
        rates = self.grid.learning_rates
        if len(rates) > 1:
            for rate in rates:
                yield Case(CHOICE, rate, self.recipe.seed)
        best = self.best_rate(done)
        if best is None:
            raise NonFiniteLossError(
                "The loss is not finite with any of the learning rates "
                f"{join_rates(rates)}"
            )
        for index in range(self.num_seeds):
            yield Case(REPORT, best, self.recipe.seed + index)

    def best_rate(self, trials: Sequence[Trial]) -> float | None:
        """Return the learning rate that is chosen, if all were tried.

        It has the highest accuracy and, of equals, the lowest loss.
        """
        rates = self.grid.learning_rates
        if len(rates) == 1:
            return rates[0]
        tried = [t for t in trials if t.purpose == CHOICE]
        judged = [t for t in tried if t.accuracy is not None]
        if len(tried) < len(rates) or not judged:
            return None
        return max(judged, key=lambda t: (t.accuracy, -t.loss)).learning_rate

    def recipe_of(self, case: Case) -> Recipe:
        """Return the recipe of a run."""
        changes = {"learning_rate": case.learning_rate, "seed": case.seed}
        if case.purpose == CHOICE:
            train, held_out = self.splits
            changes |= {"train_split": train, "eval_split": held_out}
        return dataclasses.replace(self.recipe, **changes)

    def choice_of(self, recipe: Recipe) -> ChosenRecipe | None:
        """Return the choice of the recipe of a run, see `prepare`.

        Its settings do not follow from the number of images any more, but how
        it fits into the memory does.
        """
        if self.chosen is None:
            return None
        free = self.chosen.free_fields(None)
        given = {
            field.name: getattr(recipe, field.name)
            for field in dataclasses.fields(recipe)
            if field.name not in free
        }
        return dataclasses.replace(self.chosen, given=given)


def join_rates(rates: Iterable[float]) -> str:
    """Return learning rates as a flag lists them."""
    return ",".join(f"{rate:g}" for rate in rates)


def open_sweep(
    recipe: Recipe,
    sweep_dir: str,
    *,
    learning_rates: Sequence[float] | None = None,
    num_seeds: int = 3,
    held_out: str | None = None,
    config: WorkerConfig = ALONE,
    chosen: ChosenRecipe | None = None,
) -> Sweep:
    """Return a checked sweep for `run_sweep`.

    If the folder has an earlier sweep of the same recipe, it is continued.

    Args:
        recipe: The settings that all runs share.
        sweep_dir: The folder of the sweep; created if needed.
        learning_rates: The learning rates to try. Default: see `choose_grid`.
        num_seeds: Number of runs on the whole training split. Their seeds are
            that of the recipe and those after it.
        held_out: The training images that choose the learning rate, see
            `hold_out`. Default: see `choose_grid`.
        config: How this process finds the other workers.
        chosen: The choice that `recipe` comes from; None for the recipe as it
            is.

    Raises:
        ValueError: If the sweep is not possible, or the folder has a sweep of
            another recipe. Nothing is written.
    """
    run = RunFolder(as_path(sweep_dir))
    _check_choices(run, recipe, learning_rates, num_seeds)
    given = chosen.given.get("learning_rate") if chosen else None
    if given is not None and chosen.name in GRIDS and not learning_rates:
        raise ValueError(
            f"`learning_rates` must name the rates to try, since {chosen.name} "
            f"has some of its own. Received: learning_rate={given}"
        )
    engine = make_engine(recipe.strategy, config, recipe.model_devices)
    with engine.name_lost_workers(lambda: "before the first run"):
        choices = {
            "learning_rates": learning_rates,
            "num_seeds": num_seeds,
            "held_out": held_out,
            "results": read_trials(run.folder),
        }
        values = [(name, repr(x).encode()) for name, x in choices.items()]
        engine.check_agreement("sweep", values)
        dataset = open_in_turn(recipe, engine)
    check_labels(recipe, dataset)
    if dataset.has_several_labels:
        raise ValueError(
            "`dataset` must have one class an image in a sweep, which compares "
            f"accuracies. Received: dataset={recipe.dataset!r} with several "
            "labels"
        )
    started = run.load_recipe() if run.recipe_path.exists() else None
    if chosen:
        num_images = dataset.num_examples(dataset.train_split)
        recipe = chosen.fit(num_images, started, engine.num_replicas)
    # The best evaluation would be chosen by images of the test split.
    recipe = dataclasses.replace(recipe, keep_best=False, patience=None)
    grid = choose_grid(chosen and chosen.name, recipe)
    rates = tuple(learning_rates or grid.learning_rates)
    grid = Grid(rates, held_out or grid.held_out)
    sweep = Sweep(
        run=run,
        recipe=recipe,
        grid=grid,
        num_seeds=num_seeds,
        splits=hold_out(dataset, grid.held_out),
        dataset=dataset,
        config=config,
        chosen=chosen,
        is_writer=engine.is_writer,
    )
    if started:
        check_unchanged(sweep, started)
    elif len(rates) > 1:
        check_classes_held_out(dataset, sweep.splits[1])
    return sweep


def _check_choices(run, recipe, rates, num_seeds):
    check_folder(run.folder, "sweep_dir")
    if run.started_recipe():
        raise ValueError(
            "`sweep_dir` must not be the folder of a run. "
            f"Received: sweep_dir={str(run)!r}"
        )
    if recipe.objective != CLASSIFY:
        raise ValueError(
            "`objective` must be classify: a sweep compares accuracies. "
            f"Received: objective={recipe.objective!r}"
        )
    rates = (1.0,) if rates is None else rates
    valid = all(0 < rate < math.inf for rate in rates)
    if not valid or not rates or len(set(rates)) < len(rates):
        raise ValueError(
            "`learning_rates` must be different positive numbers. "
            f"Received: learning_rates={join_rates(rates)}"
        )
    if num_seeds < 1:
        raise ValueError(
            f"`num_seeds` must be 1 or more. Received: num_seeds={num_seeds}"
        )


def check_unchanged(sweep: Sweep, started: Recipe):
    """Raise a ValueError if the folder has a sweep of another recipe.

    Learning rates and seeds may be added.
    """
    held_out = sweep.splits[1]
    old, new = (
        binding_fields(recipe) | {"held_out": split, "class_names": names}
        for recipe, split, names in (
            (
                started,
                read_report(sweep.run.folder).get("held_out", held_out),
                sweep.run.load_class_names(),
            ),
            (sweep.recipe, held_out, sweep.dataset.class_names),
        )
    )
    changed = list_changes(old, new)
    if changed:
        raise ValueError(
            "`sweep_dir` holds a sweep of another recipe; choose another "
            f"folder. Received: sweep_dir={str(sweep.run)!r} with "
            + "; ".join(changed)
        )


CSV_NAME = "sweep.csv"


def save_report(
    sweep: Sweep, trials: Sequence[Trial], others: Sequence[Trial] = ()
):
    """Write sweep.json and sweep.csv.

    The report has the images, the learning rates that are tried, the one that
    was chosen, if all were tried, and after all runs the mean, deviation and
    accuracies on the test split.
    """
    tested = [t.accuracy for t in trials if t.purpose == REPORT]
    is_over = len(tested) == sweep.num_seeds
    whole = [*trials, *others]
    rows = [dataclasses.asdict(trial) for trial in whole]
    report = {
        "dataset": sweep.dataset.name,
        "train_split": sweep.dataset.train_split,
        "held_out": sweep.splits[1],
        "test_split": sweep.dataset.eval_split,
        "learning_rates": list(sweep.grid.learning_rates),
        "learning_rate": sweep.best_rate(trials),
        "test": summarize(tested) if is_over else None,
        "trials": rows,
    }
    write_report(sweep.run.folder, REPORT_NAME, report)
    names = [field.name for field in dataclasses.fields(Trial)]
    table = [[*names, "run"]]
    table += [[*r.values(), t.case.folder] for r, t in zip(rows, whole)]
    write_csv_file(sweep.run.folder / CSV_NAME, table)


def describe_choice(trials: Sequence[Trial], best: float | None) -> str:
    """Return a Markdown table of the learning rates."""
    rows = [
        [
            f"{t.learning_rate:g}",
            *_format_result(t),
            "chosen" if t.learning_rate == best else "",
        ]
        for t in trials
    ]
    return format_table(
        ["learning rate", "held-out accuracy", "loss", ""], rows
    )


def describe_edge(rates: Iterable[float], best: float) -> str:
    """Return a line if the best rate is at the edge of those tried, else "".

    Example:
        >>> describe_edge((0.1, 0.2, 0.3), 0.2)
        ''
    """
    places = {
        min(rates): ("lowest", "lower"),
        max(rates): ("highest", "higher"),
    }
    if best not in places:
        return ""
    place, beyond = places[best]
    return (
        f"\nThis is the {place} of the rates tried. If a {beyond} one may be "
        "better, add it to --learning_rates and run the command again.\n"
    )


def describe_report(trials: Sequence[Trial]) -> str:
    """Return a Markdown table of the seeds, and a line with their mean."""
    rows = [[t.seed, *_format_result(t)] for t in trials]
    table = format_table(["seed", "test accuracy", "loss"], rows)
    found = summarize([t.accuracy for t in trials])
    line = f"Test accuracy: {100 * found['mean']:.2f}"
    if found["deviation"] is not None:
        line += f" +- {100 * found['deviation']:.2f}"
    noun = "seed" if len(trials) == 1 else "seeds, mean and standard deviation"
    return f"{table}\n\n{line} % ({len(trials)} {noun})"


def _format_result(trial):
    if trial.accuracy is None:
        return "-", "not finite"
    return f"{100 * trial.accuracy:.2f} %", f"{trial.loss:.4f}"


def run_sweep(
    sweep: Sweep,
    must_stop: Callable[[], bool] = lambda: False,
    preparing: Callable = contextlib.nullcontext,
) -> list[Trial]:
    """Train all runs of a sweep that are not finished.

    The learning rate is chosen by the highest accuracy on the held-out images
    (of equals, the lowest loss). Then the whole training split is trained on
    with each seed, and only then the test split is read. The report is written
    after each run, so an interrupted sweep goes on from there.

    Args:
        sweep: The result of `open_sweep`.
        must_stop: See `Loop`.
        preparing: Returns a context in which a run is prepared, where errors
            are those of the user.

    Returns:
        The trials of all runs, those of the choice first.

    Raises:
        ValueError: If a run is not possible.
        NonFiniteLossError: If the loss is not finite with the chosen rate.
        Interrupted, WorkerLostError, CheckpointError, OSError: See
            `Trainer.train`.
    """
    known = read_trials(sweep.run.folder)
    trials = []
    writes = sweep.is_writer
    with sweep.run.claimed("sweep_dir") if writes else contextlib.nullcontext():
        if writes:
            sweep.run.save_recipe(sweep.recipe, sweep.dataset.class_names)
            save_report(sweep, [], known)
        for case in sweep.cases(trials):
            trial = next((t for t in known if t.case == case), None)
            if trial is None:
                number = f"Run {len(trials) + 1} of {sweep.num_runs}"
                trial = train_case(sweep, case, number, must_stop, preparing)
            trials.append(trial)
            if writes:
                others = [t for t in known if t not in trials]
                save_report(sweep, trials, others)
    return trials


def train_case(
    sweep: Sweep,
    case: Case,
    number: str,
    must_stop: Callable[[], bool],
    preparing: Callable,
) -> Trial:
    """Return the result of one run, which is begun or continued."""
    with preparing():
        trainer = prepare_case(sweep, case)
    if sweep.is_writer:
        print(f"\n{number}: {case}\n{trainer}", flush=True)
        if not trainer.memory_plan:
            warn_of_shortage(trainer)
    trainer.loop.must_stop = must_stop
    try:
        logs = trainer.train()
    except NonFiniteLossError as error:
        if case.purpose == REPORT:
            raise
        if sweep.is_writer:
            print(f"This learning rate is not chosen. {error}", flush=True)
        return Trial(*case, None, None)
    if trainer.bad_examples.names:
        print(describe_skipped(trainer.bad_examples.names))
    return Trial(*case, float(logs["val_accuracy"]), float(logs["val_loss"]))


def prepare_case(sweep: Sweep, case: Case) -> Trainer:
    """Return the trainer of one run; see `prepare` for its errors."""
    keras.backend.clear_session()  # Forgets the model of the run before.
    recipe = sweep.recipe_of(case)
    return prepare(
        recipe,
        str(sweep.run.folder / case.folder),
        sweep.config,
        chosen=sweep.choice_of(recipe),
    )
