"""Reconstructions: pictures with a model's predictions for hidden patches."""

import os

import keras
import numpy as np
import tensorflow as tf

from keras_vit.preprocessing.description import Normalization
from trainers.paths import Path
from trainers.runs.pictures import plot_reconstructions

NUM_DRAWN = 8


class Reconstructions(keras.callbacks.Callback):
    """Draw some images before, with hidden patches, and reconstructed.

    At each evaluation the picture is written to TensorBoard and to a file.

    Shapes:
        images: (B, H, W, C), as the model reads them.

    Args:
        images: The images, of the evaluation split.
        normalization: Mean and deviation of the images.
        averages: Returns values to use in place of the trainable weights, or
            None for the weights.
        log_dir: The folder of TensorBoard.
        path: The PNG file.
    """

    def __init__(
        self,
        images: np.ndarray,
        normalization: Normalization,
        averages,
        log_dir: Path,
        path: Path,
    ):
        super().__init__()
        self.images = np.asarray(images, "float32")
        self.normalization = normalization
        self.averages = averages
        self.path = path
        # A separate folder, because TensorBoard reads one file per folder.
        self._writer = tf.summary.create_file_writer(
            os.fspath(log_dir / "reconstructions")
        )

    def on_epoch_end(self, epoch, logs=None):
        values = self.averages()
        variables = self.model.trainable_variables
        # The scope does not change the variables on any device.
        with keras.StatelessScope(zip(variables, values) if values else None):
            covered, predicted = self.model.reconstruct(self.images)
        plot_reconstructions(
            self.images, covered, predicted, self.normalization, self.path
        )
        picture = tf.io.decode_png(self.path.read_bytes(), channels=3)
        with self._writer.as_default(int(logs["step"])):
            tf.summary.image("reconstructions", picture[None])
        self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()
