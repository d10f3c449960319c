"""Batches of images with maps: sizes, what is unknown, and bad pairs."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tests.trainers.mocked import write_metadata
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExampleError, BadExamples
from trainers.data.labels import LabelOptions


@pytest.fixture
def folder(tmp_path):
    """Two splits of images whose maps are their green channels."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 5), ("test", 3)):
        for name in ("images", "masks"):
            (tmp_path / split / name).mkdir(parents=True)
        for index in range(count):
            labels = draws.integers(0, 5, (4, 4)).astype("uint8")
            labels = np.kron(labels, np.ones((4, 4), "uint8"))
            labels[:3] = 255
            pixels = np.repeat(labels[..., None], 3, -1)
            for name, content in (("images", pixels), ("masks", labels)):
                path = tmp_path / split / name / f"{index}.png"
                Image.fromarray(content).save(path)
    return tmp_path


def open_pairs(folder):
    return open_dataset(f"pairs:{folder}", labels=LabelOptions("segment"))


def check(images, maps, weights):
    """The maps are the images, in their numbers from -1 to 1."""
    levels = np.round((images[..., 1] + 1) * 127.5)
    for level, found, weight in zip(levels, maps, weights):
        expected = np.where(level == 255, np.nan, level)
        if not weight:
            expected = np.full(found.shape, np.nan)
        np.testing.assert_array_equal(found, expected)


def test_images_and_maps_come_together(folder):
    dataset = open_pairs(folder)
    batches = [*eval_batches(dataset, image_size=(16, 16), batch_size=2)]
    assert len(batches) == 2
    for images, maps, weights in batches:
        assert maps.shape == (2, 16, 16)
        check(images.numpy(), maps.numpy(), weights.numpy())
    # The last one is filled up.
    np.testing.assert_array_equal(weights, [1, 0])
    batches = train_batches(
        dataset, image_size=(16, 16), batch_size=4, augment="flip_lr"
    )
    for images, maps, weights in batches.take(3):
        check(images.numpy(), maps.numpy(), weights.numpy())
        assert weights.numpy().all()


def test_workers_share_the_batches_of_one(folder):
    dataset = open_pairs(folder)
    options = {
        "image_size": (8, 8),
        "batch_size": 4,
        "augment": "inception_crop|affine(9, 0.1, 0.1)|cutmix",
        "seed": 3,
    }
    whole = next(iter(train_batches(dataset, **options)))
    parts = [
        next(
            iter(
                train_batches(
                    dataset,
                    **options,
                    num_replicas=2,
                    worker=worker,
                    num_workers=2,
                )
            )
        )
        for worker in range(2)
    ]
    for index, array in enumerate(whole):
        both = np.concatenate([part[index] for part in parts])
        np.testing.assert_array_equal(both, array)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "is not there"),
        (lambda path: path.write_bytes(b"no"), "cannot be read as an image"),
        (
            lambda path: Image.new("L", (16, 12)).save(path),
            "12 x 16 pixels, the image 16 x 16",
        ),
        (lambda path: Image.new("L", (16, 16), 7).save(path), "the class 7"),
    ],
)
def test_bad_pairs_are_named_and_skipped(folder, change, reason):
    (folder / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    dataset = open_pairs(folder)
    change(folder / "test/masks/1.png")
    options = {"image_size": (16, 16), "batch_size": 3}
    bad = BadExamples(1)
    [(images, maps, weights)] = eval_batches(
        dataset, **options, bad_examples=bad
    )
    assert [name.rpartition("/")[2] for name in bad.names] == ["1.png"]
    assert sorted(weights.numpy()) == [0, 1, 1]
    check(images.numpy(), maps.numpy(), weights.numpy())
    bad = BadExamples()
    with pytest.raises(BadExampleError, match=f"test/images/1.png.*{reason}"):
        with bad.named_errors():
            list(eval_batches(dataset, **options, bad_examples=bad))


def test_a_data_service_is_refused(folder):
    with pytest.raises(ValueError, match="`data_service`.*cannot read"):
        train_batches(
            open_pairs(folder),
            image_size=(16, 16),
            batch_size=4,
            data_service="grpc://x:1",
        )


def test_an_image_of_which_nothing_is_known_does_not_count(folder):
    dataset = open_pairs(folder)
    Image.new("L", (16, 16), 255).save(folder / "test/masks/0.png")
    [(_, maps, weights)] = eval_batches(
        dataset, image_size=(16, 16), batch_size=3
    )
    assert sorted(weights.numpy()) == [0, 1, 1]
    assert np.isnan(maps.numpy()[weights.numpy() == 0]).all()


@pytest.mark.parametrize(
    ("name", "kind", "classes", "numbers"),
    [
        ("oxford_iiit_pet", "segment", 3, {1: 0, 2: 1, 3: 2}),
        ("scene_parse150", "segment", 150, {0: None, 1: 0, 150: 149}),
        (
            "cityscapes/semantic_segmentation",
            "segment",
            19,
            {0: None, 7: 0, 9: None, 26: 13, 33: 18},
        ),
        ("nyu_depth_v2", "depth", 0, None),
    ],
)
def test_maps_of_tensorflow_datasets(name, kind, classes, numbers, tmp_path):
    rng = np.random.default_rng(0)
    raw = []

    def as_dataset(builder, *arguments, **options):
        size = (480, 640) if kind == "depth" else (20, 30)
        size = (1024, 2048) if "city" in name else size
        values = list(numbers or [0.5, 3.0])
        pixels = rng.integers(0, 256, (*size, 3), "uint8")
        found = rng.choice(values, size)
        raw.append(found)
        encode = tf.io.encode_png
        if kind == "depth":
            feature = {"depth": found.astype("float16")}
        elif name == "scene_parse150":  # The others number the objects.
            noise = rng.integers(0, 9, size)
            channels = np.stack([found, noise, noise], -1).astype("uint8")
            feature = {"annotation": encode(channels)}
        else:
            key = "label" if "city" in name else "mask"
            classes = found[..., None].astype("uint8")
            feature = {f"segmentation_{key}": encode(classes)}
        example = {
            "image_left" if "city" in name else "image": tf.io.encode_png(
                pixels
            ),
            "tfds_id": tf.constant("one"),
            **feature,
        }
        return tf.data.Dataset.from_tensors(example)

    write_metadata(name, ["train", "validation", "test"], tmp_path)
    name = name.partition("/")[0]
    with tfds.testing.mock_data(
        num_examples=1, as_dataset_fn=as_dataset, data_dir=str(tmp_path)
    ):
        dataset = open_dataset(name, str(tmp_path), labels=LabelOptions(kind))
        assert len(dataset.class_names) == classes
        split = dataset.train_split
        [(_, label)] = dataset.examples(split)
    found, expected = label.numpy()[..., 0], raw[-1]
    if numbers:
        table = {n: np.nan if x is None else x for n, x in numbers.items()}
        expected = np.vectorize(table.get, otypes=["float32"])(expected)
    np.testing.assert_array_equal(found, expected.astype("float32"))
