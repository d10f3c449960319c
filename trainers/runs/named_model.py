"""NamedModel: a model file or a published model, used in place of a run."""

import dataclasses
import functools
import os

import keras

from keras_vit import from_checkpoint
from keras_vit.models import VisionTransformer
from trainers.augment.settings import line_of
from trainers.paths import as_path
from trainers.runs.run import load_keras_file


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that does not come from a run, with the interface of `Run`.

    Args:
        path_or_name: A `.keras` file, a checkpoint of any family, or the name
            of a published one.
        is_grey: Whether the images have one channel. If so, a checkpoint for
            colour images is converted: its outputs are those for the grey
            image copied to three channels.
    """

    path_or_name: str
    is_grey: bool = False

    # It has no folder to write reports to, and its file does not say which
    # loss it was trained with.
    folder = None
    activation = "softmax"

    def __str__(self):
        return self.path_or_name

    def load_class_names(self) -> None:
        """Return None, because such files do not contain class names."""

    @property
    def preprocess(self) -> str:
        """The operations on images that the model states, in one line."""
        model = self._model
        if not isinstance(model, VisionTransformer):
            return ""
        return line_of(model.config.preprocessing, model.config.image_size)

    def load_model(self) -> keras.Model:
        """Return the model; a VisionTransformer returns logits.

        Raises:
            ValueError: If there is no such file or name.
            ConnectionError: If the checkpoint cannot be downloaded.
        """
        return self._model

    @functools.cached_property
    def _model(self) -> keras.Model:
        if not self.path_or_name.endswith(".keras"):
            grey = {"channels": 1} if self.is_grey else {}
            return from_checkpoint(self.path_or_name, **grey)
        path = as_path(os.path.expanduser(self.path_or_name))
        if not path.is_file():
            raise ValueError(
                "`model` must be an existing .keras file, a checkpoint or the "
                f"name of a published one. Received: model={str(self)!r}"
            )
        model = load_keras_file(path)
        if isinstance(model, VisionTransformer):
            return model.with_classifier_activation(None)
        return model
