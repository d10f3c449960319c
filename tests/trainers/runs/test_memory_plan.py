"""Against all ways of computing a batch, tried one after the other."""

import itertools

import pytest

from trainers.runs.memory import Memory, describe_plan, plan_memory

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


def test_few_needs_are_estimated():
    calls = []

    def estimate(*way):
        calls.append(way)
        return need(*way)

    # The sum of the gradients, 1 GB, is not in the need of the whole batch.
    plan_memory(estimate, 7 * GB + 1, PARTS, (False, True))
    assert calls == [(1, False), (8, False), (16, False)]
    calls.clear()
    plan_memory(estimate, GB, PARTS, (False, True))
    assert calls == [*itertools.product((1, 64), (False,))] + [
        (1, True),
        (64, True),
    ]


@pytest.mark.parametrize(
    "available, line",
    [
        (36 * GB, "Batch 64: needs 35.0 GB, 36.0 GB are available."),
        (
            24 * GB,
            "Batch 64 in 2 parts: 64 images at once need 35.0 GB, 24.0 GB are "
            "available.",
        ),
        (
            4.3 * GB,
            "Batch 64 in 16 parts with rematerialization: without it, 64 "
            "images at once need 35.0 GB, 64 parts need 4.50 GB, 4.30 GB are "
            "available.",
        ),
        (
            3 * GB,
            "Batch 64 in 64 parts with rematerialization: needs 4.06 GB, 3.00 "
            "GB are available. Nothing needs less: without it, 64 images at "
            "once need 35.0 GB, 64 parts need 4.50 GB.",
        ),
    ],
)
def test_the_line_names_the_way_and_the_needs(available, line):
    assert describe_plan(plan(available), 64, 1) == line


def test_the_line_of_several_devices():
    assert describe_plan(plan(20 * GB), 256, 4) == (
        "Batch 256 on 4 devices in 2 parts: 64 images at once need 35.0 GB, "
        "20.0 GB are available."
    )


def test_the_line_of_a_way_that_flags_choose():
    assert describe_plan(plan(8 * GB, (4,)), 64, 1) == (
        "Batch 64 in 4 parts with rematerialization: without it, 4 parts need "
        "12.0 GB, 8.00 GB are available."
    )
    assert describe_plan(plan(GB, (1,), (False,)), 64, 1) == (
        "Batch 64: needs 35.0 GB, 1.00 GB are available."
    )
