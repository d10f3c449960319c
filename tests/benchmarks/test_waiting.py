import dataclasses

import pytest

from benchmarks import waiting
from keras_vit import VARIANTS


@pytest.mark.parametrize(
    "measure", [waiting.time_first_update, waiting.time_inspection]
)
@pytest.mark.usefixtures("eagerly")
def test_a_program_that_prints_its_seconds_runs(measure, monkeypatch):
    row = VARIANTS["mu/16"]
    config = dataclasses.replace(row.config, image_size=32, num_classes=3)
    monkeypatch.setitem(VARIANTS, "mu/16", row._replace(config=config))
    assert measure("mu/16") != 0
