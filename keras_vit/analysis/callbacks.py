"""A Keras callback that draws where a model looks during training."""

import contextlib
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.analysis.attention import attention_distances
from keras_vit.analysis.embeddings import (
    leading_filters,
    position_similarity,
)
from keras_vit.analysis.inspection import to_pixels
from keras_vit.analysis.rollout import attention_rollout, head_grid
from keras_vit.layers.dtypes import as_float32
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    as_images,
    grid_size_of,
    has_logits,
    name_activation,
)
from keras_vit.models.vit import check_vision_transformer
from keras_vit.preprocessing.description import Mode
from keras_vit.tables import pick


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
        class_names: Names of the classes.
        activation: Function that turns logits into probabilities: a key of
            CLASSIFIER_ACTIVATIONS.
        normalization: How `images` are normalised, see `preprocess_input`.
        averages: Returns values to use in place of the trainable weights, such
            as their moving averages; or None for the weights.
        first_step: Number of updates before this training. Default: the
            iterations of the optimizer.
        is_writer: Whether this process draws. Only one of several processes
            does.

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
        activation: str = "softmax",
        normalization: Mode = "vit",
        averages: Callable[[], Sequence | None] = lambda: None,
        first_step: int | None = None,
        is_writer: bool = True,
    ):
        super().__init__()
        images = np.asarray(as_images(images), "float32")
        if every_epochs < 1:
            raise ValueError(
                "`every_epochs` must be 1 or more. "
                f"Received: every_epochs={every_epochs}"
            )
        self.images = images
        self.pixels = to_pixels(images, normalization)
        self.log_dir = os.fspath(log_dir)
        self.every_epochs = every_epochs
        self.class_names = class_names
        self.activate = pick(CLASSIFIER_ACTIVATIONS, activation, "activation")
        self.averages = averages
        self.first_step = first_step
        self.is_writer = is_writer
        self._writer = None

    def set_model(self, model):
        check_vision_transformer(model)
        expected = model.input_shape[1:]
        if any(
            size not in (None, given)
            for size, given in zip(expected, self.images.shape[1:])
        ):
            raise ValueError(
                "`images` must have the shape of the model's input, "
                f"(B, {', '.join(map(str, expected))}). "
                f"Received: shape={self.images.shape}"
            )
        super().set_model(model)

    def on_train_begin(self, logs=None):
        if not self.is_writer:
            return
        try:
            import tensorflow as tf
        except ImportError as error:
            raise ImportError(
                "Pictures for TensorBoard need TensorFlow: "
                "pip install tensorflow"
            ) from error
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
        if self.is_writer and (epoch + 1) % self.every_epochs == 0:
            self._draw(self._step(logs))

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _step(self, logs):
        optimizer = self.model.optimizer
        # A custom training loop counts the updates itself.
        return int(logs["step"] if optimizer is None else optimizer.iterations)

    def _draw(self, step):
        with self._averaged_weights():
            figures = dict(self._figures())
        with self._writer.as_default(step):
            for name, figure in figures.items():
                self._tf.summary.image(name, self._plots.render(figure)[None])
        self._writer.flush()

    def _figures(self):
        """Yield the name and the figure of each part that the model has."""
        model, images, plots = self.model, self.images, self._plots
        config = model.config
        patch_size = config.patch_size * config.stem_stride
        yield (
            "attention/rollout",
            plots.plot_overlays(
                self.pixels,
                head_grid(model, images, attention_rollout(model, images)),
                self._titles(),
                patch_size,
            ),
        )
        grid_size = tuple(int(n) for n in grid_size_of(model, images))
        distances = attention_distances(model, images)
        yield (
            "attention/distance",
            plots.plot_distances(
                distances, grid_size, patch_size, model.config.num_prefix_tokens
            ),
        )
        if config.position_embedding != "none":
            similarity = position_similarity(model)
            yield (
                "positions/similarity",
                plots.plot_position_similarity(similarity),
            )
        filters = leading_filters(model)
        if filters is not None and config.channels in (1, 3):
            yield "embedding/filters", plots.plot_filters(filters)

    def _titles(self):
        """Return the most likely class of each image, if there are classes."""
        if not has_logits(self.model):
            return None
        predictions = self.model(self.images, training=False)
        if name_activation(self.model) is None:
            predictions = self.activate(predictions)
        titles = []
        for probabilities in as_float32(predictions):
            index = int(probabilities.argmax())
            name = self.class_names[index] if self.class_names else index
            titles.append(f"{name}\n{probabilities[index]:.1%}")
        return titles

    def _averaged_weights(self):
        values = self.averages()
        if values is None:
            return contextlib.nullcontext()
        # The scope does not change the variables on any device.
        return keras.StatelessScope(
            state_mapping=zip(self.model.trainable_variables, values)
        )
