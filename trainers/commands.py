"""Starting a command, its source flags, and ending it on errors and signals."""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from absl import app, flags, logging

from keras_vit.errors import message_of
from trainers import plugins
from trainers.augment.operations import BATCH_OPS, OPS
from trainers.command_line import parse_flags
from trainers.data.datasets import (
    ALL_SPLITS,
    READERS,
    ImageDataset,
    is_same_dataset,
    open_dataset,
)
from trainers.data.decoding import DataError, describe_error
from trainers.data.file_lists import is_file_list
from trainers.data.labels import AUTO, DEPTH, SEGMENT, LabelOptions
from trainers.data.pixels import PixelOptions
from trainers.engine.checkpoints import CheckpointError
from trainers.engine.cluster import WorkerConfig
from trainers.engine.rendezvous import WorkerLostError, watched_service
from trainers.evaluation.ray_workers import RayCluster
from trainers.models.initial_model import find_model_file
from trainers.paths import ContentError, as_path
from trainers.recipes.recipes import RECIPES
from trainers.training.loop import Interrupted, NonFiniteLossError
from trainers.training.run_folder import NamedModel, RunFolder

UNREAD = ""  # A split of which no image is read.


def open_source(
    run_dir: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
    train_split: str | None = UNREAD,
    eval_split: str | None = None,
    labels: LabelOptions = AUTO,
    may_be_part: bool = False,
) -> tuple[RunFolder | NamedModel, ImageDataset]:
    """Return a model and the data set to evaluate it on.

    Args:
        run_dir: The folder of a run, or None.
        model: A file or a name, see `NamedModel`; None with `run_dir`.
        dataset: See `open_dataset`; None for that of the run.
        data_dir: Folder of the TFDS data sets; None for that of the run.
        train_split: As `eval_split`. By default it is not read, and that of
            the run need not exist.
        eval_split: A name or a slice; None for that of the run or, with
            another data set, of the data set.
        labels: How the labels are read; "auto" as the run was trained.
        may_be_part: See `ImageDataset.with_forms_of`.

    Raises:
        ValueError: If not exactly one of `run_dir` and `model` is given, or
            the model or the data set does not exist.
    """
    if bool(run_dir) == bool(model):
        raise ValueError(
            "Give either --run_dir or --model. "
            f"Received: run_dir={run_dir!r}, model={model!r}"
        )
    if model and not dataset:
        raise ValueError(
            "`dataset` must be given with `model`. Received: dataset=None"
        )
    is_pairs = bool(model) and dataset.startswith("pairs:")
    is_told = (
        is_pairs or bool(model) and find_model_file(model).endswith(".keras")
    )
    named = None  # It may be loaded already.
    if is_told and labels.kind == "auto":
        named = NamedModel(model)  # Grey levels are for other checkpoints.
        stated = named.label_options
        if not stated.has_maps and is_pairs:
            stated = map_options_of(named)
        labels = stated if stated.has_maps else labels
    is_whole = train_split == UNREAD and eval_split in ("all", ALL_SPLITS)
    hint, needs_labels = "", True
    if run_dir:
        source = RunFolder(as_path(run_dir))
        recipe = source.load_recipe()
        data_dir = data_dir or recipe.data_dir
        if recipe.has_maps:
            labels = recipe.label_options
        else:
            kind = recipe.labels if labels.kind == "auto" else labels.kind
            separator = labels.separator
            # Another table may have a column for each label.
            if dataset is None or is_same_dataset(dataset, recipe.dataset):
                separator = separator or recipe.label_separator
            labels = LabelOptions(kind, separator)
        if dataset is None and ":" in recipe.dataset:
            hint = (
                f". This is the data set in {source.recipe_path}; a relative "
                "path begins where the run was started. Use --dataset for "
                "another"
            )
        hint = f"; {missing}" if (missing := source.missing_plugins) else hint
        dataset = dataset or recipe.dataset
        needs_labels = recipe.needs_labels
        if is_same_dataset(dataset, recipe.dataset):
            train_split = (
                recipe.train_split if train_split is None else train_split
            )
            eval_split = eval_split or recipe.eval_split
    try:
        data = open_dataset(
            dataset,
            data_dir,
            train_split or None,
            eval_split,
            labels._replace(is_whole=is_whole),
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}{hint}") from None
    data = dataclasses.replace(data, needs_labels=needs_labels)
    if model:
        source = named or NamedModel(model, is_grey=data.channels == 1)
    if hasattr(data.reader, "pixels"):
        data = data.with_pixels(pixels_of(source))
    names = source.load_class_names()
    if names is None:
        names = source.stated_class_names()
    if names is None and dataset.startswith("csv:"):
        # Without names, `predict` numbers the outputs; as text, 10 is before 2.
        numbers = [str(index) for index in range(len(data.class_names))]
        if sorted(numbers) == sorted(data.class_names):
            names = numbers
    return source, data.with_forms_of(names, may_be_part)


