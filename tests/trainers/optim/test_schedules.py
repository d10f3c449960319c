import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.optim.schedules import DECAYS, WarmupSchedule


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(
    "arguments, changes, want",
    [
        # The first update of a warm-up has rate 0, and the peak follows it.
        ((0.5, 14, 4), {}, [0, 0.125, 0.25, 0.375, 0.5]),
        # 1 / sqrt(1 + n / 3) is 1 / 2 nine updates behind the warm-up.
        (
            (2.0, 12, 2, "rsqrt"),
            {"timescale": 3},
            [0, 1] + [2 / math.sqrt(1 + n / 3) for n in range(9)] + [1],
        ),
        # The milestones are the updates 3, 5 and 7, which have the old rate.
        (
            (2.0, 10, 2, "steps"),
            {"milestones": (0.3, 0.5, 2 / 3)},
            [0, 1, 2, 2, 0.2, 0.2, 0.02, 0.02, 0.002, 0.002, 0.002],
        ),
        # The decay ends at the final fraction.
        (
            (4.0, 6, 2, "linear"),
            {"final_fraction": 0.1},
            [0, 2, 4, 3.1, 2.2, 1.3, 0.4, 0.4],
        ),
        # 0.4 + 3.6 * (1 + cos(pi * p)) / 2 at p of 0, 1/4, 1/2, 3/4 and 1.
        (
            (4.0, 6, 2, "cosine"),
            {"final_fraction": 0.1},
            [0, 2, 4, 3.472792206, 2.2, 0.927207794, 0.4, 0.4],
        ),
        # A third is lost at each update of the cool-down.
        (
            (6.0, 8, 2, "constant"),
            {"cooldown_steps": 3},
            [0, 3, 6, 6, 6, 6, 4, 2, 0, 0],
        ),
        # 6 - n behind the warm-up.
        (
            (6.0, 8, 2, "linear"),
            {"cooldown_steps": 3},
            [0, 3, 6, 5, 4, 3, 2 * 2 / 3, 1 / 3, 0, 0],
        ),
        (
            (6.0, 8, 2, "rsqrt"),
            {"cooldown_steps": 3, "timescale": 5},
            [0, 3, 6]
            + [6 / math.sqrt(1 + n / 5) for n in (1, 2, 3)]
            + [4 / math.sqrt(1.8), 2 / math.sqrt(2), 0, 0],
        ),
    ],
)
def test_rates_are_the_closed_form_at_every_update(arguments, changes, want):
    schedule = WarmupSchedule(*arguments, **changes)
    found = rates(schedule, range(len(want)))
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay", DECAYS)
def test_step_may_be_an_integer_tensor_of_a_graph(decay):
    schedule = WarmupSchedule(3.0, 9, 2, decay, cooldown_steps=2)
    in_graph = tf.function(schedule)
    for step in range(9):
        want = float(schedule(step))
        got = in_graph(tf.constant(step, tf.int64))
        assert float(got) == pytest.approx(want, abs=1e-6)


def test_without_warmup_the_first_update_has_the_peak():
    schedule = WarmupSchedule(3.0, total_steps=5)
    assert float(schedule(0)) == 3.0
    for step in (5, 99):  # After the end, the rate stays.
        assert float(schedule(step)) == pytest.approx(0, abs=1e-7)
    # The defaults of two decays.
    schedule = WarmupSchedule(1.0, total_steps=10**6, decay="rsqrt")
    assert float(schedule(30_000)) == pytest.approx(0.5)
    schedule = WarmupSchedule(1.0, total_steps=20_000, decay="steps")
    found = rates(schedule, (6_000, 6_001, 12_000, 12_001, 18_000, 18_001))
    np.testing.assert_allclose(found, [1, 0.1, 0.1, 0.01, 0.01, 0.001], 1e-6)


@pytest.mark.parametrize("decay, fraction", [("linear", 0.1), ("steps", 0)])
def test_config_round_trip(decay, fraction):
    schedule = WarmupSchedule(0.1, 20, 5, decay, 3, fraction, 7.0, (0.4, 0.8))
    config = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == schedule.get_config()
    assert rates(again, range(20)) == rates(schedule, range(20))


@pytest.mark.parametrize(
    "choices, message",
    [
        ({"warmup_steps": 10}, "`warmup_steps` must be fewer.*=10"),
        ({"warmup_steps": -1}, "`warmup_steps` must be fewer.*=-1"),
        ({"total_steps": 0}, "`warmup_steps` must be fewer.*total_steps=0"),
        ({"decay": "cosin"}, "'cosine', 'linear', 'constant'"),
        ({"warmup_steps": 5, "cooldown_steps": 6}, "`cooldown_steps` must fit"),
        ({"cooldown_steps": -1}, "`cooldown_steps` must fit.*=-1"),
        ({"final_fraction": 1.5}, "`final_fraction` must be from 0 to 1.*1.5"),
        ({"final_fraction": 0.1, "decay": "rsqrt"}, "must be 0 for 'rsqrt'"),
        ({"milestones": (0.6, 0.3)}, "`milestones` must ascend.*0.6, 0.3"),
        ({"milestones": (0.5, 1.0)}, "`milestones` must ascend.*0.5, 1.0"),
        ({"timescale": 0}, "`timescale` must be positive.*=0"),
    ],
)
def test_impossible_numbers_are_errors(choices, message):
    with pytest.raises(ValueError, match=message):
        WarmupSchedule(**{"peak": 1.0, "total_steps": 10, **choices})
