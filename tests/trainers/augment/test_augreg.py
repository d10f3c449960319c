import pytest

from tests.trainers.augment.seeds import image_operation
from trainers.augment.augreg import AUGREG_LEVELS, describe_augreg


@pytest.mark.parametrize("level", AUGREG_LEVELS)
def test_augreg_levels_are_texts_that_can_be_read(level, image):
    text = describe_augreg(level)
    result = image_operation(text, (8, 8))(image, (0, 0))
    assert result.shape == (8, 8, 3)
    assert ("randaugment" in text) == (level != "none")
    assert ("mixup" in text) == (level not in ("none", "light1"))


def test_augreg_levels_are_those_of_the_paper():
    assert describe_augreg("none") == "inception_crop|flip_lr"
    assert describe_augreg("light1").endswith("|flip_lr|randaugment(2, 0)")
    for level, end in {
        "light2": "randaugment(2, 10)|mixup(0.2)",
        "medium1": "randaugment(2, 15)|mixup(0.2)",
        "medium2": "randaugment(2, 15)|mixup(0.5)",
        "strong1": "randaugment(2, 20)|mixup(0.5)",
        "strong2": "randaugment(2, 20)|mixup(0.8)",
    }.items():
        assert describe_augreg(level) == f"inception_crop|flip_lr|{end}"
    with pytest.raises(ValueError, match="`level` must be one of 'none'"):
        describe_augreg("light0")