def map_options_of(source: NamedModel) -> LabelOptions:
    """Return how the maps for a model are read: classes or depths.

    Raises:
        ValueError: If the model has no answer for each pixel.
    """
    shape = source.load_model().output_shape
    if len(shape) != 4:
        raise ValueError(
            "`model` must have an answer for each pixel, for a data set of "
            f"pairs:PATH. Received: model={source.path_or_name!r}, "
            f"output_shape={shape}"
        )
    return LabelOptions(DEPTH if shape[-1] == 1 else SEGMENT)


def pixels_of(source: RunFolder | NamedModel) -> PixelOptions:
    """Return how the files for a model are read, as in its training."""
    recipe = source.load_recipe()
    if recipe and (recipe.channels or is_file_list(recipe.dataset)):
        return recipe.pixel_options
    channels = source.load_model().input_shape[-1]
    return PixelOptions(
        None if channels in (None, 3) else channels, source.pixel_range
    )


def worker_config_from_flags(
    values: flags.FlagValues = flags.FLAGS,
) -> WorkerConfig:
    """Return how this process finds the other workers."""
    return WorkerConfig(
        values.workers, values.worker_index, values.tpu, values.start_timeout
    )


def cluster_from_flags(
    values: flags.FlagValues = flags.FLAGS,
) -> RayCluster | None:
    """Return the cluster of --ray, if any; accelerators are left to it."""
    if values.ray is None:
        if values.ray_workers:
            raise ValueError(
                "--ray_workers needs --ray, such as --ray=local. "
                f"Received: ray_workers={values.ray_workers}"
            )
        return None
    tf.config.set_visible_devices([], "GPU")
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")
    prepare = functools.partial(load_plugins, tuple(plugins.LOADED))
    return RayCluster(values.ray, values.ray_workers, prepare)


def run_main(main: Callable):
    """Call `main` of a command; `trainers.command_line.begin` came before it.

    Args:
        main: Takes the program name and the arguments that are not flags.
    """
    # The name of a file need not be UTF-8.
    if sys.stdout:
        sys.stdout.reconfigure(errors="backslashreplace")
    app.call_after_init(_set_log_level)
    app.call_after_init(_load_named_plugins)
    app.run(main, flags_parser=parse_flags)


# What a plug-in may define, and the tables that its rows are added to.
TABLES = {
    "RECIPES": RECIPES,
    "DATASETS": READERS,
    "OPERATIONS": OPS,
    "BATCH_OPERATIONS": BATCH_OPS,
    "CALLBACKS": plugins.CALLBACKS,
    "METRICS": plugins.METRICS,
}


def load_plugins(names: Sequence[str]):
    """Load the installed plug-ins and those named here, see `plugins.load`."""
    plugins.load(names, TABLES)


def _load_named_plugins():
    with user_errors():
        load_plugins(flags.FLAGS.plugins)


def _set_log_level():
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
        tf.get_logger().setLevel("WARNING")


@contextlib.contextmanager
def user_errors(*more: type[Exception]):
    """End the command with a one-line message if its input is wrong.

    Wraps only the steps that read the input, so errors in the work itself keep
    their traceback.

    Args:
        *more: Further types of errors that the user can fix.
    """
    try:
        yield
    except BrokenPipeError:  # What reads the output, such as `head`, ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (
        ValueError,
        OSError,
        CheckpointError,
        MemoryError,
        tf.errors.ResourceExhaustedError,
        *more,
    ) as error:
        release_frames(error)
        sys.exit(f"Error: {explain(error)}")


