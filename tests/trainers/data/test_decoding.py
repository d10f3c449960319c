import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.decoding import cut_window, decode_image
from tests import pictures
from tests.trainers.data.reading import assert_equal, join, noise, take
from trainers.data import decoding
from trainers.data.batches import to_model_input, train_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExamples


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
