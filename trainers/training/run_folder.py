"""RunFolder: the files of a training run; NamedModel: a model without one."""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import io
import json
import os
import pathlib
import sys
import zipfile
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_vit import from_checkpoint, save_lora
from keras_vit.arguments import is_number
from keras_vit.files import DRAFT
from keras_vit.known import KnownScore
from keras_vit.model_files import (
    RUN_MODEL,
    RUN_RECIPE,
    check_class_names,
    known_classes,
    load_keras,
    stated_class_names,
)
from keras_vit.models import VisionTransformer
from keras_vit.models.features import name_activation
from keras_vit.preprocessing.model_inputs import (
    find_scaling,
    input_preprocessing,
)
from keras_vit.progress import scale
from keras_vit.texts import TEMPLATES, zero_shot
from keras_vit.weights.dense import dense_from_checkpoint, is_dense_checkpoint
from trainers.augment.augmentation import line_of
from trainers.data.file_lists import FILE_LISTS
from trainers.data.labels import AUTO, DEFAULT_THRESHOLD, DEPTH, LabelOptions
from trainers.models.initial_model import find_model_file, reads_pixels
from trainers.models.resnets import is_bit_resnet
from trainers.paths import (
    ContentError,
    Path,
    RemotePath,
    as_path,
    draft_of,
    parse_object,
    read_written,
    write_atomically,
)
from trainers.plugins import LOADED
from trainers.recipes.recipe import Recipe


def parse_recipe(fields: Mapping) -> Recipe:
    """Return the recipe of a file, see `Recipe.from_fields`."""
    recipe = Recipe.from_fields(fields)
    recipe.check_operations()
    return recipe


def take_class_names(
    content: Mapping, num_classes: int | None = None
) -> list[str]:
    """Return the class names in a recipe.json; none for an encoder.

    Raises:
        ValueError: If they are no names, or not one for each logit.
    """
    names, recipe = content["class_names"], parse_recipe(content["recipe"])
    if not recipe.needs_labels or recipe.objective == DEPTH:
        num_classes = 0
    elif names == []:
        raise ValueError(
            "`class_names` must not be empty for a classifier. Received: []"
        )
    return check_class_names(names, num_classes)


def take_thresholds(content: Mapping) -> list[float] | None:
    """Return the thresholds in a recipe.json, if there are any.

    Raises:
        ValueError: If they are not one number of 0 to 1 for each class.
    """
    found = content.get("thresholds")
    if found is None:
        return None
    count = len(take_class_names(content))
    are_numbers = isinstance(found, list) and all(map(is_number, found))
    if (
        not are_numbers
        or len(found) != count
        or not all(0 <= x <= 1 for x in found)
    ):
        raise ValueError(
            "`thresholds` must be one number from 0 to 1 for each of the "
            f"{count} classes. Received: {found!r}"
        )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """What `trainers.calibrate` has found for the model of a run.

    Args:
        known: Tells which images show something that the model has learned.
        truths: Probability of the right class for each image that it was
            measured on, (N,); for prediction sets.
        figures: What was measured, in values of JSON.
    """

    known: KnownScore
    truths: np.ndarray
    figures: Mapping


# What reading a damaged file of arrays raises.
READING_ERRORS = (
    *(EOFError, KeyError, TypeError, ValueError),
    zipfile.BadZipFile,
)


def read_calibration(content: bytes, digest: str | None) -> Calibration:
    """Return the calibration in a file.

    Raises:
        ValueError: If it is no such file, or of another model.
    """
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    text = json.loads(str(arrays.pop("description")))
    if text["model_digest"] != digest:
        raise ValueError("it is of another model.keras")
    truths = arrays.pop("truths")
    known = KnownScore(vectors=arrays, **text["known"])
    return Calibration(known, truths, text["figures"])


