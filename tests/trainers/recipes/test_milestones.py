"""The recipes whose learning rate falls in steps, and their milestones."""

import pytest

from trainers.optim.schedules import make_schedule
from trainers.recipes.recipes import RECIPES

# bit_hyperrule.py of big_transfer: the end of the warm-up, the updates after
# which the rate of 0.003 falls to a tenth, and the end.
SUPPORTS = {
    "pets_r50x1": (100, 200, 300, 400, 500),
    "cifar10_r50x1": (500, 3_000, 6_000, 9_000, 10_000),
    "imagenet_r50x1": (500, 6_000, 12_000, 18_000, 20_000),
}


def rate_of_bit(supports, step):
    """Return the rate as the code of BiT computes it."""
    if step < supports[0]:
        return 0.003 * step / supports[0]
    return 0.003 * 10.0 ** -sum(support < step for support in supports[1:])


@pytest.mark.parametrize("name", SUPPORTS)
def test_the_learning_rate_is_that_of_the_hyperrule(name):
    recipe, supports = RECIPES[name], SUPPORTS[name]
    assert recipe.total_steps == supports[-1]
    schedule = make_schedule(recipe, recipe.total_steps)
    steps = {1, *range(0, supports[-1], supports[-1] // 50)}
    for support in supports:
        steps |= {support - 1, support, support + 1}
    for step in sorted(steps - {supports[-1] + 1}):
        want = rate_of_bit(supports, step)
        assert float(schedule(step)) == pytest.approx(want, rel=1e-5)


def test_the_rate_of_resnet50_falls_at_the_epochs_of_its_source():
    """Epochs 30, 60 and 80 of 90, of 1,251 updates."""
    recipe = RECIPES["resnet50_i1k"]
    schedule = make_schedule(recipe, 90 * 1_251)
    for epoch, before in ((30, 0.4), (60, 0.04), (80, 0.004)):
        last = epoch * 1_251
        rates = [float(schedule(step)) for step in (last, last + 1)]
        assert rates == pytest.approx([before, before / 10], rel=1e-5)
