"""Look into a model: `python -m keras_vit.inspect MODEL IMAGE... --out=DIR`.

Writes the pictures of `keras_vit.analysis.plots` and a page to explore with,
report.html.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np

from keras_vit.analysis import (
    Inspection,
    inspect_model,
    representation_similarity,
)
from keras_vit.analysis.callbacks import read_positions
from keras_vit.analysis.page import write_page
from keras_vit.convert import open_model
from keras_vit.inspect_checkpoint import add_hints, parse_image_size
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing import (
    imagenet_classes,
    preprocess_input,
    read_image,
)

# Of the test split of a run, when no image is named.
NUM_IMAGES = 4
# An estimate from fewer says little.
FEWEST_FOR_SIMILARITY = 16
# Where the pictures of the first and of the second model go.
PLACES = ("", "compared/")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model that is looked into, and how it wants its images.

    Shapes:
        `read` returns (H, W, C), as the model reads it.

    Args:
        name: What it is called.
        model: The model.
        read: Returns the image in a file.
        preprocess: What is done to the images of a data set, see
            `trainers.data.batches.eval_batches`.
        class_names: Names of the classes, or None.
        activation: What makes probabilities of its logits.
        value_range: What it reads for black and for white.
        positions_dir: Where its training kept what became of the positions,
            or None.
    """

    name: str
    model: VisionTransformer
    read: Callable[[str], np.ndarray]
    preprocess: str = ""
    class_names: Sequence[str] | None = None
    activation: str = "softmax"
    value_range: tuple[float, float] = (-1.0, 1.0)
    positions_dir: str | None = None


def open_subject(source: str, **hints) -> Subject:
    """Open the folder of a run, a `.keras` file, a checkpoint or a nickname.

    Images for a run are made ready as they were for its evaluation; those for
    other models are resized as a whole and scaled to [-1, 1].

    Args:
        source: Path or name.
        **hints: See `keras_vit.convert.open_model`; not for a run.

    Raises:
        ValueError: If it holds no VisionTransformer.
    """
    if is_run(source):
        given = [name for name, value in hints.items() if value is not None]
        if given:
            raise ValueError(
                f"--{given[0]} is for checkpoints. Received: a run, {source}"
            )
        return _open_run(source)
    model = open_model(source, **hints)
    config = model.config

    def read(path):
        pixels = read_image(path, config.channels, config.image_size)
        return preprocess_input(pixels)

    class_names = None
    if config.num_classes == len(imagenet_classes()):
        # "tench, Tinca tinca": the first word for it will do.
        class_names = [name.split(",")[0] for _, name in imagenet_classes()]
    name = pathlib.Path(source).name
    return Subject(name, model, read, class_names=class_names)


def is_run(source: str) -> bool:
    """Return whether there is the folder of a run of the trainers.

    Args:
        source: Path or name.
    """
    return os.path.isfile(os.path.join(source, "recipe.json"))


def _open_run(folder):
    # The trainers need TensorFlow; what else is looked into does not.
    from trainers.evaluation.predictions import load_image
    from trainers.runs.run import Run

    run = Run(pathlib.Path(folder))
    model = run.load_model()
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{folder} holds no VisionTransformer but a {type(model).__name__}."
        )
    shape, preprocess = model.input_shape[1:], run.preprocess
    return Subject(
        run.folder.absolute().name,
        model,
        lambda path: load_image(path, shape, preprocess),
        preprocess,
        run.load_class_names(),
        run.activation,
        run.load_recipe().value_range,
        str(run.positions_path),
    )


def take_images(
    run_dir: str, subject: Subject, count: int
) -> tuple[np.ndarray, list[str]]:
    """Return the first test images of a run as a model reads them, and names.

    Args:
        run_dir: The run whose data set is read.
        subject: Who looks at them; need not be the model of the run.
        count: How many images.
    """
    from trainers.data.batches import eval_batches
    from trainers.evaluation.predictions import check_model
    from trainers.runs.run import open_source

    _, dataset = open_source(run_dir=run_dir, eval_split=None)
    check_model(subject.model, dataset)
    batches = eval_batches(
        dataset,
        image_size=subject.model.input_shape[1:3],
        batch_size=count,
        preprocess=subject.preprocess,
    )
    images, labels, weights = next(iter(batches))
    counts = weights.numpy() > 0  # What fills a batch up does not.
    classes = np.argmax(labels.numpy()[counts], axis=-1)
    return images.numpy()[counts], [
        f"test image {i + 1}: {dataset.class_names[label]}"
        for i, label in enumerate(classes)
    ]