CARD = "README.md"  # Hugging Face shows a file of this name.
# Errors which mean that a file of this size cannot be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A folder `saved_models/<run>/` and the paths in it.

    Args:
        folder: The folder with all files of the run.
    """

    folder: Path

    def __str__(self):
        return str(self.folder)

    @property
    def name(self) -> str:
        """The name of the folder, also if the path to it is `.`."""
        if isinstance(self.folder, RemotePath):
            return self.folder.name
        return os.path.basename(os.path.abspath(self.folder))

    @property
    def recipe_path(self) -> Path:
        """The recipe of the run, and the class names of its data set."""
        return self.folder / RUN_RECIPE

    @property
    def model_path(self) -> Path:
        """The trained model, which returns logits."""
        return self.folder / RUN_MODEL

    @property
    def digest(self) -> str | None:
        """A checksum of the trained model; None if there is none yet."""
        if not self.model_path.exists():
            return None
        return hashlib.sha256(self.model_path.read_bytes()).hexdigest()

    @property
    def calibration_path(self) -> Path:
        """What `trainers.calibrate` has found."""
        return self.folder / "calibration.npz"

    @property
    def lora_path(self) -> Path:
        """The weights that a run with LoRA trained, for `load_lora`."""
        return self.folder / "lora.safetensors"

    @property
    def card_path(self) -> Path:
        """The model card."""
        return self.folder / CARD

    @property
    def metrics_path(self) -> Path:
        """The metrics, one row per evaluation."""
        return self.folder / "metrics.csv"

    @property
    def checkpoints_path(self) -> Path:
        """The checkpoints from which the run can continue."""
        return self.folder / "checkpoints"

    def check_recipe(self, recipe: Recipe, class_names: list[str]):
        """Compare a recipe with that of an existing run in the folder.

        Fields that do not affect the learned weights, such as the strategy,
        may differ, so a run can continue on other devices.

        Raises:
            ValueError: If the folder contains a run with another recipe.
        """
        started = self.started_recipe()
        if started is None:
            return
        old, new = (
            binding_fields(recipe) | {"class_names": names}
            for recipe, names in (
                (started, self.load_class_names()),
                (recipe, class_names),
            )
        )
        changed = list_changes(old, new)
        if changed:
            raise ValueError(
                "`run_dir` holds a run of another recipe; choose another "
                "folder, or --force to go on with the new one. "
                f"Received: run_dir={str(self.folder)!r} with "
                + "; ".join(changed)
            )

    def started_recipe(self) -> Recipe | None:
        """Return the recipe of the run in the folder, if one has started."""
        started = self.model_path.exists() or self.checkpoints_path.exists()
        if started and self.recipe_path.exists():
            return self.load_recipe()
        return None

    @contextlib.contextmanager
    def claimed(self, argument: str = "run_dir"):
        """Lock the folder against other processes of this machine.

        The lock is released when the process ends, even by a kill. A bucket,
        or a file system that cannot lock folders (NFS), is not locked.

        Args:
            argument: Name of the argument with the folder, for the error.

        Raises:
            OSError: If another process writes to the folder, or the folder
                cannot be created.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.folder, RemotePath):
            yield
            return
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise OSError(
                f"`{argument}` is in use: another process works there. "
                f"Received: {argument}={str(self.folder)!r}"
            ) from None
        except OSError:
            pass  # No locks here.
        try:
            yield
        finally:
            os.close(folder)

    def check_space(self, num_bytes: int):
        """Raise an OSError unless `num_bytes` can be written to the folder.

        Allocates a file of this size and removes it. Unlike the free space of
        the disk, this also respects quotas and limits. Does nothing for a
        bucket, or if the file system does not support allocation.

        Args:
            num_bytes: Size of the files to write.
        """
        is_remote = isinstance(self.folder, RemotePath)
        if is_remote or not hasattr(os, "posix_fallocate"):
            return
        draft = self.folder / f"{DRAFT}space"
        try:
            with open(draft, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise OSError(
                    f"`run_dir` must have room for {scale(num_bytes)}B of "
                    "checkpoints and the model; free some space or choose "
                    f"another folder. Received: run_dir={str(self.folder)!r} "
                    f"({error.strerror})"
                ) from None
        finally:
            draft.unlink(missing_ok=True)

    def save_recipe(
        self,
        recipe: Recipe,
        class_names: list[str],
        num_images: int | None = None,
        origin: Mapping | None = None,
        is_begun: bool = True,
    ):
        """Write the recipe with which the run continues.

        Args:
            recipe: The recipe.
            class_names: Names of the classes of the data set.
            num_images: Number of the training images.
            origin: What `describe_origin` returns.
            is_begun: Whether updates were made. Without its checkpoints, a
                finished run begins again.
        """
        content = {
            "recipe": dataclasses.asdict(recipe),
            "class_names": class_names,
            "num_images": num_images,
            "origin": origin,
        }
        if self.model_path.exists() and self.recipe_path.exists():
            content["thresholds"] = self.thresholds
            content["thresholds_chosen"] = self.thresholds_chosen
            content["finished_step"] = self.finished_step if is_begun else None
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.recipe_path, json.dumps(content, indent=2))

    def save_thresholds(self, thresholds: list[float], **chosen):
        """Write the least probability of each of several labels.

        Args:
            thresholds: In the order of the class names.
            **chosen: How they were chosen: dataset, split and goal.
        """
        self._add(thresholds=thresholds, thresholds_chosen=chosen)

    @property
    def thresholds_chosen(self) -> dict[str, str]:
        """How the thresholds were chosen, see `save_thresholds`."""
        return self._read(lambda x: x.get("thresholds_chosen") or {})

    def save_finished_step(self, step: int):
        """Write that the files of the run are those of its last update."""
        self._add(finished_step=step)

    @property
    def finished_step(self) -> int | None:
        """The update of which the files of the run are; None of an open one."""
        return self._read(lambda content: content.get("finished_step"))

    def _add(self, **entries):
        content = self._read(dict) | entries
        write_atomically(self.recipe_path, json.dumps(content, indent=2))

    def load_recipe(self) -> Recipe:
        """Return the recipe of the run.

        Raises:
            ValueError: If there is no recipe, or it is of another version.
        """
        return self._read(lambda content: parse_recipe(content["recipe"]))

    @property
    def origin(self) -> Mapping:
        """What `describe_origin` returned when the run was last started."""
        return self._read(lambda content: content.get("origin") or {})

    @property
    def missing_plugins(self) -> str:
        """Which plug-ins of the run are not loaded, as words; perhaps ""."""
        return self._read(explain_plugins)

    @property
    def preprocess(self) -> str:
        """The preprocessing of evaluation images, see `eval_batches`."""
        return self.load_recipe().eval_preprocess

    @property
    def pixel_range(self) -> tuple[float, float] | None:
        """The black and white of files of more than 8 bits."""
        return self.load_recipe().pixel_options.pixel_range

    @property
    def activation(self) -> str:
        """The activation that turns logits into probabilities."""
        return self.load_recipe().activation

    def load_class_names(self) -> list[str]:
        """Return the names of the classes, in the order of the logits.

        Raises:
            ValueError: If there are none, or they are no names.
        """
        return self._read(take_class_names)

    @property
    def has_several_labels(self) -> bool:
        """Whether the model may give an image several labels."""
        return self.load_recipe().labels == "several"

    @property
    def thresholds(self) -> list[float] | None:
        """The least probability of each of several labels; None for 0.5.

        Raises:
            ValueError: If they are not one number of 0 to 1 for each class.
        """
        return self._read(take_thresholds)

    @property
    def used_thresholds(self) -> list[float] | None:
        """The thresholds that predictions use; None for one label an image."""
        if not self.has_several_labels:
            return None
        count = len(self.load_class_names())
        return self.thresholds or [DEFAULT_THRESHOLD] * count

    @property
    def calibration(self) -> Calibration | None:
        """What `trainers.calibrate` has found for the model, if it ran.

        Raises:
            ContentError: If it is of another model, or no such file.
        """
        if not self.calibration_path.exists():
            return None
        try:
            content = self.calibration_path.read_bytes()
            return read_calibration(content, self.digest)
        except READING_ERRORS as error:
            raise ContentError(
                f"{self.calibration_path} must be what `keras-vit calibrate` "
                "wrote for this model: delete it, or run that command again. "
                f"Received: {error}"
            ) from None

    def save_calibration(self, found: Calibration):
        """Write what was found for the model as it is now."""
        known = found.known
        description = {
            "model_digest": self.digest,
            "known": {
                "kind": known.kind,
                "threshold": known.threshold,
                "activation": known.activation,
            },
            "figures": dict(found.figures),
        }
        buffer = io.BytesIO()
        np.savez(
            buffer,
            description=json.dumps(description),
            truths=found.truths,
            **known.vectors,
        )
        with draft_of(self.calibration_path) as draft:
            draft.write_bytes(buffer.getvalue())

    def load_num_images(self) -> int | None:
        """Return the number of training images; None if it is not known."""
        return self._read(lambda content: content.get("num_images"))

    def save_model(self, model: keras.Model):
        """Write the model atomically; it is not calibrated yet."""
        if self.calibration_path.exists():
            print(
                f"Warning: {self.calibration_path} is removed, as the model is "
                "written anew; run `keras-vit calibrate` again.",
                file=sys.stderr,
            )
            self.calibration_path.unlink()
        if self.recipe_path.exists() and self.thresholds is not None:
            print(
                f"Warning: the thresholds in {self.recipe_path} are removed, "
                "as the model is written anew.",
                file=sys.stderr,
            )
            self._add(thresholds=None, thresholds_chosen=None)
        with draft_of(self.model_path) as draft:
            model.save(draft)

    def save_lora(self, model: keras.Model):
        """Write the LoRA weights of the model alone, atomically."""
        with draft_of(self.lora_path) as draft:
            save_lora(model, draft)

    def load_model(self) -> keras.Model:
        """Return the trained model.

        Raises:
            ValueError: If the run has no model, or no class name for each
                of its logits.
        """
        if not self.model_path.exists():
            raise ValueError(
                "`run_dir` must be the folder of a finished run, with a "
                f"model.keras in it. Received: run_dir={str(self.folder)!r}"
            )
        model = load_keras(str(self.model_path))
        count = model.output_shape[-1]
        self._read(lambda content: take_class_names(content, count))
        return model

    def _read(self, take):
        if not self.recipe_path.exists():
            raise ValueError(
                "`run_dir` must be the folder of a run, with a recipe.json "
                f"in it. Received: run_dir={str(self.folder)!r}"
            )
        hints = []

        def parse(text):
            content = parse_object(text)
            hints.append(explain_plugins(content))
            return take(content)

        remedy = "correct it or choose another folder"
        try:
            return read_written(self.recipe_path, parse, remedy)
        except ContentError as error:
            if not any(hints):
                raise
            raise ValueError(
                f"`plugins` must be those of the run: {hints[0]}. Received: "
                f"plugins={','.join(LOADED)!r} ({error})"
            ) from None


