import collections

import pytest
from sklearn.datasets import load_digits

from trainers.data.datasets import open_dataset


class TestDigits:
    def test_holds_every_image_of_scikit_learn_once(self, digits):
        def rows(images):
            return sorted(image.tobytes() for image in images)

        found = [
            image.numpy()[..., 0]
            for split in ("train", "test")
            for image, _ in digits.examples(split)
        ]
        source = load_digits().images
        want = (source * (255 / 16)).round().astype("uint8")
        assert rows(found) == rows(want)
        assert digits.num_examples("train") == 1442
        assert digits.num_examples("test") == 355

    def test_labels_belong_to_their_images(self, digits):
        source = load_digits()
        pixels = (source.images * (255 / 16)).round().astype("uint8")
        label_of = {p.tobytes(): t for p, t in zip(pixels, source.target)}
        for image, label in digits.examples("test"):
            assert label_of[image.numpy()[..., 0].tobytes()] == int(label)

    def test_one_fifth_of_each_class_is_for_testing(self, digits):
        count = collections.Counter(
            int(label) for _, label in digits.examples("test")
        )
        every = collections.Counter(load_digits().target.tolist())
        assert all(count[d] == every[d] // 5 for d in range(10))

    def test_describes_itself(self, digits):
        assert digits.class_names == [str(d) for d in range(10)]
        assert digits.channels == 1


class TestHalvesOfTheDigits:
    @pytest.mark.parametrize(
        "name, digits_of",
        [("digits_0to4", range(5)), ("digits_5to9", range(5, 10))],
    )
    def test_are_the_images_of_five_digits(self, digits, name, digits_of):
        half = open_dataset(name)
        assert half.class_names == [str(digit) for digit in digits_of]
        for split in ("train", "test"):
            want = sorted(
                (image.numpy().tobytes(), int(label) - digits_of[0])
                for image, label in digits.examples(split)
                if int(label) in digits_of
            )
            assert want == sorted(
                (image.numpy().tobytes(), int(label))
                for image, label in half.examples(split)
            )
