import dataclasses
import functools
import pathlib
import shutil

import pytest

from benchmarks import (
    activations,
    compute,
    data_size,
    pooling,
    position_tables,
    positions,
    shape,
    study,
    study_images,
)
from benchmarks.study import CHOICE, CHOICE_SEED, REPORT, Arm, Study, StudyTrial
from trainers.data.datasets import open_dataset

SIZES = (1000, 32, 8)  # Updates, images of a batch, pixels.


def arm(name, accuracies, purpose=REPORT, rate=0.01):
    """Return a trial of an arm for each accuracy, by seed."""
    return [
        StudyTrial(purpose, name, rate, seed, *SIZES, accuracy, 1 - accuracy)
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.fixture
def tried(monkeypatch):
    """Return the list of the cases that are "trained"."""
    cases = []

    def train_trial(study, case):
        cases.append(case)
        return StudyTrial(*case, *ANSWERS[case[1], case[2]])

    monkeypatch.setattr(study, "train_trial", train_trial)
    return cases


# Arm and rate -> accuracy and loss.
ANSWERS = {
    ("a", 0.1): (0.5, 1.0),
    ("a", 0.2): (0.5, 0.9),
    ("b", 0.1): (0.6, 2.0),
    ("b", 0.2): (0.4, 0.1),
}
TWO = Study("two", {"a": Arm(), "b": Arm()}, rates=(0.1, 0.2))


def options_for(some, tmp_path, *more):
    line = ["--seeds=2", f"--csv={tmp_path / 'study.csv'}", *more]
    return study.parse_options(some, study.__doc__, line)


def test_each_arm_reports_its_best_rate(tried, tmp_path):
    options = options_for(TWO, tmp_path)
    trials = study.run(TWO, options)
    choice = [
        (CHOICE, name, rate, CHOICE_SEED, *SIZES)
        for name in "ab"
        for rate in (0.1, 0.2)
    ]
    best = {"a": 0.2, "b": 0.1}  # By the loss, and by the accuracy.
    report = [
        (REPORT, name, rate, seed, *SIZES)
        for name, rate in best.items()
        for seed in (0, 1)
    ]
    assert tried == [*choice[:2], *report[:2], *choice[2:], *report[2:]]
    assert [trial.case for trial in trials] == tried
    assert study.read_study(options.csv) == trials


def test_a_study_of_rates_reports_all_of_them(tried, tmp_path):
    some = dataclasses.replace(TWO, chooses_rate=False)
    trials = study.run(some, options_for(some, tmp_path, "--rates=0.2,0.1"))
    assert [trial.case for trial in trials] == [
        (REPORT, name, rate, seed, *SIZES)
        for name in "ab"
        for rate in (0.2, 0.1)
        for seed in (0, 1)
    ]


def test_an_arm_takes_the_rate_of_another(tried, tmp_path):
    arms = {"b": Arm(), "a": Arm(rate_of="b")}
    some = dataclasses.replace(TWO, arms=arms)
    options = options_for(some, tmp_path)
    study.run(some, options)
    choice = [(CHOICE, "b", rate, CHOICE_SEED, *SIZES) for rate in (0.1, 0.2)]
    report = [
        (REPORT, name, 0.1, seed, *SIZES) for name in "ba" for seed in (0, 1)
    ]
    assert tried == [*choice, *report]
    assert study.count_cases(some, options) == len(tried)


@dataclasses.dataclass(frozen=True)
class CountedTrial(StudyTrial):
    steps: int
    note: str


def test_an_arm_has_its_own_model_length_and_measures(tmp_path, monkeypatch):
    made = []

    def train_once(recipe, build, measure):
        made.append((recipe.total_steps, recipe.warmup_steps, build))
        logs = {"val_accuracy": 0.5, "val_loss": 2.0, "accuracy": 0.9}
        return {**logs, "loss": 0.1, **measure(recipe)}

    monkeypatch.setattr(study, "train_once", train_once)
    some = dataclasses.replace(
        TWO,
        arms={"a": Arm(build=len, length=1.5), "b": Arm()},
        kind=CountedTrial,
        measure=lambda recipe: {"steps": recipe.total_steps, "note": "1 2"},
    )
    options = options_for(some, tmp_path, "--updates=20", "--rates=0.1")
    trials = study.run(some, options)
    assert made == 3 * [(30, 3, len)] + 3 * [(20, 2, None)]
    assert trials[0] == CountedTrial(
        CHOICE, "a", 0.1, 100, 30, 32, 8, 0.5, 2.0, 30, "1 2"
    )
    assert study.read_study(options.csv, CountedTrial) == trials


@pytest.mark.parametrize("text", ["much", "0.1,", "0.1,-1", "nan"])
def test_rates_that_are_no_rates_are_refused(text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        options_for(TWO, tmp_path, f"--rates={text}")
    assert f"not positive numbers: {text!r}" in capsys.readouterr().err


def test_an_interrupted_study_goes_on(tried, tmp_path):
    options = options_for(TWO, tmp_path)
    trials = study.run(TWO, options)
    whole = options.csv.read_text()
    lines = whole.splitlines(keepends=True)
    # As if it had been interrupted, and as if a result in its middle was lost.
    for kept in (lines[:4], lines[:3] + lines[4:]):
        options.csv.write_text("".join(kept))
        tried.clear()
        assert study.run(TWO, options) == trials
        assert len(tried) == len(lines) - len(kept)
        assert options.csv.read_text() == whole


def test_rows_of_other_settings_stay_and_are_not_taken(tried, tmp_path):
    recipes = (TWO.recipe, dataclasses.replace(TWO.recipe, image_size=16))
    settings = [  # Updates and pixels.
        (20, dataclasses.replace(TWO, recipe=recipes[0])),
        (30, dataclasses.replace(TWO, recipe=recipes[0])),
        (30, dataclasses.replace(TWO, recipe=recipes[1])),
    ]
    found = []
    for count, (updates, some) in enumerate(2 * settings):
        options = options_for(some, tmp_path, f"--updates={updates}")
        trials = study.run(some, options)
        if count < len(settings):
            found.append(trials)
        pixels = some.recipe.image_size
        assert trials == found[count % len(settings)]
        assert {(t.updates, t.image_size) for t in trials} == {
            (updates, pixels)
        }
    stored = study.read_study(options.csv)
    assert sorted(tried) == sorted(trial.case for trial in stored)
    assert len(set(tried)) == len(tried) == 3 * len(found[0])


def test_an_arm_may_have_a_multiple_of_the_rates(tried, tmp_path):
    arms = {"a": Arm(rate=2.0), "b": Arm()}
    some = dataclasses.replace(TWO, arms=arms, chooses_rate=False)
    study.run(some, options_for(some, tmp_path, "--rates=0.1", "--seeds=1"))
    assert [(name, rate) for _, name, rate, *_ in tried] == [
        ("a", 0.2),
        ("b", 0.1),
    ]


def test_a_file_without_a_column_is_refused(tried, tmp_path):
    options = options_for(TWO, tmp_path)
    options.csv.write_text("purpose,arm,learning_rate,seed,accuracy,loss\n")
    assert study.read_study(options.csv) == []
    with options.csv.open("a") as file:
        file.write("report,a,0.1,0,0.5,1.0\n")
    missing = "study.csv without updates, batch_size, image_size"
    with pytest.raises(ValueError, match=missing):
        study.run(TWO, options)
    assert not tried


def test_the_images_of_the_choice_are_not_reported():
    digits = open_dataset("digits")
    trained, chosen = (
        digits.ranges(split) for split in study.DIGIT_SPLITS[CHOICE].values()
    )
    assert {name for name, _, _ in trained + chosen} == {"train"}
    assert trained[0][2] <= chosen[0][1]
    assert digits.ranges(digits.eval_split)[0][0] == "test"
    assert study.DIGIT_SPLITS[REPORT] == {}  # The defaults of the data set.


def test_a_table_has_medians_of_the_report():
    trials = [
        *arm("a", [0.0, 1.0], CHOICE, 0.3),
        *arm("a", [0.9, 0.5, 0.6]),
        *arm("b", [0.25], rate=0.003),
    ]
    table = study.describe_arms(trials).splitlines()
    assert table[2:] == [
        "| a | 0.01 | 60.0 % | 50.0 to 90.0 % | 0.400 |",
        "| b | 0.003 | 25.0 % | 25.0 to 25.0 % | 0.750 |",
    ]


def test_the_table_of_rates_has_means(tmp_path):
    options = options_for(pooling.STUDY, tmp_path, "--rates=0.01,0.1")
    trials = [
        *arm("class token", [0.5, 0.6]),
        *arm("class token", [0.1], rate=0.1),
        *arm("average", [0.7]),
        *arm("average", [0.2], rate=0.1),
    ]
    assert pooling.describe(trials, options).splitlines()[2:] == [
        "| class token | 55.0 % | 10.0 % |",
        "| average | 70.0 % | 20.0 % |",
    ]


# Of the studies whose tables do not have a row for each arm.
SHOWN_NAMES = {"data_size": ["ViT, small", "| 10,000 |", "| 3,000 |"]}


def with_few_images(arm):
    """Return an arm with a hundredth of its images."""
    fields = dict(arm.fields)
    if "train_split" in fields:
        fields["train_split"] = fields["train_split"].replace("00]", "]")
    return dataclasses.replace(arm, fields=fields)


# Of the studies that do not run their first two arms.
TRIED_ARMS = {"positions": ["2-D, every block, shared", "relative"]}


def with_a_small_model(recipe):
    """Return a recipe of digits whose model has one narrow block."""
    return dataclasses.replace(recipe, model="mu/16", patch_size=2)


RESULTS = pathlib.Path(study.__file__).parent / "results"
MODULES = [
    activations,
    pooling,
    positions,
    position_tables,
    shape,
    data_size,
    compute,
]


@pytest.mark.parametrize("module", MODULES)
def test_the_published_rows_are_those_of_the_settings(module, tried, tmp_path):
    """A study that goes on from its published file trains nothing."""
    some = module.STUDY
    path = tmp_path / "study.csv"
    shutil.copy(RESULTS / f"{some.name}.csv", path)
    options = study.parse_options(some, module.__doc__, [f"--csv={path}"])
    trials = study.run(some, options)
    assert tried == [] and len(trials) == study.count_cases(some, options)


@pytest.mark.slow(115)
@pytest.mark.usefixtures("eagerly")
@pytest.mark.filterwarnings("ignore:.*does not apply to tf.data functions")
@pytest.mark.parametrize(
    "module", MODULES, ids=lambda module: module.STUDY.name
)
def test_each_study_runs_at_its_smallest_size(
    module, tmp_path, monkeypatch, capsys
):
    """Two arms of each, which differ in the model or the training."""
    tried_arms = TRIED_ARMS.get(module.STUDY.name, [*module.STUDY.arms][:2])
    arms = {name: module.STUDY.arms[name] for name in tried_arms}
    if module is positions:
        # The choice of a rate by each arm runs in the other studies.
        first, second = tried_arms
        arms[second] = dataclasses.replace(arms[second], rate_of=first)
    if module in (activations, positions, position_tables):
        recipe = with_a_small_model(module.STUDY.recipe)
        monkeypatch.setattr(
            module, "STUDY", dataclasses.replace(module.STUDY, recipe=recipe)
        )
    if module.STUDY.recipe.dataset == "moved_digits":
        sizes = {"train": 100, "validation": 40, "test": 40}
        monkeypatch.setattr(study_images, "SPLIT_SIZES", sizes)
        arms = {name: with_few_images(arm) for name, arm in arms.items()}
        recipe = dataclasses.replace(
            module.STUDY.recipe, data_dir=str(tmp_path)
        )
        monkeypatch.setattr(
            module, "STUDY", dataclasses.replace(module.STUDY, recipe=recipe)
        )
    small = dataclasses.replace(module.STUDY, arms=arms)
    monkeypatch.setattr(module, "STUDY", small)
    path = tmp_path / "study.csv"
    line = ["--updates=2", "--seeds=1", "--rates=1e-3", f"--csv={path}"]
    recipes = []
    train_once = study.train_once
    monkeypatch.setattr(
        study,
        "train_once",
        lambda recipe, *more: (
            recipes.append(recipe) or train_once(recipe, *more)
        ),
    )
    assert module.main(line) == 0
    shown = capsys.readouterr()
    assert f"{small.name}: 100%" in shown.err
    shown_names = SHOWN_NAMES.get(small.name, arms)
    assert all(name in shown.out for name in shown_names)
    trials = study.read_study(path, small.kind)
    assert all(0 < trial.loss < 10 for trial in trials)
    assert len({trial.loss for trial in trials}) == len(trials)
    assert path.with_suffix(".png").stat().st_size > 1000
    for recipe, trial in zip(recipes, trials, strict=True):
        for field, value in arms[trial.arm].fields.items():
            assert getattr(recipe, field) == value
        assert (recipe.seed, recipe.total_steps) == (trial.seed, 2)
    again = functools.partial(module.main, line)
    assert again() == 0 and len(recipes) == len(trials)
