"""The driver of the studies, and the settings of each."""

import dataclasses
import functools
import pathlib
import shutil
import types

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from benchmarks import studies, study, study_images
from benchmarks.studies import STUDIES
from benchmarks.study import CHOICE, REPORT, Arm, Place, Study, Trained, Trial
from keras_vit import VARIANTS
from trainers.data.datasets import open_dataset
from trainers.recipes.recipes import RECIPES
from trainers.training.flops import count_flops

SIZES = (1000, 32, 8)  # Updates, images of a batch, pixels.
RESULTS = pathlib.Path(study.__file__).parent / "results"
TWO = Study("two arms", {"a": Arm(), "b": Arm()}, rates=(0.1, 0.2))
# Arm and rate -> accuracy and loss.
ANSWERS = {
    ("a", 0.1): (0.5, 1.0),
    ("a", 0.2): (0.5, 0.9),
    ("b", 0.1): (0.6, 2.0),
    ("b", 0.2): (0.4, 0.1),
}


@pytest.fixture
def tried(monkeypatch):
    """Return the list of the cases that are "trained"."""
    cases = []

    def train_trial(some, case, options):
        cases.append(case)
        return Trial(*case, *ANSWERS[case[1], case[2]])

    monkeypatch.setattr(study, "train_trial", train_trial)
    return cases


def options_for(some, tmp_path, *more):
    line = ["some", "--seeds=2", f"--csv={tmp_path / 'study.csv'}", *more]
    return study.parse({"some": some}, line)


def choice(name, rates=(0.1, 0.2)):
    return [(CHOICE, name, rate, 100, *SIZES) for rate in rates]


def report(name, *rates):
    return [
        (REPORT, name, rate, seed, *SIZES) for rate in rates for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("changes", "more", "expected"),
    [
        (
            {},  # The best by the loss, and by the accuracy.
            (),
            [
                *(choice("a") + report("a", 0.2)),
                *(choice("b") + report("b", 0.1)),
            ],
        ),
        (
            {"choice_seeds": ()},
            ["--rates=0.2,0.1"],
            report("a", 0.2, 0.1) + report("b", 0.2, 0.1),
        ),
        (
            {"arms": {"b": Arm(), "a": Arm(rate_of="b")}},
            (),
            choice("b") + report("b", 0.1) + report("a", 0.1),
        ),
        (
            {"arms": {"a": Arm(rate=2.0), "b": Arm()}, "choice_seeds": ()},
            ["--rates=0.1"],
            report("a", 0.2) + report("b", 0.1),
        ),
    ],
    ids=["best rate", "all rates", "rate of another", "multiple"],
)
def test_what_a_study_trains(tried, tmp_path, changes, more, expected):
    some = dataclasses.replace(TWO, **changes)
    options = options_for(some, tmp_path, *more)
    trials = study.run(some, options)
    assert tried == [trial.case for trial in trials] == expected
    assert study.read_trials(options.csv, some) == trials


def test_the_rate_of_the_best_mean_over_the_seeds_is_chosen():
    found = {0.1: (0.9, 0.1), 0.2: (0.6, 0.5), 0.3: (0.5, 0.6)}
    trials = [
        Trial(CHOICE, "a", rate, seed, *SIZES, accuracy, float("nan"))
        for rate, both in found.items()
        for seed, accuracy in enumerate(both)
    ]
    trials.append(Trial(REPORT, "a", 0.3, 0, *SIZES, 1.0, 0.0))
    assert study.best_rate(trials) == 0.2  # Of equals, the lowest.


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
    larger = dataclasses.replace(TWO.recipe, image_size=16)
    settings = [(20, TWO), (30, dataclasses.replace(TWO, recipe=larger))]
    found = []
    for updates, some in 2 * settings:
        options = options_for(some, tmp_path, f"--updates={updates}")
        found.append(study.run(some, options))
        pixels = some.recipe.image_size
        made = {(t.updates, t.image_size) for t in found[-1]}
        assert made == {(updates, pixels)}
    assert found[:2] == found[2:]
    stored = study.read_trials(options.csv, TWO)
    assert sorted(tried) == sorted(trial.case for trial in stored)
    assert len(tried) == 2 * len(found[0])


