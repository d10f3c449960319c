import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainers.data.reading import Undecodable, join, noise, take
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExampleError, BadExamples, DataError

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
