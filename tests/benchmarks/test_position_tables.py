import itertools
import types

import numpy as np
import pytest

from benchmarks import position_tables, study
from benchmarks.harness import write_table
from benchmarks.position_tables import TableTrial, contrast_neighbours
from benchmarks.study import REPORT
from keras_vit import VisionTransformer, ViTConfig

ARMS = list(position_tables.STUDY.arms)


BESIDE, BELOW = (0, 1), (1, 0)  # Rows and columns between two patches.


@pytest.mark.parametrize(
    "axis, sides, number",
    [(None, {BESIDE, BELOW}, 14), (1, {BESIDE}, 8), (0, {BELOW}, 6)],
)
def test_neighbours_share_a_side(axis, sides, number):
    similarity = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2, 3))
    neighbours, others = [], []
    places = list(itertools.product(range(2), range(3)))
    for (y, x), (v, u) in itertools.permutations(places, 2):
        steps = abs(y - v), abs(x - u)
        if steps in sides:
            neighbours.append(similarity[y, x, v, u])
        if steps not in {BESIDE, BELOW}:
            others.append(similarity[y, x, v, u])
    assert (len(neighbours), len(others)) == (number, 16)
    assert contrast_neighbours(similarity, axis) == pytest.approx(
        np.mean(neighbours) - np.mean(others)
    )


def test_equal_embeddings_have_no_contrast():
    assert contrast_neighbours(np.ones((4, 4, 4, 4))) == 0


@pytest.fixture(scope="module")
def model():
    """Return a model of 2x2 patches; the class token has the first row.

    The embeddings of the two left patches are parallel, and orthogonal to
    those of the two right ones, which are opposite to each other.
    """
    model = VisionTransformer(
        ViTConfig(
            width=4, depth=1, mlp_dim=4, num_heads=1, patch_size=2, image_size=4
        )
    )
    table = [[9, 9, 9, 9], [1, 0, 0, 0], [0, 2, 0, 0], [3, 0, 0, 0]]
    table += [[0, -1, 0, 0]]
    [weight] = model.get_layer("position_embedding").weights
    weight.assign(np.reshape(table, weight.shape))
    return model


def make_trial(model, arm, seed, accuracy=0.9, contrast=None):
    job = types.SimpleNamespace(loop=types.SimpleNamespace(model=model))
    measured = position_tables.measure_table(job)
    if contrast is not None:
        measured["contrast"] = contrast
    rate = 0.003 * position_tables.STUDY.arms[arm].rate
    values = 1000, 32, 8, accuracy, 0.5
    return TableTrial(REPORT, arm, rate, seed, *values, **measured)


def test_a_trial_has_the_similarities_of_its_model(model, tmp_path):
    trial = make_trial(model, ARMS[0], 0)
    want = [[1, 0, 1, 0], [0, 1, 0, -1], [1, 0, 1, 0], [0, -1, 0, 1]]
    assert np.array_equal(trial.similarity, np.reshape(want, (2, 2, 2, 2)))
    # Patches below each other have 1 and -1, all others 0.
    assert trial.contrast == 0
    write_table(tmp_path / "trials.csv", [vars(trial)])
    assert study.read_study(tmp_path / "trials.csv", TableTrial) == [trial]


def test_the_table_has_medians(model):
    trials = [
        make_trial(model, ARMS[0], seed, accuracy, contrast)
        for seed, (accuracy, contrast) in enumerate(
            [(0.5, 0.1), (0.9, 0.5), (0.6, 0.2)]
        )
    ]
    assert position_tables.describe(trials).splitlines()[2] == (
        f"| {ARMS[0]} | 1,000 | 0.0015 | 60.0 % | 0.20 | 0.10 to 0.50 "
        "| 0.00 | 0.00 |"
    )


def test_the_picture_has_a_panel_for_each_arm_with_numbers_from_1(model):
    trials = [make_trial(model, arm, seed) for arm in ARMS for seed in (0, 1)]
    panels = position_tables.draw(trials).axes[: len(ARMS)]
    assert [axes.get_title() for axes in panels] == [
        "1,000 updates, rate 0.0015, decay 0.01",
        "1,000 updates, rate 0.003, decay 0.1",
        "1,000 updates, rate 0.003, decay 0.1",
    ]
    for axes in panels:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            assert [label.get_text() for label in labels] == ["1", "2"]
        [image] = axes.images
        assert image.get_clim() == (-1, 1)
        values = image.get_array().compressed()
        assert np.array_equal(np.unique(values), [-1, 0, 1])


def test_the_settings_have_the_ratios_of_the_paper():
    """7, 7 and 14 epochs; 2e-4, 4e-4 and 4e-4; 0.01, 0.1 and 0.1."""
    arms = position_tables.STUDY.arms.values()
    assert [arm.length for arm in arms] == [1, 1, 14 / 7]
    assert [arm.rate for arm in arms] == [2e-4 / 4e-4, 1, 1]
    assert [arm.fields["weight_decay"] for arm in arms] == [0.01, 0.1, 0.1]
