import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.decoding import cut_window, decode_image
from tests import pictures
from tests.trainers.data.reading import (
    Undecodable,
    assert_equal,
    join,
    noise,
    take,
)
from trainers.data import decoding
from trainers.data.batches import eval_batches, to_model_input, train_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExampleError, BadExamples, DataError


class TestWindows:
    """Only the window of the first operation is decoded from a JPEG."""

    @pytest.fixture
    def jpegs(self, tmp_path):
        """Return a folder of six photos, two of them turned, and a PNG."""
        path = tmp_path / "train/class"
        path.mkdir(parents=True)
        pixels = np.kron(noise((12, 10, 3)), np.ones((8, 8, 1), "uint8"))
        for index in range(6):
            exif = Image.Exif()
            if index % 3 == 2:
                exif[0x0112] = 6
            image = Image.fromarray(np.roll(pixels, index))
            image.save(path / f"{index}.jpg", exif=exif)
        image.save(path / "6.png")
        return tmp_path

    def batches(self, path, **changes):
        dataset = open_dataset(f"folder:{path}", eval_split="train")
        choices = {
            "image_size": (16, 16),
            "batch_size": 7,
            "augment": "inception_crop|flip_lr",
            "seed": 3,
            **changes,
        }
        return take(train_batches(dataset, **choices), 2)

    def test_give_what_whole_images_give(self, jpegs, monkeypatch):
        found = self.batches(jpegs)
        calls = []

        def decode_window(encoded, pick_window, channels):
            image = decode_image(encoded)
            calls.append(image)
            return cut_window(image, pick_window(tf.shape(image)))

        monkeypatch.setattr(decoding, "decode_window", decode_window)
        for one, other in zip(found, self.batches(jpegs)):
            assert_equal(one, other)
        assert calls

    def test_of_turned_photos_are_upright(self, jpegs):
        """As Pillow turns them; a whole image is the one window here."""
        for file in (jpegs / "train/class").iterdir():
            target = jpegs / "train" / file.stem / file.name
            target.parent.mkdir()
            file.rename(target)
        for augment in ("inception_crop(16, 1)", "resize(16)"):
            images, labels, _ = join(self.batches(jpegs, augment=augment))
            for image, label in zip(images, labels.argmax(-1)):
                [file] = (jpegs / "train" / str(label)).iterdir()
                turned = ImageOps.exif_transpose(Image.open(file))
                want = to_model_input(np.array(turned, "float32"), (16, 16))
                np.testing.assert_allclose(image, want, atol=0.15)

    def test_do_not_hide_that_a_file_is_cut_off(self, jpegs):
        file = jpegs / "train/class/0.jpg"
        file.write_bytes(file.read_bytes()[:-200])
        bad_examples = BadExamples(1)
        _, _, weights = join(
            self.batches(
                jpegs,
                augment="inception_crop(smallest=0.01)",
                bad_examples=bad_examples,
            )
        )
        assert bad_examples.names == [str(file)]
        assert weights.sum() == 12


def test_every_kind_of_file_is_decoded_as_by_pillow(tmp_path):
    """By content, whatever the name says; and what cannot be read is named."""
    files = pictures.COMMON | pictures.OTHER
    folder = tmp_path / "test/all"
    folder.mkdir(parents=True)
    for name, content in (files | pictures.UNREADABLE).items():
        # Names that say nothing, or something wrong.
        (folder / f"{name}.jpg").write_bytes(content)
    dataset = open_dataset(f"folder:{tmp_path}", eval_split="test")
    bad_examples = BadExamples(100)
    decode = decoding.make_decode(dataset, bad_examples)
    examples = dataset.reader.read(dataset.ranges("test"))
    for (image, _, is_good), name in examples.map(
        lambda *example: (decode(*example), example[2])
    ):
        name = name.numpy().decode().rpartition("/")[2][:-4]
        assert is_good == (name in files), name
        if name in files:
            want = read_image(io.BytesIO(files[name]))
            np.testing.assert_array_equal(image, want, name)
            found = decoding.decode_file(files[name])
            np.testing.assert_array_equal(found, want, name)
    names = {name.rpartition("/")[2][:-4] for name in bad_examples.names}
    assert names == {*pictures.UNREADABLE}
    for name in names:
        with pytest.raises(ValueError, match=name):
            decoding.decode_file(pictures.UNREADABLE[name], name=name)


def test_a_window_of_a_file_that_is_no_jpeg(tmp_path):
    folder = tmp_path / "train/all"
    folder.mkdir(parents=True)
    for name in ("exif.png", "tiff.jpg", "film.webp", "far.jpg"):
        content = (pictures.COMMON | pictures.OTHER)[name]
        (folder / f"{name}.jpg").write_bytes(content)
    dataset = open_dataset(f"folder:{tmp_path}", eval_split="train")
    choices = {"image_size": (30, 30), "batch_size": 4}
    [images] = [
        batch[0]
        for batch in take(
            train_batches(dataset, augment="inception_crop(30, 1)", **choices),
            1,
        )
    ]
    whole = take(train_batches(dataset, augment="resize(30)", **choices), 1)
    np.testing.assert_allclose(images, whole[0][0], atol=0.02)


