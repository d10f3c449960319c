"""The handwritten digits of scikit-learn, as TFDS data sets."""

import tensorflow_datasets as tfds


class Digits(tfds.core.GeneratorBasedBuilder):
    """The 1,797 handwritten digits that scikit-learn ships.

    The images have 8x8 pixels with 17 grey levels. Every fifth image of each
    class is in the test split, so the split is not random and its classes are
    balanced.
    """

    VERSION = tfds.core.Version("1.0.0")
    CLASSES = range(10)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits, shipped with scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(
                        names=[str(digit) for digit in self.CLASSES]
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(is_test=False),
            "test": self._generate_examples(is_test=True),
        }

    def _generate_examples(self, is_test):
        from sklearn.datasets import load_digits

        digits = load_digits()
        seen = [0] * 10
        for index, (image, digit) in enumerate(
            zip(digits.images, digits.target)
        ):
            seen[digit] += 1
            if (seen[digit] % 5 == 0) == is_test and digit in self.CLASSES:
                pixels = (image * (255 / 16)).round().astype("uint8")
                yield index, {"image": pixels[..., None], "label": str(digit)}


class Digits0To4(Digits):
    """The digits from 0 to 4, to pre-train on."""

    CLASSES = range(5)


class Digits5To9(Digits):
    """The digits from 5 to 9, to fine-tune on."""

    CLASSES = range(5, 10)
