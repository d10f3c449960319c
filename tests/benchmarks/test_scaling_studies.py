"""The models, the tables and the panels of the studies of scaling."""

import types

import pytest

from benchmarks import compute, data_size, shape
from benchmarks.study import REPORT, StudyTrial
from benchmarks.study_images import STUDY_SIDE
from benchmarks.study_models import STUDY_MODELS
from trainers.loop.flops import count_flops

SIZES = (300, 32, STUDY_SIDE)  # Updates, images of a batch, pixels.


def test_one_size_of_the_shape_changes_alone():
    base = vars(shape.BASE)
    names = {"MLP": "mlp_dim", "patch": "patch_size"}
    for dimension, all_changes in shape.SCALED.items():
        for changes in all_changes:
            config = shape.CONFIGS[shape.name_arm(dimension, changes)]
            changed = {n for n in base if getattr(config, n) != base[n]}
            expected = {names.get(dimension, dimension)}
            if dimension == "all":
                expected = {"depth", "width", "mlp_dim", "patch_size"}
            assert changed - {"num_heads"} == expected
            assert config.width == config.num_heads * shape.HEAD_SIZE


def test_relative_compute_of_the_shape():
    """With 10 tokens, patches of 16 numbers and 10 classes."""
    block = 2 * 10 * 4 * 32**2 + 4 * 10**2 * 32 + 4 * 10 * 32 * 64
    rest = 2 * 9 * 16 * 32 + 2 * 32 * 10
    assert shape.relative_compute("depth 8") == pytest.approx(
        (rest + 8 * block) / (rest + 2 * block)
    )


def test_the_panels_and_the_table_of_the_shape():
    trials = [
        StudyTrial(REPORT, arm, 0.003, seed, *SIZES, accuracy, 1 - accuracy)
        for arm, both in {"base": (0.5, 0.6), "depth 4": (0.7, 0.8)}.items()
        for seed, accuracy in enumerate(both)
    ]
    accuracy, loss = shape.make_panels(trials)
    more = shape.relative_compute("depth 4")
    assert accuracy.curves["depth"] == {1: [50, 60], more: [70, 80]}
    assert loss.curves["width"] == {1: [0.5, 0.4]}
    assert shape.describe(trials).splitlines()[3] == (
        "| depth 4 | 1.97 | 0.003 | 75.0 % | 70.0 to 80.0 % | 0.250 |"
    )


def test_the_panels_and_the_table_of_the_data_size():
    trials = [
        data_size.ProbedTrial(
            REPORT,
            data_size.name_arm(model, number),
            0.01,
            seed,
            *SIZES,
            accuracy,
            0.3,
            accuracy / 2,
        )
        for model, number, accuracies in (
            ("ViT, small", 100, (0.2, 0.3)),
            ("ViT, small", 1_000, (0.6, 0.8)),
            ("ResNet", 100, (0.4, 0.5)),
            ("ResNet", 1_000, (0.9, 0.9)),
        )
        for seed, accuracy in enumerate(accuracies)
    ]
    panels = data_size.make_panels(trials)
    assert panels[1].curves["ViT, small"][1_000] == [30, 40]
    assert data_size.describe(panels[0]).splitlines() == [
        "test accuracy (%):",
        "",
        "| training images | ViT, small | ResNet |",
        "|---|---|---|",
        "| 100 | 25.0 % (20.0 to 30.0) | 45.0 % (40.0 to 50.0) |",
        "| 1,000 | 70.0 % (60.0 to 80.0) | 90.0 % (90.0 to 90.0) |",
    ]


def test_the_arithmetic_of_a_training():
    job = types.SimpleNamespace(
        flops_per_image=10,
        total_steps=100,
        recipe=types.SimpleNamespace(batch_size=4),
    )
    # The backward pass needs twice what the forward pass does.
    assert compute.count_training(job) == {"flops": 3 * 10 * 4 * 100}


def test_a_family_that_follows_a_law_gets_it():
    """The mean error over the seeds does, and another family is too small."""
    trials = [
        compute.CountedTrial(
            REPORT,
            compute.name_arm("ViT", *training),
            0.003,
            seed,
            *SIZES,
            1 - factor * 0.8 / flops**0.5,
            0.3,
            flops,
        )
        for training, flops in zip(compute.TRAININGS, (16.0, 1.0, 4.0, 64.0))
        for seed, factor in enumerate((0.5, 1.5))
    ]
    small = compute.name_arm("ResNet", *compute.TRAININGS[0])
    trials.append(
        compute.CountedTrial(REPORT, small, 0.01, 0, *SIZES, 0.9, 0.3, 4.0)
    )
    curves = compute.collect_errors(trials)
    assert list(curves["ViT"]) == [1, 4, 16, 64]
    assert curves["ViT"][4] == pytest.approx([20, 60])
    laws = compute.fit_laws(curves)
    assert list(laws) == ["ViT"]
    assert laws["ViT"].exponent == pytest.approx(0.5)
    assert laws["ViT"].error_at(1) == pytest.approx(80)
    assert "| ViT | 0.50 ± 0.00 |" in compute.describe_laws(laws)
    assert "| ResNet, medium, length 1 |" in compute.describe_trainings(trials)


def test_models_of_one_size_need_about_the_same_arithmetic():
    dataset = types.SimpleNamespace(channels=1, class_names=["a", "b"])
    models = [sizes["medium"](None, dataset) for sizes in STUDY_MODELS.values()]
    assert all(
        m.input_shape == (None, STUDY_SIDE, STUDY_SIDE, 1) for m in models
    )
    flops = [count_flops(model) for model in models]
    assert max(flops) < 1.5 * min(flops)
