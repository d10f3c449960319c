"""What a job tells the progress bar about its devices."""

import types

import pytest

from trainers.runs import job
from trainers.runs.job import Job


@pytest.mark.parametrize(
    "peak_tflops, precision, one",
    [(2.0, "float32", 2e12), (None, "float32", 3e9), (None, "float16", 5e9)],
)
def test_the_peak_is_that_of_all_processors(
    monkeypatch, peak_tflops, precision, one
):
    measured = {("float32", "/TPU:0"): 3e9, ("bfloat16", "/TPU:0"): 5e9}
    monkeypatch.setattr(
        job, "measure_peak_flops", lambda *choice: measured[choice]
    )
    strategy = types.SimpleNamespace(
        num_replicas_in_sync=4,
        extended=types.SimpleNamespace(worker_devices=("/TPU:0", "/TPU:1")),
    )
    fake = types.SimpleNamespace(
        loop=types.SimpleNamespace(strategy=strategy),
        recipe=types.SimpleNamespace(
            peak_tflops=peak_tflops, precision=precision
        ),
    )
    assert Job.peak_flops.fget(fake) == 4 * one
