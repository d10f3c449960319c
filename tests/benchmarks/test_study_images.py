import numpy as np
from sklearn.datasets import load_digits

from benchmarks.study_images import (
    SPLIT_SIZES,
    MovedDigits,
    place_digit,
    split_of,
)


def test_of_ten_digits_of_a_class_seven_are_for_training():
    labels = load_digits().target
    splits = split_of(labels)
    assert set(splits) == set(SPLIT_SIZES)
    for label in range(10):
        shares = [
            (splits[labels == label] == split).mean()
            for split in ("train", "validation", "test")
        ]
        assert np.allclose(shares, [0.7, 0.1, 0.2], atol=0.02)


def test_a_digit_is_moved_and_nothing_else():
    digit, rng = np.full((8, 8), 16.0), np.random.default_rng(0)
    places = set()
    for _ in range(300):
        image = place_digit(digit, rng)
        assert image.shape == (12, 12, 1) and image.dtype == np.uint8
        rows, columns, _ = np.nonzero(image)
        y, x = rows.min(), columns.min()
        assert (image[y : y + 8, x : x + 8] == 255).all()
        assert image.sum() == 255 * 64
        places.add((y, x))
    assert len(places) == 25


def test_images_are_of_the_digits_of_their_split(tmp_path, monkeypatch):
    sizes = {"train": 30, "validation": 10, "test": 20}
    monkeypatch.setattr("benchmarks.study_images.SPLIT_SIZES", sizes)
    builder = MovedDigits(data_dir=str(tmp_path))
    digits = load_digits()
    splits = split_of(digits.target)
    for split, size in sizes.items():
        own = {
            (np.round(image * (255 / 16)).astype("uint8").tobytes(), label)
            for image, label in zip(
                digits.images[splits == split], digits.target[splits == split]
            )
        }
        examples = list(builder._generate_examples(split))
        assert len(examples) == size
        for _, example in examples:
            image = example["image"][..., 0]
            windows = {
                (image[y : y + 8, x : x + 8].tobytes(), example["label"])
                for y in range(5)
                for x in range(5)
            }
            assert windows & own
