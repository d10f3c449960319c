"""Train the variants of a study: python -m benchmarks.studies NAME.

A study trains each of its arms, variants of a recipe, with several seeds. The
learning rate of an arm is chosen on images and with seeds that are not
reported. Each result goes to a CSV file at once, and an interrupted study goes
on from there; with a complete file, only the tables and the figure are made.
"""

import argparse
import dataclasses
import functools
import math
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import keras
from tqdm import tqdm

from benchmarks.harness import (
    make_parser,
    read_csv,
    split_numbers,
    write_table,
)
from keras_vit.files import atomic_write
from keras_vit.tables import format_table
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.train import Trainer, prepare

CHOICE, REPORT = "choice", "report"
# The splits of the digits. The test split is only for the report.
DIGIT_SPLITS = {
    CHOICE: {"train_split": "train[:80%]", "eval_split": "train[80%:]"},
    REPORT: {},
}
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training: its settings, and accuracy and loss on other images.

    `purpose` is CHOICE of the learning rate, or REPORT; `more` is what
    `Study.measure` returned.
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
    more: dict = dataclasses.field(default_factory=dict)

    @property
    def case(self) -> tuple:
        """The settings of the training: all values before the accuracy."""
        return tuple(getattr(self, name) for name in CASE)


COLUMNS = {
    f.name: f.type for f in dataclasses.fields(Trial) if f.name != "more"
}
CASE = list(COLUMNS)[: list(COLUMNS).index("accuracy")]


class Trained(NamedTuple):
    """A trained model, and accuracy and loss in `logs`.

    Its trainer is None if another program trained it; `evaluations` are
    pairs of updates and accuracy, and `milliseconds` is the median time of
    an update.
    """

    model: keras.Model
    logs: dict
    trainer: Trainer | None = None
    evaluations: tuple = ()
    milliseconds: float = 0.0


