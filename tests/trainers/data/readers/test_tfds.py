import collections
import hashlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from tests.trainers.data.reading import take
from tests.trainers.mocked import write_metadata
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.data.readers.tfds import DATASETS
from trainers.data.readers.vtab import VTAB_TASKS

MOCKED = {
    # name: splits, classes, pixels, the splits to use
    "cifar10": ("train test", 10, 32, "train test"),
    "cifar100": ("train test", 100, 32, "train test"),
    "oxford_flowers102": ("train test validation", 102, None, "train test"),
    "oxford_iiit_pet": ("train test", 37, None, "train test"),
    "imagenet2012": ("train validation test", 1000, None, "train validation"),
    "imagenet2012_real": ("validation", 1000, None, " validation"),
    "imagenet_v2": ("test", 1000, None, " test"),
    "imagenet2012_corrupted/fog_3": ("validation", 1000, 224, " validation"),
    "mnist": ("train test", 10, 28, "train test"),
}
OTHER_NAMES = {"imagenet_v2": "imagenet_v2/matched-frequency"}  # In TFDS.
SUBSETS = ("imagenet_a", "imagenet_r")


@pytest.mark.parametrize("name", MOCKED)
def test_any_data_set_of_tfds(name, tmp_path):
    """TFDS makes up the examples; nothing is downloaded."""
    splits, classes, size, used = MOCKED[name]
    write_metadata(OTHER_NAMES.get(name, name), splits.split(), tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        dataset = open_dataset(name)
        train, _, test = used.partition(" ")
        assert (dataset.train_split or "", dataset.eval_split) == (train, test)
        assert dataset.reader.image_shape[:2] == (size, size)
        assert len(dataset.class_names) == classes
        [(images, labels, weights)] = take(
            eval_batches(dataset, image_size=(24, 16), batch_size=8), -1
        )
        rows = list(dataset.reader.read([(test, 0, 8)]))
    assert images.shape == (8, 24, 16, dataset.channels)
    assert labels.shape == (8, classes)
    assert rows[3][2].numpy().decode().endswith("__3")
    for row, label, weight in zip(rows, labels, weights):
        want = np.unique(row[1])
        np.testing.assert_array_equal(np.flatnonzero(label), want)
        assert weight == bool(len(want)) and np.all(label <= 1)


def test_data_set_without_labels_is_an_error(tmp_path):
    write_metadata("div2k", ["train", "validation"], tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        with pytest.raises(ValueError, match="features `image` and `label`"):
            open_dataset("div2k")


def test_table_names_are_all_tested():
    tested = {name.partition("/")[0] for name in MOCKED} - {"mnist"}
    digits = {"digits", "digits_0to4", "digits_5to9", "digits_in_photos"}
    with_maps = {"scene_parse150", "cityscapes", "nyu_depth_v2"}
    tested |= digits | with_maps
    assert set(DATASETS) == tested | {*SUBSETS} | VTAB_TASKS.keys()


# Digests of imagenet_a_synsets.txt and imagenet_r_synsets.txt of timm 1.0.
@pytest.mark.parametrize(
    "name, digest",
    [("imagenet_a", "ff8c384504d3ec59"), ("imagenet_r", "354baa0a46566aa6")],
)
def test_a_test_set_of_200_classes(name, digest, tmp_path):
    """Its labels are among the 1,000 of ImageNet; others are left out."""
    write_metadata(name, ["test"], tmp_path, test=100)
    with tfds.testing.mock_data(num_examples=100, data_dir=str(tmp_path)):
        dataset = open_dataset(name)
        stored = tfds.builder(name, data_dir=tmp_path)
        # What is made up depends on the features that are read.
        rows = stored.as_dataset(
            split="test",
            decoders=tfds.decode.PartialDecoding(
                {"image": True, "label": True},
                {"image": tfds.decode.SkipDecoding()},
            ),
        )
        truths = [int(row["label"]) for row in rows]
        names = stored.info.features["label"].names
        [(_, labels, weights)] = take(
            eval_batches(dataset, image_size=(8, 8), batch_size=100), -1
        )
    assert dataset.model_class_names == names and len(names) == 1000
    assert len(set(dataset.class_names)) == 200
    ids = " ".join(dataset.class_names).encode()
    assert hashlib.sha256(ids).hexdigest().startswith(digest)
    assert [names[i] for i in dataset.logit_columns] == dataset.class_names
    known = [names[truth] in dataset.class_names for truth in truths]
    assert 0 < sum(known) < 100
    np.testing.assert_array_equal(weights, known)
    for truth, label, is_known in zip(truths, labels, known):
        if is_known:
            assert dataset.class_names[np.argmax(label)] == names[truth]


def test_an_empty_data_dir_is_the_default_not_the_current_folder(
    tmp_path, monkeypatch
):
    """As `--data_dir="$DATA_DIR"` gives, where the variable is not set."""
    monkeypatch.chdir(tmp_path)
    assert open_dataset("digits", "").num_examples("train") > 0
    assert not list(tmp_path.iterdir())


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
