"""The benchmark of merged tokens."""

import dataclasses

import pytest

from benchmarks import merging
from keras_vit import VARIANTS, VisionTransformer
from tests.tiny import tiny_config


@pytest.mark.parametrize("count", [0, 3, 16])
def test_the_tokens_that_are_left_are_counted(count):
    model = VisionTransformer(tiny_config(merged_tokens=count))
    tokens = model.get_layer("encoder_norm").output
    assert merging.count_left(model, count) == tokens.shape[1]


@pytest.fixture(autouse=True)
def shallow(monkeypatch):
    row = VARIANTS["Pico/2"]
    config = dataclasses.replace(row.config, depth=2)
    monkeypatch.setitem(VARIANTS, "Pico/2", row._replace(config=config))


def test_the_command_measures_a_variant(capsys):
    merging.main(
        ["--models=Pico/2", "--merged_tokens=2", "--rounds=1"]
        + ["--batch_size=1"]
    )
    rows = capsys.readouterr().out.splitlines()
    assert rows[-2].startswith("| Pico/2 | 0 | 17 | 1.00 |")
    assert rows[-1].startswith("| Pico/2 | 2 | 13 | ")


def test_the_command_measures_patch_dropout(capsys):
    merging.main(
        ["--models=Pico/2", "--patch_dropout=0.5", "--rounds=1"]
        + ["--batch_size=1"]
    )
    rows = capsys.readouterr().out.splitlines()
    assert rows[-2].startswith("| Pico/2 | 0.0 | 1.00 |")
    assert rows[-1].startswith("| Pico/2 | 0.5 | ")
