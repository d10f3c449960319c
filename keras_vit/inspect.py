"""Inspect a model file: `python -m keras_vit.inspect MODEL IMAGE... --out=DIR`.

Draws the pictures of `keras_vit.analysis.plots` and writes report.html, an
interactive page. For the folder of a run, use `keras-vit inspect`.
"""

if __name__ == "__main__":  # A mistyped argument is found before slow imports.
    from keras_vit.command_line import begin, make_inspect_parser

    begin(make_inspect_parser)

import argparse
import pathlib
import shlex
import sys

from keras_vit.analysis.gallery import (
    Subject,
    check_inputs,
    load_images,
    name_apart,
    write_gallery,
)
from keras_vit.command_line import hints_of, make_inspect_parser, run_command
from keras_vit.model_files import (
    enough_memory,
    is_run,
    known_classes,
    open_model,
    stated_class_names,
)
from keras_vit.preprocessing import (
    imagenet_classes,
    preprocess_input,
    read_image,
)
from keras_vit.weights.hub import locate


def open_subject(source: str, **hints) -> Subject:
    """Open a `.keras` file, a checkpoint or a published model.

    Its images are resized, cropped and normalised as `config.preprocessing` of
    the model says.

    Raises:
        ValueError: If it does not contain a VisionTransformer.
        MemoryError: If the memory is not enough.
    """
    with enough_memory(hints.get("image_size")):
        model = open_model(source, **hints)
    config = model.config

    def read(path):
        pixels = read_image(path, model=model)
        return preprocess_input(pixels, "channels_last", model=model)

    imagenet = [name for _, name in imagenet_classes()]
    class_names = known_classes(model)
    if not class_names:
        place = source if source.endswith(".keras") else locate(source)
        class_names = stated_class_names(place, config.num_classes)
    if class_names is None and config.num_classes == len(imagenet):
        class_names = imagenet
    if class_names == imagenet:
        # "tench, Tinca tinca" is shortened to its first name.
        class_names = [name.split(",")[0] for name in imagenet]
    return Subject(pathlib.Path(source).name, model, read, class_names)


def inspect_files(options: argparse.Namespace) -> list[pathlib.Path]:
    """Write the files that the command line requests; return their paths."""
    sources = [options.model, *filter(None, [options.compare])]
    for source in filter(is_run, sources):
        raise ValueError(
            f"{source} is the folder of a run. Type: "
            f"keras-vit inspect --run_dir={shlex.quote(source)}"
        )
    check_inputs(options.images, options.out)
    is_file = [source.endswith(".keras") for source in sources]
    subjects = []
    for source, is_keras in zip(sources, is_file):
        # Beside a checkpoint, a .keras file has no hints: they are about the
        # checkpoint.
        hints = {} if is_keras and not all(is_file) else hints_of(options)
        subjects.append(
            open_subject(source, image_size=options.image_size, **hints)
        )
    subjects = name_apart(subjects, sources)
    # All images are read before the first model runs.
    images = [load_images(subject, options.images) for subject in subjects]
    return write_gallery(subjects, images, options.out, f".{options.format}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = make_inspect_parser()
    options = parser.parse_args(arguments)
    # The folder of a run gets a separate error message.
    if not is_run(options.model) and not (options.images and options.out):
        parser.error("name one IMAGE or more, and the folder --out=DIR")
    return run_command(lambda: print(*inspect_files(options), sep="\n"))


if __name__ == "__main__":
    sys.exit(main())