def explain(error: Exception) -> str:
    """Return the message of an error, without the words of the libraries."""
    if isinstance(error, MemoryError | tf.errors.ResourceExhaustedError):
        is_of_python = isinstance(error, MemoryError)
        text = str(error) if is_of_python else describe_error(error)
        if not (is_of_python or text.startswith("OOM")):  # The disk is full.
            return text
        return (
            f"there is not enough memory: {text.partition(' on /job')[0]}. "
            "Smaller batches or images need less"
        )
    return message_of(error)


def release_frames(error: BaseException | None):
    """Free the variables of the functions that an error ended.

    An iterator of data among them would live until Python ends, and then wait
    forever for its threads, because they can no longer run Python code.
    """
    errors = [error]
    for error in errors:
        more = (error.__cause__, error.__context__) if error else ()
        errors += [each for each in more if each not in errors]
        for frame, _ in traceback.walk_tb(error and error.__traceback__):
            # TensorFlow leaves its own functions out of the traceback.
            while frame:
                with contextlib.suppress(RuntimeError):  # It is running.
                    frame.clear()
                frame = frame.f_back


@contextlib.contextmanager
def stop_at_once(message: str):
    """End the command on SIGTERM or Ctrl-C while there is nothing to save."""

    def stop(number, frame):
        # Other exceptions might be caught by libraries; SystemExit is not.
        print(message, file=sys.stderr, flush=True)
        sys.exit(EXIT_CODES[Interrupted])

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


STOPPING = (
    "\nStopping after this update, to save. A second signal ends the process "
    "at once, without saving.\n"
)


class StopSignals:
    """Records SIGTERM and Ctrl-C, which ask the process to save and stop.

    A second signal kills the process immediately.
    """

    def __init__(self):
        self._received = False
        self._handle_with(self._receive)

    def were_received(self) -> bool:
        """Return whether to save and stop."""
        return self._received

    def _receive(self, number, frame):
        self._received = True
        self._handle_with(signal.SIG_DFL)
        # The signal may interrupt a `print`, in which another is an error.
        os.write(sys.stderr.fileno(), STOPPING.encode())

    def _handle_with(self, handler):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)


@contextlib.contextmanager
def training_errors():
    """End the command with a one-line message if training cannot finish.

    The exit code tells whether to run the same command again.
    """
    try:
        yield
    except WorkerLostError as error:
        sys.stdout.flush()
        exit_hard(error)  # JAX would wait for the other one at the exit.
    except tuple(EXIT_CODES) as error:
        release_frames(error)
        sys.exit(report(error))


@contextlib.contextmanager
def before_training(arguments: list[str]) -> Iterator[None]:
    """End the command with a message on errors and signals before an update."""
    message = "Stopped before the first update."
    with stop_at_once(message), training_errors(), user_errors():
        refuse_arguments(arguments)
        yield


@contextlib.contextmanager
def training(data_service: str | None) -> Iterator[Callable[[], bool]]:
    """End the command with a message if training cannot finish.

    Yields what tells whether a signal asks to save and stop: the `must_stop` of
    a `Loop`.

    Args:
        data_service: See `watched_service`.
    """
    must_stop = StopSignals().were_received
    with training_errors(), watched_service(data_service, exit_hard):
        yield must_stop


def exit_hard(error: Exception):
    """End the process immediately, from any thread, with the error's code."""
    os._exit(report(error))


def report(error: Exception) -> int:
    """Print the error that ended the training; return the exit code."""
    # To be asked to stop is no error.
    prefix = "" if isinstance(error, Interrupted) else "Error: "
    print(f"{prefix}{explain(error)}", file=sys.stderr, flush=True)
    kinds = (kind for kind in EXIT_CODES if isinstance(error, kind))
    return EXIT_CODES[next(kinds)]


# Exit codes of unfinished runs. In sysexits.h, 75 means "try again".
EXIT_CODES = {
    NonFiniteLossError: 1,
    CheckpointError: 1,
    DataError: 1,
    ContentError: 1,
    OSError: 1,  # A folder that cannot be written, a disk that is full.
    MemoryError: 1,
    tf.errors.ResourceExhaustedError: 1,  # Of memory.
    WorkerLostError: WorkerLostError.exit_code,
    Interrupted: 75,
}


def refuse_arguments(arguments: list[str]):
    """Raise a ValueError for command-line arguments that are not flags."""
    if len(arguments) > 1:
        raise ValueError(
            "Options are written --name=value. "
            f"Received: {' '.join(arguments[1:])!r}"
        )