def read_images(
    subject: Subject, paths: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Return the images in files as a model reads them, and their names.

    Shapes:
        returns: (B, H, W, C).

    Args:
        subject: Who looks at them.
        paths: The files.
    """
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    return np.stack([subject.read(path) for path in paths]), names


def inspect_sources(
    sources: Sequence[str],
    paths: Sequence[str],
    out_dir: str | os.PathLike,
    num_images: int = NUM_IMAGES,
    suffix: str = ".png",
    **hints,
) -> list[pathlib.Path]:
    """Write the pictures and the page of one model, or of two to compare.

    Args:
        sources: One or two, see `open_subject`.
        paths: Image files; without any, test images of the run that comes
            first.
        out_dir: The folder to write to. Pictures of a second model go to
            `compared` in it.
        num_images: How many test images.
        suffix: Of the pictures: .png or .svg.
        **hints: See `keras_vit.convert.open_model`.

    Returns:
        What was written.

    Raises:
        ValueError: If something does not fit.
        OSError: If a file cannot be read or written.
    """
    check_paths(sources, paths)
    from keras_vit.analysis import plots  # noqa: F401  It needs matplotlib.

    out_dir = pathlib.Path(out_dir)
    check_folder(out_dir)
    subjects = name_apart([open_subject(s, **hints) for s in sources], sources)
    # All images first: what does not fit is said before anything is computed.
    looks = [
        read_images(subject, paths)
        if paths
        else take_images(sources[0], subject, num_images)
        for subject in subjects
    ]
    inspections = [
        look(subject, images, names)
        for subject, (images, names) in zip(subjects, looks)
    ]
    writers = {"report.html": lambda path: write_page(inspections, path)}
    for subject, inspection, place in zip(subjects, inspections, PLACES):
        pictures = pictures_of(inspection, suffix, subject.positions_dir)
        writers |= {place + name: write for name, write in pictures}
    images = looks[0][0]
    is_enough = len(images) >= FEWEST_FOR_SIMILARITY
    if is_enough and np.array_equal(images, looks[-1][0]):
        writers[f"similarity{suffix}"] = functools.partial(
            compare_blocks, subjects[0], subjects[-1], images
        )
    bar = Bar("Drawing")
    for done, (name, write) in enumerate(writers.items(), 1):
        write(out_dir / name)
        bar(done, len(writers))
    return [out_dir / name for name in writers]


def pictures_of(
    inspection: Inspection,
    suffix: str = ".png",
    positions_dir: str | None = None,
) -> Iterator[tuple[str, Callable]]:
    """Yield the names of files, and functions that write them to a path.

    What a model does not have, such as a position embedding, is left out.

    Args:
        inspection: What was seen.
        suffix: .png or .svg.
        positions_dir: See `Subject`.
    """
    from keras_vit.analysis import plots

    def saving(draw, *arguments):
        return lambda path: plots.save_figure(draw(*arguments), path)

    yield f"reading{suffix}", saving(plots.plot_readings, inspection)
    for i in range(len(inspection.pixels)):
        yield f"heads_{i + 1}{suffix}", saving(plots.plot_heads, inspection, i)
    yield (
        f"distances{suffix}",
        saving(
            plots.plot_distances,
            inspection.distances,
            inspection.grid_size,
            inspection.patch_size,
            inspection.num_prefix_tokens,
        ),
    )
    yield f"norms{suffix}", saving(plots.plot_token_norms, inspection)
    if inspection.similarity is not None:
        similarity = inspection.similarity
        yield (
            f"positions{suffix}",
            saving(plots.plot_position_similarity, similarity),
        )
    # Of other channels there is no picture.
    if inspection.filters is not None and inspection.config.channels in (1, 3):
        yield f"filters{suffix}", saving(plots.plot_filters, inspection.filters)
    if positions_dir and os.path.isdir(positions_dir):

        def write_film(path):
            frames, steps = read_positions(positions_dir)
            plots.film_position_similarity(frames, steps, path)

        yield "positions.gif", write_film


def compare_blocks(first: Subject, second: Subject, images, path):
    """Draw how alike the blocks of two models are, see `linear_cka`.

    Shapes:
        images: (B, H, W, C), as both models read them.

    Args:
        first: The model from below.
        second: The model from the left; may be the same.
        images: What they look at.
        path: The file to write.
    """
    from keras_vit.analysis import plots

    similarity = representation_similarity(first.model, second.model, images)
    names = (first.name, second.name)
    figure = plots.plot_representation_similarity(similarity, names)
    plots.save_figure(figure, path)


def check_paths(sources: Sequence[str], paths: Sequence[str]):
    """Raise a ValueError unless there are images to look at.

    Args:
        sources: See `inspect_sources`.
        paths: See `inspect_sources`.
    """
    if not paths and not is_run(sources[0]):
        raise ValueError(
            "Name one image file or more: only the folder of a run says where "
            f"images are. Received: {sources[0]!r}, which is none"
        )
    for path in paths:
        if not os.path.isfile(path):
            raise ValueError(f"There is no image file {path!r}.")


def check_folder(out_dir: pathlib.Path):
    """Raise an OSError unless files can be written to a folder.

    It is made with the first of them, so that a mistake leaves none behind.

    Args:
        out_dir: The folder; need not exist.
    """
    place = out_dir.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise OSError(f"--out must be a folder to write to, not {out_dir}.")


def name_apart(
    subjects: Sequence[Subject], sources: Sequence[str]
) -> list[Subject]:
    """Return the subjects, called by their full paths if alike in name.

    Args:
        subjects: What was opened.
        sources: From where.
    """
    if len({subject.name for subject in subjects}) == len(subjects):
        return list(subjects)
    return [
        dataclasses.replace(subject, name=source)
        for subject, source in zip(subjects, sources)
    ]


def look(subject: Subject, images, names: Sequence[str]) -> Inspection:
    """Return what there is to see, with a progress bar.

    Shapes:
        images: (B, H, W, C), as the model reads them.

    Args:
        subject: Whose model looks.
        images: What it looks at.
        names: What the images are called.
    """
    return inspect_model(
        subject.model,
        images,
        model_name=subject.name,
        image_names=names,
        class_names=subject.class_names,
        activation=subject.activation,
        value_range=subject.value_range,
        report=Bar(f"Looking with {subject.name}"),
    )


class Bar:
    """A progress bar, called with the steps done and those in all.

    Args:
        title: Stands in the line above.
    """

    def __init__(self, title: str):
        print(title)
        self._bar = None

    def __call__(self, done: int, steps: int):
        if self._bar is None:
            # On a terminal the bar moves; a log gets a line now and then.
            interval = 0.1 if sys.stdout.isatty() else 30
            self._bar = keras.utils.Progbar(
                steps, interval=interval, unit_name="step"
            )
        self._bar.update(done)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: The command line without the program, default that of this
            process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.inspect",
        description="Draw what a Vision Transformer looks at and what it has "
        "learned, and write a page to explore it with, report.html.",
    )
    parser.add_argument(
        "model",
        help="the folder of a run, a .keras file, a checkpoint of any family, "
        "or the name of a pretrained model",
    )
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="an image file; without any, test images of the run",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where to write; default: the folder `inspection` of the run",
    )
    parser.add_argument(
        "--compare",
        metavar="MODEL",
        help="a second model, to show beside the first",
    )
    parser.add_argument(
        "--num_images",
        type=parse_count,
        help=f"how many test images of the run (default: {NUM_IMAGES})",
    )
    parser.add_argument(
        "--format",
        choices=["png", "svg"],
        default="png",
        help="of the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--image_size",
        type=parse_image_size,
        metavar="SIZE",
        help="resize a checkpoint to images of this size",
    )
    add_hints(parser)
    options = parser.parse_args(arguments)
    out_dir = options.out
    if options.num_images and options.images:
        parser.error("--num_images is for test images; IMAGE names others")
    if not out_dir:
        if not is_run(options.model):
            parser.error("--out is needed: MODEL is not the folder of a run")
        out_dir = os.path.join(options.model, "inspection")
    sources = [options.model, options.compare][: 1 + bool(options.compare)]
    try:
        for path in inspect_sources(
            sources,
            options.images,
            out_dir,
            options.num_images or NUM_IMAGES,
            f".{options.format}",
            num_heads=options.num_heads,
            image_size=options.image_size,
            source_image_size=options.source_image_size,
        ):
            print(path)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def parse_count(text: str) -> int:
    """Return a number from 1 on.

    Args:
        text: As it was typed.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
