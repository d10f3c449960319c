from tests.trainers.augment.seeds import image_operation
from trainers.recipes.augreg import AUGREG_LEVELS


def test_augreg_levels_are_texts_that_can_be_read(image):
    for level, text in AUGREG_LEVELS.items():
        result = image_operation(text, (8, 8))(image, (0, 0))
        assert result.shape == (8, 8, 3)
        assert ("randaugment" in text) == (level != "none")
        assert ("mixup" in text) == (level not in ("none", "light1"))