DAMAGES = {
    "a/0": lambda file: b"",
    "b/4": lambda file: tf.io.encode_jpeg(noise()).numpy()[:300],
    "c/5": lambda file: file.read_bytes()[:200],
}


class TestBadExamples:
    @pytest.fixture
    def copy(self, folder, tmp_path):
        """Return a copy of the folder that a test may damage."""
        for file in folder.rglob("*.png"):
            target = tmp_path / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
        return tmp_path

    def batches(self, path, count, bad_examples=None, augment="flip_lr"):
        return take(
            train_batches(
                open_dataset(f"folder:{path}"),
                image_size=(8, 8),
                batch_size=8,
                augment=augment,
                bad_examples=bad_examples,
            ),
            count,
        )

    def damage(self, copy, names=DAMAGES):
        """Damage files to train on, and return their paths."""
        files = [copy / f"train/{name}.png" for name in names]
        for name, file in zip(names, files):
            file.write_bytes(DAMAGES[name](file))
        return [str(file) for file in files]

    def test_stay_in_their_slots_without_weight(self, copy):
        """An empty file, a truncated JPEG and a truncated PNG."""
        want = join(self.batches(copy, 6))
        files = self.damage(copy)
        bad_examples = BadExamples(3)
        images, labels, weights = join(self.batches(copy, 6, bad_examples))
        assert sorted(bad_examples.names) == files  # Once, not each epoch.
        slots = np.flatnonzero(weights == 0)
        assert len(slots) == 6 and slots[2] < 24 <= slots[3]
        assert not images[slots].any() and not labels[slots].any()
        others = weights == 1
        np.testing.assert_array_equal(images[others], want[0][others])
        np.testing.assert_array_equal(labels[others], want[1][others])

    def test_without_a_record_the_first_stops(self, copy):
        self.damage(copy)
        with pytest.raises(tf.errors.OpError):
            self.batches(copy, 3)

    @pytest.mark.parametrize(
        "names, message",
        [
            (["b/4"], "/train/b/4.png` cannot be read.*--max_bad_examp.*=0$"),
            ([*DAMAGES], "read as images; .*=2$"),
        ],
    )
    def test_stop_when_there_are_more_than_allowed(self, copy, names, message):
        files = self.damage(copy, names)
        bad_examples = BadExamples(len(names) - 1)
        with pytest.raises(BadExampleError, match=message):
            with bad_examples.named_errors():
                self.batches(copy, 3, bad_examples)
        assert sorted(bad_examples.names) == files

    def test_a_file_that_is_gone(self, copy):
        dataset = open_dataset(f"folder:{copy}")
        (copy / "test/b/4.png").unlink()
        bad_examples = BadExamples(1)
        batches = take(
            eval_batches(
                dataset,
                image_size=(8, 8),
                batch_size=7,
                bad_examples=bad_examples,
            ),
            -1,
        )
        assert join(batches)[2].sum() == 6
        assert bad_examples.names == [str(copy / "test/b/4.png")]

    @pytest.mark.parametrize("kind", ["bytes", "channels"])
    def test_examples_of_tfds_have_a_name(self, digits, kind):
        """The promise of TFDS is checked, also before images are cached."""

        class Wrong(Undecodable):
            def decode(self, encoded):
                if kind == "bytes":
                    return self.reader.decode(encoded)
                image = tf.zeros((8, 8, tf.strings.length(encoded)), tf.uint8)
                return tf.ensure_shape(image, (8, 8, 1))

        dataset = dataclasses.replace(
            digits, train_split="train[700:701]", reader=Wrong(digits.reader)
        )
        bad_examples = BadExamples()
        with pytest.raises(
            BadExampleError, match="digits-train.tfrecord-00000-of-00001__700"
        ):
            with bad_examples.named_errors():
                batches = train_batches(
                    dataset,
                    image_size=(8, 8),
                    batch_size=1,
                    bad_examples=bad_examples,
                )
                take(batches, 1)

    def test_errors_of_files_are_named_without_the_nodes_of_tensorflow(
        self, copy
    ):
        file = copy / "train/b/4.png"
        Image.fromarray(noise((12, 7, 3))).save(file)
        with pytest.raises(DataError) as error:
            with BadExamples().named_errors():
                self.batches(copy, 3, augment="central_crop")
        assert str(error.value).endswith(f"shape 12 7 3 {file}")
        assert "\n" not in str(error.value)