class Place(NamedTuple):
    """What a field of an arm may depend on.

    `seed` is that of the training, `seeds` their number in the report, and
    `folder` that for images and initial models.
    """

    purpose: str
    seed: int
    seeds: int
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the variants that a study compares.

    Args:
        fields: Fields of the recipe that it changes. A value may be a function
            of a Place, which is called before a training.
        build: Returns its model, see `prepare`; None for that of the recipe.
        train: Trains a recipe and returns a Trained.
        length: Its updates, as a multiple of `--updates`.
        rate: Its learning rates, as a multiple of `--rates`.
        rate_of: The arm, itself or one before it, that chooses its learning
            rate; None for itself.
    """

    fields: Mapping = dataclasses.field(default_factory=dict)
    build: Callable | None = None
    train: Callable | None = None
    length: float = 1.0
    rate: float = 1.0
    rate_of: str | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """A study: variants of a recipe, and their trainings.

    Args:
        doc: What it compares, and where this is from.
        arms: By name.
        rates: Learning rates.
        recipe: What the arms have in common.
        splits: CHOICE and REPORT -> fields of the recipe.
        choice_seeds: Of the trainings that choose the rate; without any, all
            rates are reported.
        seeds: Default of `--seeds`.
        updates: Default of `--updates`.
        warmup: Updates in which the rate grows; None for a tenth.
        evaluations: How often a training is evaluated.
        measure: Maps a Trained to the values of `columns`, and may replace
            its accuracy and loss.
        columns: Name -> type of what is measured in addition.
        average: Of the seeds, `statistics.mean` or `median`.
        points: Maps a trial of the report to the points of the figure: (label
            of the panel, curve, x, y). None for the loss of each arm.
        axis: Label of the x axis of these panels.
        log: The axes that are logarithmic.
        laws: Maps the points of a curve, x -> ys, to a function of x to draw
            and a text; None for lines through the means.
        wins: Whether the trials of the report reach what `--require` asks.
    """

    doc: str
    arms: dict[str, Arm]
    rates: tuple[float, ...]
    recipe: Recipe = dataclasses.replace(RECIPES["digits"], batch_size=32)
    splits: Mapping[str, dict] = dataclasses.field(
        default_factory=DIGIT_SPLITS.copy
    )
    choice_seeds: tuple[int, ...] = (100,)
    seeds: int = 5
    updates: int = 1000
    warmup: int | None = None
    evaluations: int = 1
    measure: Callable[[Trained], dict] = lambda trained: {}
    columns: Mapping[str, type] = dataclasses.field(default_factory=dict)
    average: Callable = statistics.mean
    points: Callable[[Trial], Iterable[tuple]] | None = None
    axis: str = ""
    log: str = "x"
    laws: Callable | None = None
    wins: Callable[[list[Trial]], bool] | None = None


def main(
    studies: Mapping[str, Study], arguments: list[str] | None = None
) -> int:
    """Run the missing trials of a study; print the tables, draw the figure.

    Returns 1 if the study has to reach something and does not.
    """
    options = parse(studies, arguments)
    study = studies[options.study]
    trials = run(study, options)
    print(describe(study, trials))
    report = [trial for trial in trials if trial.purpose == REPORT]
    draw = draw_points if study.points else draw_losses
    with atomic_write(options.csv.with_suffix(".png")) as draft:
        draw(study, report).savefig(draft, format="png")
    return int(options.require and not study.wins(report))


def parse(
    studies: Mapping[str, Study], arguments: list[str] | None
) -> argparse.Namespace:
    """Return the options of the command line, those of the study filled in."""
    lines = [f"{name}: {study.doc}" for name, study in studies.items()]
    rates = functools.partial(split_numbers, kind=float)
    rows = [
        ("study", studies, None, "; ".join(lines)),
        ("--seeds", int, None, "number, from 0; by default the study's"),
        ("--updates", int, None, "of a training; by default the study's"),
        ("--rates", rates, None, "learning rates, with commas"),
        ("--csv", pathlib.Path, None, "file to write, the figure beside it"),
        ("--folder", pathlib.Path, "build/study", "for images and models"),
        ("--require", bool, False, "exit with 1 unless it is as documented"),
    ]
    parser = make_parser(__doc__, rows)
    options = parser.parse_args(arguments)
    study = studies[options.study]
    if options.require and not study.wins:
        parser.error(f"--require: {options.study} has nothing to reach")
    for name in ("seeds", "updates", "rates"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(study, name))
    if not options.csv:
        options.csv = pathlib.Path(f"benchmarks/results/{options.study}.csv")
    options.folder = options.folder / options.study
    return options


def run(study: Study, options: argparse.Namespace) -> list[Trial]:
    """Train the missing trials, and return all trials of the study.

    Trials of the file that other options made stay there, behind these.
    """
    known = {trial.case: trial for trial in read_trials(options.csv, study)}
    trials = []
    with tqdm(desc=options.study, unit="trials") as bar:
        for name in study.arms:
            for case in cases_of(study, name, options, trials):
                trial = known.get(case) or train_trial(study, case, options)
                trials.append(trial)
                rest = [t for t in known.values() if t not in trials]
                rows = map(dataclasses.asdict, [*trials, *rest])
                write_table(options.csv, [r | r.pop("more") for r in rows])
                bar.update()
    return trials


def cases_of(
    study: Study, name: str, options: argparse.Namespace, done: list[Trial]
) -> Iterator[tuple]:
    """Yield the cases of an arm to train, given the trials so far."""
    arm = study.arms[name]
    rates = [arm.rate * rate for rate in options.rates]
    updates = max(round(arm.length * options.updates), 1)
    known = {k: v for k, v in arm.fields.items() if not callable(v)}
    recipe = dataclasses.replace(study.recipe, **known)

    def case(purpose, rate, seed):
        sizes = recipe.batch_size, recipe.image_size
        return purpose, name, rate, seed, updates, *sizes

    if study.choice_seeds:
        chooser = arm.rate_of or name
        if chooser == name:
            for seed in study.choice_seeds:
                for rate in rates:
                    yield case(CHOICE, rate, seed)
        rates = [best_rate(t for t in done if t.arm == chooser)]
    for rate in rates:
        for seed in range(options.seeds):
            yield case(REPORT, rate, seed)


def best_rate(trials: Iterable[Trial]) -> float:
    """Return the rate of the best mean accuracy in the choice.

    Of equals, that of the lowest loss, and then the lowest.
    """
    by_rate = {}
    for trial in trials:
        if trial.purpose == CHOICE:
            by_rate.setdefault(trial.learning_rate, []).append(trial)

    def score(rate):
        found = by_rate[rate]
        loss = statistics.mean(trial.loss for trial in found)
        return statistics.mean(trial.accuracy for trial in found), -loss

    return max(sorted(by_rate), key=score)


def train_trial(
    study: Study, case: tuple, options: argparse.Namespace
) -> Trial:
    """Train one case of a study."""
    purpose, name, rate, seed, updates, *_ = case
    arm = study.arms[name]
    place = Place(purpose, seed, options.seeds, options.folder)
    warmup = updates // 10 if study.warmup is None else study.warmup
    recipe = dataclasses.replace(
        study.recipe,
        **study.splits[purpose],
        learning_rate=rate,
        seed=seed,
        total_steps=updates,
        warmup_steps=min(warmup, updates - 1),
    )
    fields = {k: v(place) if callable(v) else v for k, v in arm.fields.items()}
    recipe = dataclasses.replace(recipe, **fields)
    train = arm.train or train_once
    trained = train(recipe, arm.build, evaluations=study.evaluations)
    found = {**trained.logs, **study.measure(trained)}
    more = {key: kind(found[key]) for key, kind in study.columns.items()}
    return Trial(*case, float(found["accuracy"]), float(found["loss"]), more)


class Stopwatch(keras.callbacks.Callback):
    """Records evaluations, and the time of updates but for the first call."""

    def __init__(self):
        super().__init__()
        self.milliseconds, self.evaluations, self.step = [], [], 0

    def on_train_batch_end(self, batch, logs=None):
        if self.step:
            updates = logs["step"] - self.step
            self.milliseconds.append(1000 * logs["seconds"] / updates)
        self.step = logs["step"]

    def on_epoch_end(self, epoch, logs=None):
        self.evaluations.append((int(logs["step"]), logs["val_accuracy"]))


def train_once(
    recipe: Recipe, build: Callable | None = None, evaluations: int = 1
) -> Trained:
    """Train a recipe with `total_steps`, without checkpoints.

    `build` is that of `prepare`; the last evaluation is at the end.
    """
    keras.backend.clear_session()
    # The rate of the machine is of no interest here: 1 is not measured.
    recipe = dataclasses.replace(recipe, peak_tflops=1.0)
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = prepare(recipe, folder, build=build)
        logs = train_whole(trainer, [stopwatch], evaluations)
    logs |= {"accuracy": logs["val_accuracy"], "loss": logs["val_loss"]}
    milliseconds = statistics.median(stopwatch.milliseconds or [0.0])
    found = tuple(stopwatch.evaluations)
    return Trained(trainer.loop.model, logs, trainer, found, milliseconds)


def train_whole(
    trainer: Trainer, callbacks: Iterable = (), evaluations: int = 1
) -> dict:
    """Train a run of a recipe with `total_steps` without checkpoints."""
    trainer.loop.checkpoints = None
    total = trainer.recipe.total_steps
    return trainer.loop.train(
        trainer.train_batches,
        trainer.eval_batches,
        total_steps=total,
        steps_per_eval=max(total // evaluations, 1),
        eval_steps=trainer.eval_steps,
        steps_per_loop=trainer.recipe.steps_per_loop,
        callbacks=callbacks,
    )


def read_trials(path: pathlib.Path, study: Study) -> list[Trial]:
    """Return the trials of a CSV file; none if there is no file."""
    return [
        Trial(
            **{name: kind(row[name]) for name, kind in COLUMNS.items()},
            more={key: kind(row[key]) for key, kind in study.columns.items()},
        )
        for row in (read_csv(path) if path.exists() else [])
    ]


def group(trials: Iterable[Trial], purpose: str) -> dict:
    """Return the trials of a purpose by arm and rate."""
    groups = {}
    for trial in trials:
        if trial.purpose == purpose:
            key = trial.arm, trial.learning_rate
            groups.setdefault(key, []).append(trial)
    return groups


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def describe(study: Study, trials: list[Trial]) -> str:
    """Return a table of the choice of the rates and one of the report."""
    tables = []
    choice = group(trials, CHOICE)
    if choice:
        rates = sorted({rate for _, rate in choice})
        rows = []
        for arm in dict.fromkeys(arm for arm, _ in choice):
            found = (choice.get((arm, rate), ()) for rate in rates)
            means = (
                percent(statistics.mean(t.accuracy for t in own)) if own else ""
                for own in found
            )
            rows.append([arm, *means])
        titles = ["learning rate", *map("{:g}".format, rates)]
        tables.append(format_table(titles, rows))
    numbers = {k: kind for k, kind in study.columns.items() if kind is not str}
    rows = []
    for (arm, rate), own in group(trials, REPORT).items():
        found = [trial.accuracy for trial in own]
        loss = study.average(trial.loss for trial in own)
        row = [arm, f"{own[0].updates:,}", f"{rate:g}"]
        row += [percent(study.average(found))]
        row += [f"{percent(min(found))} to {percent(max(found))}"]
        row += ["" if math.isnan(loss) else f"{loss:.4f}"]
        for key, kind in numbers.items():
            value = study.average(trial.more[key] for trial in own)
            row.append(f"{value:,.0f}" if kind is int else f"{value:.4g}")
        rows.append(row)
    titles = ["", "updates", "learning rate", "accuracy", "of the seeds"]
    tables.append(format_table([*titles, "loss", *numbers], rows))
    if study.laws:
        for panel, curves in collect_points(study, trials).items():
            lines = [[name, study.laws(c)[1]] for name, c in curves.items()]
            tables.append(format_table(["", panel], lines))
    return "\n\n".join(tables)


def collect_points(study: Study, trials: Iterable[Trial]) -> dict:
    """Return the points of the report: panel -> curve -> x -> list of y."""
    panels = {}
    for trial in trials:
        if trial.purpose == REPORT:
            for panel, curve, x, y in study.points(trial):
                xs = panels.setdefault(panel, {}).setdefault(curve, {})
                xs.setdefault(x, []).append(y)
    return panels


def draw_points(study: Study, trials: list[Trial]):
    """Draw panels side by side: the values of all seeds, a line per curve."""
    panels = collect_points(study, trials)
    figure, all_axes = make_axes(4, len(panels))
    for (panel, curves), axes in zip(panels.items(), all_axes):
        for (name, curve), color in zip(curves.items(), COLORS):
            means = {x: statistics.mean(curve[x]) for x in sorted(curve)}
            line = study.laws and study.laws(curve)[0]
            style = {"color": color, "markersize": 5, "label": name}
            marks = "o" if line else "o-"
            axes.plot(means.keys(), means.values(), marks, **style)
            if line:
                axes.plot([*means], [line(x) for x in means], color=color)
            for x, ys in curve.items():
                dots = {"color": color, "markersize": 3, "alpha": 0.4}
                axes.plot([x] * len(ys), ys, "o", **dots)
        axes.set(xlabel=study.axis, ylabel=panel)
        axes.set(xscale="log" if "x" in study.log else "linear")
        axes.set(yscale="log" if "y" in study.log else "linear")
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in study.log:
                label_round_numbers(axis)
        axes.legend(frameon=False)
    return figure


def label_round_numbers(axis):
    """Label 1, 2 and 5, and their powers of ten, of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def draw_losses(study: Study, trials: list[Trial]):
    """Draw the loss of each arm: a dot for each seed, and the median.

    The loss tells more than the accuracy, which is one of few values.
    """
    arms = list(dict.fromkeys(trial.arm for trial in trials))
    figure, [axes] = make_axes(1 + 0.35 * len(arms))
    for row, arm in enumerate(arms):
        losses = [trial.loss for trial in trials if trial.arm == arm]
        axes.plot(losses, [row] * len(losses), "o", color="0.6", markersize=4)
        axes.plot(statistics.median(losses), row, "|", color="k", markersize=16)
    axes.set_yticks(range(len(arms)), arms)
    axes.margins(y=0.1)
    axes.invert_yaxis()
    axes.set_xlabel("loss on the test images")
    return figure


def make_axes(height: float, number: int = 1) -> tuple:
    """Return a figure and its axes, side by side."""
    from matplotlib.figure import Figure

    size = (7 if number == 1 else 5 * number, height)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    all_axes = figure.subplots(1, number, squeeze=False)[0]
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, all_axes
