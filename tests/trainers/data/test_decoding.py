import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.image_decoding import cut_window, decode_image
from tests.trainers.data.reading import assert_equal, join, noise, take
from trainers.data import decoding
from trainers.data.bad_examples import BadExamples
from trainers.data.batches import train_batches
from trainers.data.datasets import open_dataset
from trainers.data.model_inputs import to_model_input


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
