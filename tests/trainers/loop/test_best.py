import math

import pytest

from trainers.loop.loop import Best


def judge(best, *evaluations):
    """Return the numbers of the evaluations whose model is saved."""
    saved = []
    for number, (accuracy, loss) in enumerate(evaluations):
        best.save = lambda number=number: saved.append(number)
        best.judge({"val_accuracy": accuracy, "val_loss": loss})
    return saved


def test_a_higher_accuracy_or_the_same_with_a_lower_loss_is_better():
    rows = [(0.5, 2.0), (0.4, 1.0), (0.5, 1.5), (0.5, 1.5), (0.6, 3.0)]
    assert judge(Best(), *rows) == [0, 2, 4]
    assert judge(Best(), (0.0, math.inf)) == [0]


@pytest.mark.parametrize("patience", [1, 3])
def test_training_is_over_after_so_many_without_a_better_one(patience):
    best = Best(patience=patience)
    judge(best, (0.5, 1.0))
    for _ in range(patience):
        assert not best.is_over
        judge(best, (0.4, 1.0))
    assert best.is_over
    judge(best, (0.6, 1.0))
    assert not best.is_over


@pytest.mark.parametrize("patience", [None, 0])
def test_without_patience_it_is_never_over(patience):
    best = Best(patience=patience)
    judge(best, *[(0.5, 1.0)] * 100)
    assert not best.is_over
