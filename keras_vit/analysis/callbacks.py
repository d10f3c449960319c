"""A Keras callback that draws where a model looks during training."""

import contextlib
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.analysis.gallery import pictures_of
from keras_vit.analysis.inspection import inspect_model
from keras_vit.arguments import as_whole
from keras_vit.errors import import_packages
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, as_images
from keras_vit.preprocessing.description import Mode
from keras_vit.tables import check_name

# Their names in TensorBoard, by those in `pictures_of`.
TAGS = {
    "distances": "attention/distance",
    "positions": "positions/similarity",
    "filters": "embedding/filters",
}


class AttentionPictures(keras.callbacks.Callback):
    """Log attention and positions to TensorBoard during training.

    The callback draws the attention rollout over some images, the attention
    distances of the heads, the similarity of the positions, and the filters:
    before the first update and after epochs. Parts that the model does not
    have are skipped.

    The training is bit-identical to one without the callback. Needs TensorFlow
    and matplotlib.

    Shapes:
        images: (B, H, W, C), preprocessed for the model.

    Args:
        images: A few images to compute attention for.
        log_dir: The folder of TensorBoard, local or gs://...; the pictures
            go to its subfolder `attention`.
        every_epochs: Epochs between two drawings.
        class_names: Names of the classes. Default: those that the model knows.
        activation: Function that turns logits into probabilities: a key of
            CLASSIFIER_ACTIVATIONS. Default: as the model states, or "softmax".
        normalization: How `images` are normalised, see `preprocess_input`.
            Default: as the configuration of the model says.
        averages: Returns values to use in place of the trainable weights, such
            as their moving averages; or None for the weights.
        first_step: Number of updates before this training. Default: the
            iterations of the optimizer.

    Raises:
        ValueError: If an argument is out of range or, when the training
            begins, if the model is not a VisionTransformer or `images` do not
            fit it.

    Example:
        model.fit(..., callbacks=[AttentionPictures(images[:8], "logs")])
    """

    def __init__(
        self,
        images,
        log_dir: str | os.PathLike,
        every_epochs: int = 1,
        class_names: Sequence[str] | None = None,
        activation: str | None = None,
        normalization: Mode | None = None,
        averages: Callable[[], Sequence | None] = lambda: None,
        first_step: int | None = None,
    ):
        super().__init__()
        if activation is not None:
            check_name(CLASSIFIER_ACTIVATIONS, activation, "activation")
        self.images = np.asarray(as_images(images), "float32")
        self.log_dir = os.fspath(log_dir)
        self.every_epochs = as_whole(every_epochs, "every_epochs")
        self.known = {
            "class_names": class_names,
            "activation": activation,
            "normalization": normalization,
        }
        self.averages = averages
        self.first_step = first_step

    def set_model(self, model):
        as_images(self.images, model)  # Or it raises an error.
        super().set_model(model)

    def on_train_begin(self, logs=None):
        [tf] = import_packages("AttentionPictures", ["tensorflow"])
        # Imported here, so that a missing package is an error at the start.
        from keras_vit.analysis import plots

        self._plots, self._tf = plots, tf
        # A separate folder, because TensorBoard reads one file per folder.
        self._writer = tf.summary.create_file_writer(
            os.path.join(self.log_dir, "attention")
        )
        step = self.first_step
        if step is None:
            step = self._step({"step": 0})
        if step == 0:
            self._draw(step)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every_epochs == 0:
            self._draw(self._step(logs))

    def on_train_end(self, logs=None):
        self._writer.close()

    def _step(self, logs):
        optimizer = self.model.optimizer
        # A custom training loop counts the updates itself.
        return int(logs["step"] if optimizer is None else optimizer.iterations)

    def _draw(self, step):
        values = self.averages()
        scope = contextlib.nullcontext()
        if values is not None:
            # The scope does not change the variables on any device.
            pairs = zip(self.model.trainable_variables, values)
            scope = keras.StatelessScope(state_mapping=pairs)
        with scope:
            seen = inspect_model(
                self.model, self.images, num_classes=0, **self.known
            )
        figures = {"attention/rollout": self._draw_rollout(seen)}
        for name, draw in pictures_of(seen):
            if name in TAGS:
                figures[TAGS[name]] = draw()
        with self._writer.as_default(step):
            for name, figure in figures.items():
                self._tf.summary.image(name, self._plots.render(figure)[None])
        self._writer.flush()

    def _draw_rollout(self, seen):
        """Draw the rollout; titles are the most likely classes, if any."""
        titles = None
        if seen.probabilities is not None:
            titles = [
                f"{seen.class_name(shares.argmax())}\n{shares.max():.1%}"
                for shares in seen.probabilities
            ]
        return self._plots.plot_overlays(
            seen.pixels, seen.read_grid(seen.rollouts), titles, seen.patch_size
        )