def test_a_trial_has_the_settings_and_measures_of_its_arm(
    tmp_path, monkeypatch
):
    recipes = []

    def train(recipe, build, evaluations):
        recipes.append(recipe)
        return Trained(None, {"accuracy": 0.5, "loss": 2.0, "build": build})

    some = dataclasses.replace(
        TWO,
        arms={
            "a": Arm(
                {"weight_decay": lambda place: place.seed / place.seeds},
                build=len,
                train=train,
                length=1.5,
            )
        },
        measure=lambda trained: {"count": 3, "loss": trained.logs["build"]([])},
        columns={"count": int},
    )
    options = options_for(some, tmp_path, "--updates=20", "--rates=0.1")
    trials = study.run(some, options)
    assert [r.weight_decay for r in recipes] == [50, 0, 0.5]
    assert {(r.total_steps, r.warmup_steps) for r in recipes} == {(30, 3)}
    assert recipes[0].train_split == "train[:80%]"
    assert recipes[1].train_split is None
    assert trials[0].accuracy == 0.5 and trials[0].loss == 0
    assert trials[0].more == {"count": 3}


@pytest.mark.parametrize("name", STUDIES)
def test_the_published_rows_are_those_of_the_settings(name, tried, tmp_path):
    """A study that goes on from its published file trains nothing.

    It writes the table and the figure.
    """
    path = tmp_path / "study.csv"
    shutil.copy(RESULTS / f"{name}.csv", path)
    line = [name, f"--csv={path}"]
    line += ["--require"] if STUDIES[name].wins else []
    assert study.main(STUDIES, line) == 0
    assert not tried
    with Image.open(path.with_suffix(".png")) as image:
        assert min(image.size) > 100


# Fields that make a recipe of digits small.
SMALL = {
    "model": "mu/16",
    "patch_size": 2,
    "decoder_depth": 1,
    "total_steps": 2,
    "warmup_steps": 1,
}
# An arm of each study that has a model, images or measures of its own; the
# others only change fields of the recipe.
TRIED_ARMS = {
    "data_size": "ResNet, 10,000 images",
    "compute": "hybrid, medium, length 1",
    "transfer": "transfer",
    "self_supervision": "autoencoder, 10 labels",
    "fine_tuning": "LoRA, rank 8",
    "accuracy_keras_hub": "ours",
}


@pytest.fixture
def small_recipes(monkeypatch, tmp_path):
    """Make pre-trainings short, and the moved digits few."""
    for name in ("digits_pretrain", "mpp_digits", "mae_digits"):
        recipe = dataclasses.replace(RECIPES[name], **SMALL)
        monkeypatch.setitem(RECIPES, name, recipe)
    monkeypatch.setattr(studies, "FIRST_UPDATES", 2)
    painted = dataclasses.replace(studies.PAINTED_RECIPE, model="mu/16")
    monkeypatch.setattr(studies, "PAINTED_RECIPE", painted)
    monkeypatch.setattr(studies, "LARGE_MODEL", "mu/16")
    painted = {
        name: (classes, photo, dict.fromkeys(splits, few), seed)
        for name, (classes, photo, splits, seed) in studies.PAINTED.items()
        for few in [study_images.ImageSplit(0, 0.03, 1)]
    }
    monkeypatch.setattr(studies, "PAINTED", painted)
    sizes = {"train": 100, "validation": 40, "test": 40}
    monkeypatch.setattr(study_images, "SPLIT_SIZES", sizes)


@pytest.mark.slow(70)
@pytest.mark.usefixtures("eagerly", "small_recipes")
@pytest.mark.filterwarnings("ignore:.*does not apply to tf.data functions")
@pytest.mark.parametrize("name, arm", TRIED_ARMS.items())
def test_a_study_runs_at_its_smallest_size(name, arm, tmp_path, capsys):
    some = STUDIES[name]
    arms = {arm: some.arms[arm]}
    if name == "data_size":  # There are 100 images here.
        fields = {"train_split": "train[:100]"}
        arms = {arm: dataclasses.replace(some.arms[arm], fields=fields)}
    recipe = dataclasses.replace(some.recipe, data_dir=str(tmp_path))
    if not some.arms[arm].build:
        patch_size = recipe.patch_size or 2
        small = {"model": "mu/16", "patch_size": patch_size}
        recipe = dataclasses.replace(recipe, **small)
    # What learns a model first makes no choice, which would take as long.
    seeds = some.choice_seeds[:1] if some.arms[arm].build else ()
    some = dataclasses.replace(
        some, arms=arms, recipe=recipe, choice_seeds=seeds
    )
    path = tmp_path / "study.csv"
    line = [name, "--updates=2", "--seeds=1", "--rates=1e-3"]
    line += [f"--csv={path}", f"--folder={tmp_path / 'kept'}"]
    assert study.main({name: some}, line) == 0
    shown = capsys.readouterr().out
    trials = study.read_trials(path, some)
    assert all(0 < trial.loss < 10 for trial in trials)
    results = {(trial.loss, trial.accuracy) for trial in trials}
    assert len(results) > 1 or len(trials) == 1
    assert arm in shown
    assert path.with_suffix(".png").stat().st_size > 1000
    before = path.read_text()
    assert study.main({name: some}, line) == 0
    assert path.read_text() == before


