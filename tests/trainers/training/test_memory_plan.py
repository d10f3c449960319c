"""Against all ways of computing a batch, tried one after the other."""

import pytest

from trainers.training.memory import Memory, describe_plan, plan_memory

GB = 10**9
PARTS = (1, 2, 4, 8, 16, 32, 64)


def need(parts, use_remat):
    """Return a need of 3 GB, and of 32 GB of a batch of 64 images."""
    activations = 32 * GB // parts // (8 if use_remat else 1)
    return Memory(GB, GB if parts == 1 else 2 * GB, GB, 0, activations)


def plan(available, parts=PARTS, remat=(False, True)):
    return plan_memory(need, available, parts, remat)


@pytest.mark.parametrize("parts", [(1,), (1, 2, 3, 6), PARTS, (4,)])
@pytest.mark.parametrize("remat", [(False,), (True,), (False, True)])
def test_the_first_way_that_fits_is_taken(parts, remat):
    ways = [(count, again) for again in remat for count in parts]
    for half_gb in range(1, 80):
        available = half_gb * GB // 2
        found = plan(available, parts, remat)
        fitting = [w for w in ways if need(*w).total <= available]
        want = fitting[0] if fitting else ways[-1]
        assert found[:2] == want
        assert found.fits == bool(fitting)
        assert found.memory == need(*want)


@pytest.mark.parametrize(
    "available, words",
    [
        (36, "Batch 64: needs 35.0 GB, 36.0 GB are available."),
        (24, "in 2 parts: 64 images at once need 35.0 GB"),
        (4.3, "in 16 parts with rematerialization: without it, 64 images"),
        (3, "GB are available. Nothing needs less: without it, 64 images"),
    ],
)
def test_the_line_names_the_way_and_the_needs(available, words):
    assert words in describe_plan(plan(available * GB), 64, 1)


def test_the_line_of_several_devices_and_of_a_way_that_flags_choose():
    line = describe_plan(plan(20 * GB), 256, 4)
    assert "Batch 256 on 4 devices in 2 parts: 64 images at once" in line
    line = describe_plan(plan(8 * GB, (4,)), 64, 1)
    assert "without it, 4 parts need 12.0 GB" in line