def explain_plugins(content: Mapping) -> str:
    """Return which plug-ins of a run are not loaded, as words; perhaps ""."""
    needed = (content.get("origin") or {}).get("plugins") or []
    missing = [name for name in needed if name not in LOADED]
    if not missing:
        return ""
    return f"the run was trained with --plugins={','.join(missing)}"


def check_has_classes(source, names: list[str] | None):
    """Raise a ValueError if a model was trained without labels.

    Args:
        source: The RunFolder, or whatever else the model is from.
        names: What its `load_class_names` returns.
    """
    if names == []:
        raise ValueError(
            "`run_dir` holds an encoder that was trained without labels and "
            "knows no classes. Train a classifier from it with --init_from="
            f"{source}, or read its features with trainers.probe. "
            f"Received: run_dir={str(source)!r}"
        )


def binding_fields(recipe: Recipe) -> dict:
    """Return the fields that must not change when a run continues."""
    return {
        field.name: getattr(recipe, field.name)
        for field in dataclasses.fields(recipe)
        if not field.metadata["is_free"]
    }


def list_changes(old: dict, new: dict) -> list[str]:
    """Return a description of each value that is not what it was."""
    return [
        f"{name}: {old[name]!r} there, {new[name]!r} here"
        for name in new
        if old[name] != new[name]
    ]