def test_the_images_of_the_choice_are_not_reported():
    digits = open_dataset("digits")
    trained, chosen = (
        digits.ranges(split) for split in study.DIGIT_SPLITS[CHOICE].values()
    )
    assert {name for name, _, _ in trained + chosen} == {"train"}
    assert trained[0][2] <= chosen[0][1]
    assert digits.ranges(digits.eval_split)[0][0] == "test"
    assert study.DIGIT_SPLITS[REPORT] == {}  # The defaults of the data set.
    # Nor do the encoders and classifiers of few labels learn from them.
    assert trained[0][2] >= studies.NUM_TRAINED
    painted = {name: splits for name, (_, _, splits, _) in PAINTED.items()}
    assert painted[CHOICE]["test"].last <= painted[REPORT]["test"].first
    assert painted[REPORT]["train"].last <= painted[REPORT]["test"].first


PAINTED = studies.PAINTED


@pytest.mark.parametrize("labels", [10, 1153])
def test_the_labelled_images_are_those_of_the_seed(labels):
    splits = [
        studies.choose_images(labels, Place(REPORT, seed, 5, pathlib.Path()))
        for seed in (0, 4, 100)
    ]
    last = studies.NUM_TRAINED
    assert splits[0] == splits[2] == f"train[0:{labels}]"
    assert splits[1] == f"train[{last - labels}:{last}]"
    assert studies.choose_images(5, Place(REPORT, 0, 1, None)) == "train[0:5]"


@pytest.mark.parametrize(
    ("accuracies", "wins"),
    [
        ([0.9, 0.9, 0.9, 0.9, 0.4], True),
        ([0.9, 0.9, 0.9, 0.5, 0.5], False),  # A draw is not a win.
        ([0.51, 0.51, 0.51, 0.51, 0.0], False),  # The mean is lower.
        ([0.4, 0.4, 0.4, 0.4, 0.4], False),
    ],
)
def test_transfer_wins_in_the_mean_and_with_four_of_five_seeds(
    accuracies, wins
):
    trials = [
        Trial(REPORT, arm, 0.1, seed, *SIZES, accuracy, 0.0)
        for arm, found in (("transfer", accuracies), ("scratch", [0.5] * 5))
        for seed, accuracy in enumerate(found)
    ]
    assert studies.wins_mostly(trials[::-1]) is wins


def test_one_size_of_the_shape_changes_alone():
    base = vars(studies.BASE)
    names = {"MLP": "mlp_dim", "patch": "patch_size"}
    for arm, config in studies.SHAPES.items():
        size = arm.split()[0]
        changed = {n for n in base if getattr(config, n) != base[n]}
        expected = {names.get(size, size)} - {"base"}
        if size == "all":
            expected = {"depth", "width", "mlp_dim", "patch_size"}
        assert changed - {"num_heads"} == expected
        assert config.width == config.num_heads * studies.HEAD_SIZE


def test_relative_compute_of_the_shape():
    """With 10 tokens, patches of 16 numbers and 10 classes."""
    block = 2 * 10 * 4 * 32**2 + 4 * 10**2 * 32 + 4 * 10 * 32 * 64
    rest = 2 * 9 * 16 * 32 + 2 * 32 * 10
    assert studies.relative_compute("depth 8") == pytest.approx(
        (rest + 8 * block) / (rest + 2 * block)
    )


def test_the_arithmetic_of_a_training():
    trainer = types.SimpleNamespace(
        flops_per_image=10,
        total_steps=100,
        recipe=types.SimpleNamespace(batch_size=4),
    )
    # The backward pass needs twice what the forward pass does.
    counted = studies.count_training(Trained(None, {}, trainer))
    assert counted == {"flops": 3 * 10 * 4 * 100}


