import dataclasses
import types

import pytest

from benchmarks import waiting
from keras_vit import VARIANTS


@pytest.mark.parametrize(
    ("measure", "times", "seconds"),
    [
        (waiting.time_first_update, (1, 6, 8), 3),
        (waiting.time_inspection, (1, 6), 2.5),
    ],
)
@pytest.mark.usefixtures("eagerly")
def test_a_program_that_prints_its_seconds_runs(
    measure, times, seconds, monkeypatch
):
    row = VARIANTS["mu/16"]
    config = dataclasses.replace(row.config, image_size=32, num_classes=3)
    monkeypatch.setitem(VARIANTS, "mu/16", row._replace(config=config))
    clock = types.SimpleNamespace(perf_counter=iter(times).__next__)
    monkeypatch.setattr(waiting, "time", clock)
    assert measure("mu/16") == seconds
