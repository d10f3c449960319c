import dataclasses

import keras
import numpy as np
import pytest

from benchmarks import accuracy_keras_hub as accuracy
from benchmarks.harness import read_csv, write_table
from keras_vit import VARIANTS
from trainers.data.datasets import open_dataset
from trainers.recipes.recipes import RECIPES

RESULTS = [
    accuracy.Result(package, seed, share, loss, 302_154, 1380, 60.0)
    for package, rows in {
        "ours": [(0.75, 0.5), (0.875, 0.25)],
        "keras-hub": [(0.5, 1.0), (1.0, 2.0)],
        "ours from keras-hub's start": [(0.25, 1.0), (0.25, 1.0)],
    }.items()
    for seed, (share, loss) in enumerate(rows)
]


def test_table_has_a_row_for_each_seed_and_the_means():
    assert accuracy.describe(RESULTS).splitlines()[2:] == [
        "| 0 | 75.00 % | 0.5000 | 50.00 % | 1.0000 | 25.00 % | 1.0000 |",
        "| 1 | 87.50 % | 0.2500 | 100.00 % | 2.0000 | 25.00 % | 1.0000 |",
        "| mean | 81.25 % | 0.3750 | 75.00 % | 1.5000 | 25.00 % | 1.0000 |",
    ]


def test_csv_file_has_a_row_for_each_run(tmp_path):
    path = tmp_path / "results.csv"
    write_table(path, accuracy.csv_rows(RESULTS))
    rows = read_csv(path)
    assert len(rows) == 6
    assert rows[1]["package"] == "ours"
    assert float(rows[1]["accuracy"]) == 0.875


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
        epochs=1,
        warmup_steps=2,
        weight_decay=10.0,  # Enough to be seen.
        learning_rate=1e-3,
        train_split="train[:320]",  # Five updates.
        peak_tflops=1.0,
    )
    dataset = open_dataset(recipe.dataset, train_split=recipe.train_split)
    ours, theirs, start = (
        function(recipe, dataset)
        for function in (
            accuracy.train_ours_from_keras_hub,
            accuracy.train_keras_hub,
            lambda *arguments: (accuracy.build_keras_hub(*arguments), 5),
        )
    )
    assert ours[1] == theirs[1] == 5
    images = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 1))
    ours, theirs, start = (
        keras.ops.convert_to_numpy(model(images.astype("float32")))
        for model, _ in (ours, theirs, start)
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert np.abs(theirs - start).max() > 0.1