def test_models_of_one_size_need_about_the_same_arithmetic():
    dataset = types.SimpleNamespace(channels=1, class_names=["a", "b"])
    models = [s["medium"](None, dataset) for s in studies.FAMILIES.values()]
    flops = [count_flops(model) for model in models]
    assert max(flops) < 1.5 * min(flops)


def test_a_power_law_is_found_with_a_margin():
    errors = {x: [0.5 * 80 / x**0.5, 1.5 * 80 / x**0.5] for x in (1, 4, 16, 64)}
    law, text = studies.fit_power_law(errors)
    assert [law(1), law(4)] == pytest.approx([80, 40])
    assert text == "exponent 0.50 ± 0.00"
    errors[4] = [60]
    law, text = studies.fit_power_law(errors)
    x = np.log([1, 4, 16, 64])
    y = np.log([80, 60, 20, 10])
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    spread = np.sqrt((residual**2).sum() / 2 / ((x - x.mean()) ** 2).sum())
    # The quantile of Student's t for two degrees of freedom is 4.303.
    assert text == f"exponent {-slope:.2f} ± {4.303 * spread:.2f}"
    assert studies.fit_power_law({1: [2.0], 2: [1.0]})[0] is None


def test_moved_images_are_of_the_digits_of_their_split(tmp_path, small_recipes):
    builder = study_images.MovedDigits(data_dir=str(tmp_path))
    digits = load_digits()
    splits = study_images.split_of(digits.target)
    for split, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        assert (splits == split).mean() == pytest.approx(share, abs=0.02)
    places = set()
    for split, size in study_images.SPLIT_SIZES.items():
        own = {
            (np.round(image * (255 / 16)).astype("uint8").tobytes(), label)
            for image, label in zip(
                digits.images[splits == split], digits.target[splits == split]
            )
        }
        examples = list(builder._generate_examples(split))
        assert len(examples) == size
        for _, example in examples:
            image = example["image"][..., 0]
            found = {
                (y, x)
                for y in range(5)
                for x in range(5)
                if (image[y : y + 8, x : x + 8].tobytes(), example["label"])
                in own
                and image.sum() == image[y : y + 8, x : x + 8].sum()
            }
            assert found
            places |= found
    assert len(places) == 25


def test_painted_images_are_the_same_each_time(tmp_path):
    few = study_images.ImageSplit
    splits = {"train": few(0, 0.05, 2), "test": few(0.95, 1, 1)}
    for name in ("one", "other"):
        study_images.write_painted_digits(
            tmp_path / name, range(5), "china.jpg", splits, seed=3
        )
    paths = sorted((tmp_path / "one").rglob("*.png"))
    assert {path.parent.parent.name for path in paths} == {"train", "test"}
    for path in paths:
        other = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("brightness", [20, 200])
def test_a_digit_is_far_from_the_brightness_of_the_photograph(brightness):
    photo = np.full((40, 40, 3), brightness, "uint8")
    rng = np.random.default_rng(0)
    painted = study_images.paint(photo, np.ones((8, 8)), rng).astype(int)
    assert painted.shape == (16, 16, 3)
    assert np.abs(painted - brightness).max() > 60
    assert (painted == brightness).mean() > 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed:UserWarning")
def test_first_updates_of_both_trainers_agree(monkeypatch):
    """From the same weights: rule, batches, loss, decay and clipping do."""
    pytest.importorskip("keras_hub")
    # Two blocks show what six do, in less time.
    row = VARIANTS[RECIPES["digits"].model]
    row = row._replace(config=dataclasses.replace(row.config, depth=2))
    monkeypatch.setitem(VARIANTS, RECIPES["digits"].model, row)
    recipe = dataclasses.replace(
        RECIPES["digits"],
        total_steps=5,
        warmup_steps=2,
        weight_decay=10.0,  # Enough to be seen.
        learning_rate=1e-3,
        train_split="train[:320]",
    )
    dataset = open_dataset(recipe.dataset, train_split=recipe.train_split)
    images = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 1))
    ours, theirs, start = (
        keras.ops.convert_to_numpy(function().model(images.astype("float32")))
        for function in (
            functools.partial(studies.train_from_keras_hub, recipe),
            functools.partial(studies.train_keras_hub, recipe),
            lambda: Trained(studies.build_keras_hub(recipe, dataset), {}),
        )
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert np.abs(theirs - start).max() > 0.1