def write_report(folder: Path, name: str, report: dict):
    """Write a report as JSON, into a folder that need not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, json.dumps(report, indent=2))


def is_outdated(report: Mapping, source: "RunFolder | NamedModel") -> bool:
    """Return whether the model or its thresholds are others since a report.

    Args:
        report: The content of an evaluation.json.
        source: Where the model of the report was.
    """
    written = report.get("model_digest")  # Since this version.
    if written is not None and source.digest not in (None, written):
        return True
    if not any(name.startswith("threshold/") for name in report):
        return False  # Of one label an image.
    return any(
        report.get(f"threshold/{name}", threshold) != threshold
        for name, threshold in zip(
            source.load_class_names() or (), source.used_thresholds or ()
        )
    )


def check_place(run: RunFolder, dataset: str):
    """Raise a ValueError if a run in its folder would do damage.

    It must not overwrite files that do not belong to a run, nor put its
    pictures among the images that it learns from.

    Args:
        run: The run, which may have begun.
        dataset: The name of the data set.
    """
    if isinstance(run.folder, RemotePath):
        return
    received = f"Received: run_dir={str(run.folder)!r}"
    if not run.recipe_path.exists():
        paths = (run.card_path, run.metrics_path, run.model_path)
        if found := [path.name for path in paths if path.exists()]:
            raise ValueError(
                "`run_dir` must be a new folder or that of a run. "
                f"{received}, which has no {run.recipe_path.name}, but "
                f"{' and '.join(found)}"
            )
    check_outside(run.folder, dataset, "run_dir")


def check_outside(folder: Path, dataset: str, argument: str):
    """Raise a ValueError if pictures would be written among those of a folder.

    There, they would be images of a data set, and folders its classes.

    Args:
        folder: The folder to write to.
        dataset: The name of the data set.
        argument: What names the folder, for the error.
    """
    kind, _, source = dataset.partition(":")
    if isinstance(folder, RemotePath):
        return
    if kind not in FILE_LISTS or not FILE_LISTS[kind].is_folder:
        return
    source = pathlib.Path(source).expanduser().resolve()
    if folder.resolve().is_relative_to(source):
        raise ValueError(
            f"`{argument}` must be outside the folder of the images. "
            f"Received: {argument}={str(folder)!r}, dataset={dataset!r}"
        )


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that is named by a path, with the interface of `RunFolder`.

    The model.keras of a run takes classes and preprocessing from the run.

    Args:
        path_or_name: A `.keras` file, the folder of a run, a checkpoint of any
            family, or the name of a published one.
        is_grey: Whether the images have one channel. If so, a checkpoint for
            colour images is converted: its outputs are those for the grey
            image copied to three channels.
        classes: Names of classes for a model of images and texts, see
            `keras_vit.zero_shot`; none for a classifier.
        templates: Texts about an image of a class, see there.
    """

    path_or_name: str
    is_grey: bool = False
    classes: Sequence[str] = ()
    templates: Sequence[str] = TEMPLATES

    folder = None  # Reports are only written to where the user asks.

    def __str__(self):
        return self.path_or_name

    @property
    def activation(self) -> str:
        """The function that turns logits into probabilities.

        A run, the last layer of a model or its configuration states it;
        otherwise a softmax.
        """
        if self._run:
            return self._run.activation
        model, activation = self._loaded
        stated = getattr(getattr(model, "config", None), "probabilities", None)
        return activation or stated or "softmax"

    @property
    def has_several_labels(self) -> bool:
        """Whether the model may give an image several labels: as its run."""
        return bool(self._run) and self._run.has_several_labels

    @property
    def thresholds(self) -> list[float] | None:
        """The least probability of each label in a run; None for 0.5."""
        return self._run.thresholds if self._run else None

    @property
    def thresholds_chosen(self) -> dict[str, str]:
        """How those of a run were chosen."""
        return self._run.thresholds_chosen if self._run else {}

    @property
    def used_thresholds(self) -> list[float] | None:
        """Those that predictions use; None for one label an image."""
        return self._run.used_thresholds if self._run else None

    @property
    def calibration(self) -> Calibration | None:
        """What `trainers.calibrate` has found for a run, if it ran."""
        return self._run.calibration if self._run else None

    @property
    def digest(self) -> str | None:
        """A checksum of the model of a run; other files have none."""
        return self._run.digest if self._run else None

    def load_recipe(self) -> Recipe | None:
        """Return the recipe of a run; None for other files."""
        return self._run.load_recipe() if self._run else None

    def load_class_names(self) -> list[str] | None:
        """Return the class names of a run, or those that a model itself knows.

        Other files do not contain any.
        """
        if self._run:
            return self._run.load_class_names()
        return known_classes(self.load_model())

    def stated_class_names(self) -> list[str] | None:
        """Return the class names in the config.json of a folder, if any.

        They need not be those of a data set, and are only for people to read.
        """
        if not os.path.isdir(self._path):
            return None
        num_classes = self.load_model().output_shape[-1]
        return stated_class_names(self._path, num_classes)

    @property
    def label_options(self) -> LabelOptions:
        """How the labels of its data are read: maps, or what the data are.

        Only the model of pixels is loaded for it.
        """
        if recipe := self.load_recipe():
            return recipe.label_options
        path = self._path
        if path.endswith(".keras"):
            is_dense = reads_pixels(path)
        else:
            is_dense = not self.classes and is_dense_checkpoint(path)
        return LabelOptions(self.load_model().task) if is_dense else AUTO

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

    @property
    def pixel_range(self) -> tuple[float, float] | None:
        """The black and white of files of more than 8 bits.

        None for a model that does not tell what images it reads: for that,
        `preprocess` is asked for.
        """
        if self._run:
            return self._run.pixel_range
        try:
            found = find_scaling(self.load_model())
        except ValueError:
            return None
        return found and found.pixel_range

    def load_model(self) -> keras.Model:
        """Return the model; a VisionTransformer returns logits.

        Another model can end in an activation, and returns what it returns.

        Raises:
            ValueError: If there is no such file or name.
            ConnectionError: If the checkpoint cannot be downloaded.
        """
        return self._loaded[0]

    @functools.cached_property
    def _run(self) -> RunFolder | None:
        folder, name = os.path.split(self._path)
        if name != RUN_MODEL:
            return None
        run = RunFolder(as_path(folder))
        return run if run.recipe_path.exists() else None

    @property
    def _path(self) -> str:
        return find_model_file(self.path_or_name)

    @functools.cached_property
    def _loaded(self) -> tuple[keras.Model, str | None]:
        """The model, and the activation that its file states, if any."""
        is_file = self._path.endswith(".keras")
        if self.classes and is_file:
            raise ValueError(
                "`classes` need a checkpoint of images and texts. Received: "
                f"model={str(self)!r}"
            )
        if not is_file:
            grey = {"channels": 1} if self.is_grey else {}
            path, names = self.path_or_name, self.classes
            if not names and is_dense_checkpoint(path):
                return dense_from_checkpoint(path), None
            model = (
                zero_shot(path, names, self.templates, **grey)
                if names
                else from_checkpoint(path, **grey)
            )
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
