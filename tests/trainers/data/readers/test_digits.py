import collections

from sklearn.datasets import load_digits

from trainers.data.datasets import open_dataset


def test_holds_every_image_of_scikit_learn_once_with_its_label(digits):
    source = load_digits()
    pixels = (source.images * (255 / 16)).round().astype("uint8")
    found = [
        (image.numpy()[..., 0].tobytes(), int(label))
        for split in ("train", "test")
        for image, label in digits.examples(split)
    ]
    want = [(p.tobytes(), label) for p, label in zip(pixels, source.target)]
    assert sorted(found) == sorted(want)
    assert digits.num_examples("train") == 1442
    assert digits.class_names == [str(digit) for digit in range(10)]
    assert digits.channels == 1
    # One fifth of each class is for testing.
    tested = collections.Counter(label for _, label in found[1442:])
    every = collections.Counter(source.target.tolist())
    assert all(tested[digit] == every[digit] // 5 for digit in range(10))


def test_halves_are_the_images_of_five_digits(digits):
    assert open_dataset("digits_0to4").class_names == list("01234")
    half = open_dataset("digits_5to9")
    assert half.class_names == list("56789")
    for split in ("train", "test"):
        want = sorted(
            (image.numpy().tobytes(), int(label) - 5)
            for image, label in digits.examples(split)
            if label >= 5
        )
        assert want == sorted(
            (image.numpy().tobytes(), int(label))
            for image, label in half.examples(split)
        )
