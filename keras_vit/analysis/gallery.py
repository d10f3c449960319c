"""Writing the pictures and the page of one model, or of two to compare."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_vit.analysis.inspection import Inspection, inspect_model
from keras_vit.analysis.page import write_page
from keras_vit.analysis.representations import representation_similarity
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing.description import Mode
from keras_vit.progress import ProgressBar

# With fewer images, the similarity of blocks is a poor estimate.
FEWEST_FOR_SIMILARITY = 16
# Subfolders for the pictures of the first and of the second model.
SUBFOLDERS = ("", "compared/")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to inspect and its preprocessing.

    Shapes:
        `read` returns (H, W, C), as the model reads it.

    Args:
        name: The name of the model, in titles.
        model: The model.
        read: Returns the image in a file, preprocessed for the model.
        class_names: Names of the classes, or None.
        activation: Function that turns logits into probabilities: a key of
            `keras_vit.models.features.CLASSIFIER_ACTIVATIONS`.
        normalization: How its images are normalised, see `preprocess_input`;
            None for the way of `model.config`.
    """

    name: str
    model: VisionTransformer
    read: Callable[[str], np.ndarray]
    class_names: Sequence[str] | None = None
    activation: str = "softmax"
    normalization: Mode | None = None


@dataclasses.dataclass(frozen=True)
class NamedImages:
    """Images, preprocessed for a model, and their names.

    Shapes:
        pixels: (B, H, W, C).

    Args:
        pixels: The images.
        names: The name of each image.
    """

    pixels: np.ndarray
    names: Sequence[str]


def check_inputs(paths: Sequence[str], out_dir: str | os.PathLike):
    """Check the arguments of a command before a model is opened.

    `out_dir` is not created, so a wrong argument leaves no empty folder.

    Args:
        paths: Image files.
        out_dir: The folder to write to; it need not exist.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If an image file does not exist.
        OSError: If files cannot be written to the folder.
    """
    from keras_vit.analysis import plots  # noqa: F401  Needs matplotlib.

    for path in paths:
        if os.path.isdir(path):
            raise ValueError(f"{path!r} is a folder. Pass the image files.")
        if not os.path.isfile(path):
            raise ValueError(f"There is no image file {path!r}.")
    place = pathlib.Path(out_dir).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise OSError(f"--out must be a folder to write to, not {out_dir}.")


def load_images(subject: Subject, paths: Sequence[str]) -> NamedImages:
    """Return the images in files, preprocessed for a model.

    Their names are the file names, or the full paths if two files have the
    same name.

    Args:
        subject: The model and its preprocessing.
        paths: Image files.
    """
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    return NamedImages(np.stack([subject.read(path) for path in paths]), names)


def name_apart(
    subjects: Sequence[Subject], sources: Sequence[str]
) -> list[Subject]:
    """Return the subjects with distinct names: their paths, if necessary.

    Args:
        subjects: The opened models.
        sources: The path or name of each model.
    """
    if len({subject.name for subject in subjects}) == len(subjects):
        return list(subjects)
    return [
        dataclasses.replace(subject, name=source)
        for subject, source in zip(subjects, sources)
    ]


def write_gallery(
    subjects: Sequence[Subject],
    images: Sequence[NamedImages],
    out_dir: str | os.PathLike,
    suffix: str = ".png",
) -> list[pathlib.Path]:
    """Write the pictures and the page of one model, or of two to compare.

    Args:
        subjects: One or two models.
        images: The images for each model, with the same names.
        out_dir: The folder to write to. The pictures of a second model go to
            its subfolder `compared`.
        suffix: Format of the pictures: ".png" or ".svg".

    Returns:
        The files that were written.

    Raises:
        ValueError: If a model returns numbers that are not finite.
        OSError: If a file cannot be written.
    """
    out_dir = pathlib.Path(out_dir)
    inspections = [look(*pair) for pair in zip(subjects, images)]
    writers = {"report.html": functools.partial(write_page, inspections)}
    for inspection, folder in zip(inspections, SUBFOLDERS):
        pictures = pictures_of(inspection, suffix)
        writers |= {folder + name: write for name, write in pictures}
    pixels = images[0].pixels
    is_enough = len(pixels) >= FEWEST_FOR_SIMILARITY
    # Two models are comparable only if both receive the same pixels.
    if is_enough and np.array_equal(pixels, images[-1].pixels):
        writers[f"similarity{suffix}"] = functools.partial(
            write_similarity, subjects[0], subjects[-1], pixels
        )
    with ProgressBar("Drawing", "files", len(writers)) as bar:
        for done, (name, write) in enumerate(writers.items(), 1):
            write(out_dir / name)
            bar.update(done)
    return [out_dir / name for name in writers]


def look(subject: Subject, images: NamedImages) -> Inspection:
    """Return the inspection of a model, with a progress bar.

    Args:
        subject: The model.
        images: The images to inspect it on.
    """
    with ProgressBar(f"Inspecting {subject.name}", "steps") as bar:
        return inspect_model(
            subject.model,
            images.pixels,
            model_name=subject.name,
            image_names=images.names,
            class_names=subject.class_names,
            activation=subject.activation,
            normalization=subject.normalization,
            report=bar.update,
        )


def pictures_of(
    inspection: Inspection, suffix: str = ".png"
) -> Iterator[tuple[str, Callable]]:
    """Yield file names, each with a function that writes the file to a path.

    Pictures of parts that the model does not have, such as a position
    embedding, are skipped.

    Args:
        inspection: The inspection of the model.
        suffix: ".png" or ".svg".
    """
    from keras_vit.analysis import plots

    def saving(draw, *arguments):
        return lambda path: plots.save_figure(draw(*arguments), path)

    similarity, filters = inspection.similarity, inspection.filters
    yield f"reading{suffix}", saving(plots.plot_readings, inspection)
    for i in range(len(inspection.pixels)):
        yield f"heads_{i + 1}{suffix}", saving(plots.plot_heads, inspection, i)
    distances = (
        inspection.distances,
        inspection.grid_size,
        inspection.patch_size,
        inspection.num_prefix_tokens,
    )
    yield f"distances{suffix}", saving(plots.plot_distances, *distances)
    yield f"norms{suffix}", saving(plots.plot_token_norms, inspection)
    if similarity is not None:
        draw = plots.plot_position_similarity
        yield f"positions{suffix}", saving(draw, similarity)
    # Filters with another number of channels cannot be drawn.
    if filters is not None and inspection.config.channels in (1, 3):
        yield f"filters{suffix}", saving(plots.plot_filters, filters)


def write_similarity(first: Subject, second: Subject, pixels, path):
    """Draw the similarity of the blocks of two models, see `linear_cka`.

    Shapes:
        pixels: (B, H, W, C), preprocessed for both models.

    Args:
        first: The model on the vertical axis.
        second: The model on the horizontal axis; may be the same.
        pixels: The images.
        path: The file to write.
    """
    from keras_vit.analysis import plots

    similarity = representation_similarity(first.model, second.model, pixels)
    names = (first.name, second.name)
    figure = plots.plot_representation_similarity(similarity, names)
    plots.save_figure(figure, path)
