"""Writing the pictures and the page of one model, or of two to compare."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.analysis.inspection import Inspection, inspect_model
from keras_vit.analysis.page import write_page
from keras_vit.analysis.representations import representation_similarity
from keras_vit.files import check_writable
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
        activation: See `inspect_model`.
        normalization: See `inspect_model`.
    """

    name: str
    model: VisionTransformer
    read: Callable[[str], np.ndarray]
    class_names: Sequence[str] | None = None
    activation: str | None = None
    normalization: Mode | None = None


class NamedImages(NamedTuple):
    """Images (B, H, W, C), preprocessed for a model, and their names."""

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
        ValueError: If an image file does not exist, or the folder is not on
            this machine.
        OSError: If files cannot be written to the folder.
    """
    from keras_vit.analysis import plots  # noqa: F401  Needs matplotlib.

    for path in paths:
        if not os.path.isfile(path):
            raise ValueError(f"There is no image file {path!r}.")
    check_writable(local_folder(out_dir), "out")


def local_folder(out_dir: str | os.PathLike) -> pathlib.Path:
    """Return a folder to write to, which may begin with `~`.

    Raises:
        ValueError: If it is not on this machine.
    """
    if "://" in os.fspath(out_dir):
        raise ValueError(
            "`out` must be a folder on this machine. "
            f"Received: out={os.fspath(out_dir)!r}"
        )
    return pathlib.Path(out_dir).expanduser()


def load_images(subject: Subject, paths: Sequence[str]) -> NamedImages:
    """Return the images in files, preprocessed for a model.

    Their names are the file names, or the full paths if two files have the
    same name.
    """
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    return NamedImages(np.stack([subject.read(path) for path in paths]), names)


def name_apart(
    subjects: Sequence[Subject], sources: Sequence[str]
) -> list[Subject]:
    """Return the subjects with distinct names: their paths, if necessary."""
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
        out_dir: The folder to write to, on this machine. The pictures of a
            second model go to its subfolder `compared`.
        suffix: Format of the pictures: ".png" or ".svg".

    Returns:
        The files that were written.

    Raises:
        ValueError: If a model returns numbers that are not finite, or the
            folder is not on this machine.
        OSError: If a file cannot be written.
    """
    from keras_vit.analysis import plots

    out_dir = local_folder(out_dir)
    subjects = [with_all_tokens(subject) for subject in subjects]
    inspections = [look(*pair) for pair in zip(subjects, images)]
    pictures = {
        f"{folder}{name}{suffix}": draw
        for inspection, folder in zip(inspections, SUBFOLDERS)
        for name, draw in pictures_of(inspection)
    }
    pixels = images[0].pixels
    is_enough = len(pixels) >= FEWEST_FOR_SIMILARITY
    # Two models are comparable only if both receive the same pixels.
    if is_enough and np.array_equal(pixels, images[-1].pixels):

        def draw_similarity():
            first, second = subjects[0], subjects[-1]
            return plots.plot_representation_similarity(
                representation_similarity(first.model, second.model, pixels),
                (first.name, second.name),
            )

        pictures[f"similarity{suffix}"] = draw_similarity
    with ProgressBar("Drawing", "files", 1 + len(pictures)) as bar:
        write_page(inspections, out_dir / "report.html")
        for done, (name, draw) in enumerate(pictures.items(), 1):
            bar.update(done)
            plots.save_figure(draw(), out_dir / name)
        bar.update(1 + len(pictures))
    return [out_dir / name for name in ("report.html", *pictures)]


def with_all_tokens(subject: Subject) -> Subject:
    """Return a model to inspect that merges no tokens, and say so."""
    count = subject.model.config.merged_tokens
    if not count:
        return subject
    print(
        f"{subject.name} merges {count} tokens in each block. It is shown "
        "without, since its attention is drawn for each patch."
    )
    return dataclasses.replace(
        subject, model=subject.model.with_merged_tokens(0)
    )


def look(subject: Subject, images: NamedImages) -> Inspection:
    """Return the inspection of a model, with a progress bar."""
    with ProgressBar(f"Inspecting {subject.name}", "images") as bar:
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


def pictures_of(inspection: Inspection) -> Iterator[tuple[str, Callable]]:
    """Yield the name of each picture, and a function that returns its figure.

    Pictures of parts that the model does not have, such as a position
    embedding, are skipped.
    """
    from keras_vit.analysis import plots

    yield "reading", lambda: plots.plot_readings(inspection)
    for i in range(len(inspection.pixels)):
        yield f"heads_{i + 1}", lambda i=i: plots.plot_heads(inspection, i)
    yield (
        "distances",
        lambda: plots.plot_distances(
            inspection.distances,
            inspection.grid_size,
            inspection.patch_size,
            inspection.num_prefix_tokens,
        ),
    )
    yield "norms", lambda: plots.plot_token_norms(inspection)
    if inspection.similarity is not None:
        yield (
            "positions",
            lambda: plots.plot_position_similarity(inspection.similarity),
        )
    # Filters with another number of channels cannot be drawn.
    if inspection.filters is not None and inspection.config.channels in (1, 3):
        yield "filters", lambda: plots.plot_filters(inspection.filters)
