import math

import keras
import numpy as np
import pytest

from trainers.schedules import DECAYS, WarmupSchedule


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


def test_first_update_of_a_warmup_has_rate_zero_and_peak_follows_it():
    schedule = WarmupSchedule(0.5, total_steps=14, warmup_steps=4)
    np.testing.assert_allclose(
        rates(schedule, range(5)), [0, 0.125, 0.25, 0.375, 0.5], rtol=1e-6
    )


@pytest.mark.parametrize(
    "decay, expected",
    [
        ("cosine", lambda p: 0.5 * (1 + math.cos(math.pi * p))),
        ("linear", lambda p: 1 - p),
        ("constant", lambda p: 1.0),
    ],
)
def test_decay_is_the_closed_form_at_every_update(decay, expected):
    schedule = WarmupSchedule(2.0, total_steps=12, warmup_steps=2, decay=decay)
    got = rates(schedule, range(2, 12))
    want = [2.0 * expected((step - 2) / 10) for step in range(2, 12)]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_every_decay_is_tested_above():
    assert set(DECAYS) == {"cosine", "linear", "constant"}


def test_without_warmup_the_first_update_has_the_peak():
    assert float(WarmupSchedule(3.0, total_steps=5)(0)) == 3.0


def test_after_the_end_the_rate_stays_at_its_last_value():
    assert float(WarmupSchedule(1.0, 10)(10)) == pytest.approx(0, abs=1e-7)
    assert float(WarmupSchedule(1.0, 10)(99)) == pytest.approx(0, abs=1e-7)


def test_config_round_trip():
    schedule = WarmupSchedule(0.1, 20, 5, "linear")
    config = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == schedule.get_config()
    assert rates(again, range(20)) == rates(schedule, range(20))


def test_warmup_as_long_as_the_training_is_an_error():
    with pytest.raises(ValueError, match="`warmup_steps` must be fewer.*=7"):
        WarmupSchedule(1.0, total_steps=7, warmup_steps=7)


def test_unknown_decay_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="'cosine', 'linear', 'constant'"):
        WarmupSchedule(1.0, total_steps=7, decay="cosin")
