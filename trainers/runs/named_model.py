"""NamedModel: a model file or a published model, used in place of a run."""

import dataclasses
import functools
import os

import keras

from keras_vit import from_checkpoint
from keras_vit.model_files import RUN_MODEL, load_keras, stated_class_names
from keras_vit.models import VisionTransformer
from keras_vit.models.features import name_activation
from keras_vit.preprocessing.model_inputs import input_preprocessing
from trainers.augment.augmentation import line_of
from trainers.models.initial_model import find_model_file
from trainers.models.resnets import is_bit_resnet
from trainers.paths import as_path
from trainers.runs.run import Run


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that is named by a path, with the interface of `Run`.

    The model.keras of a run takes classes and preprocessing from the run.

    Args:
        path_or_name: A `.keras` file, the folder of a run, a checkpoint of any
            family, or the name of a published one.
        is_grey: Whether the images have one channel. If so, a checkpoint for
            colour images is converted: its outputs are those for the grey
            image copied to three channels.
    """

    path_or_name: str
    is_grey: bool = False

    folder = None  # Reports are only written to where the user asks.

    def __str__(self):
        return self.path_or_name

    @property
    def activation(self) -> str:
        """The function that turns logits into probabilities.

        A run or the last layer of a model states it; otherwise a softmax.
        """
        if self._run:
            return self._run.activation
        return self._loaded[1] or "softmax"

    @property
    def digest(self) -> str | None:
        """A checksum of the model of a run; other files have none."""
        return self._run.digest if self._run else None

    def load_class_names(self) -> list[str] | None:
        """Return the class names of a run; other files do not contain any."""
        return self._run.load_class_names() if self._run else None

    def stated_class_names(self) -> list[str] | None:
        """Return the class names in the config.json of a folder, if any.

        They need not be those of a data set, and are only for people to read.
        """
        if not os.path.isdir(self._path):
            return None
        num_classes = self.load_model().output_shape[-1]
        return stated_class_names(self._path, num_classes)

    @property
    def preprocess(self) -> str:
        """The operations on images of the run or the model, in one line.

        Raises:
            ValueError: If the model does not tell what images it reads.
        """
        if self._run:
            return self._run.preprocess
        model = self.load_model()
        if is_bit_resnet(model) or None in model.input_shape[1:3]:
            return ""  # A model for any size is refused elsewhere.
        return line_of(input_preprocessing(model), model.input_shape[1:3])

    def load_model(self) -> keras.Model:
        """Return the model; a VisionTransformer returns logits.

        Another model can end in an activation, and returns what it returns.

        Raises:
            ValueError: If there is no such file or name.
            ConnectionError: If the checkpoint cannot be downloaded.
        """
        return self._loaded[0]

    @functools.cached_property
    def _run(self) -> Run | None:
        folder, name = os.path.split(self._path)
        if name != RUN_MODEL:
            return None
        run = Run(as_path(folder))
        return run if run.recipe_path.exists() else None

    @property
    def _path(self) -> str:
        return find_model_file(self.path_or_name)

    @functools.cached_property
    def _loaded(self) -> tuple[keras.Model, str | None]:
        """The model, and the activation that its file states, if any."""
        if not self._path.endswith(".keras"):
            grey = {"channels": 1} if self.is_grey else {}
            model = from_checkpoint(self.path_or_name, **grey)
            activation = model.config.classifier_activation
            if activation is not None:
                model = model.with_classifier_activation(None)
            return model, activation
        path = as_path(self._path)
        if not path.is_file():
            raise ValueError(
                "`model` must be an existing .keras file, the folder of a "
                "finished run, a checkpoint or the name of a published one. "
                f"Received: model={str(self)!r}"
            )
        model = self._run.load_model() if self._run else load_keras(str(path))
        activation = name_activation(model)
        if isinstance(model, VisionTransformer):
            model = model.with_classifier_activation(None)
        return model, activation
