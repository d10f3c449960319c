"""Convert a checkpoint: `python -m keras_vit.convert SRC DST --layout=timm`."""

if __name__ == "__main__":  # A mistyped argument is found before slow imports.
    from keras_vit.command_line import begin, make_convert_parser

    begin(make_convert_parser)

import pathlib
import sys

from keras_vit.command_line import (
    hints_of,
    import_tensorflow,
    make_convert_parser,
)
from keras_vit.errors import message_of
from keras_vit.files import atomic_write, check_parents
from keras_vit.model_files import (
    enough_memory,
    find_model,
    known_classes,
    open_model,
    read_classes,
    stated_class_names,
    write_class_names,
)
from keras_vit.models import DensePredictor, VisionTransformer
from keras_vit.models.tuning import copy_model
from keras_vit.tables import check_name
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.hub import locate
from keras_vit.weights.write import WRITERS, save_checkpoint


def convert(
    source: str,
    target: str,
    layout: str,
    *,
    image_size: tuple[int, int] | int | None = None,
    layer_norm_epsilon: float | None = None,
    overwrite: bool = False,
    **hints,
) -> tuple[str, ...]:
    """Convert a checkpoint to another family.

    Args:
        source: See `path_or_name` of `from_checkpoint`; or a `.keras` file of
            this package, also of a DensePredictor, or the folder of a run. A
            folder for another library gets the class names of the run, or
            of the config.json beside the checkpoint.
        target: The file or folder to write.
        layout: "official", "big_vision", "timm", "huggingface", or "keras"
            for a `.keras` file.
        image_size: Image size of the new model, to which the position table is
            resized. Default: that of the source.
        layer_norm_epsilon: Epsilon of the new model. Default: that of the
            source.
        overwrite: Whether to replace a file, or files in a folder, that are
            there.
        **hints: What the source does not state, as for `from_checkpoint`:
            `num_heads`, `source_image_size` and `architecture`.

    Returns:
        Notes on settings that the file cannot record, such as another GELU.

    Raises:
        ValueError: If the source cannot be read, the layout cannot express its
            model, or the target is there.
        NotADirectoryError: If a folder that it is to be in is a file.
        MemoryError: If the memory is not enough.
    """
    check_name((*WRITERS, "keras"), layout, "layout")
    if layout == "keras" and not target.endswith(".keras"):
        raise ValueError(
            "`target` must end in .keras with layout='keras'. "
            f"Received: target={target!r}"
        )
    path = pathlib.Path(target).expanduser()
    check_parents(path)
    is_there = path.is_file() or (path.is_dir() and any(path.iterdir()))
    if is_there and not overwrite:
        raise ValueError(
            "`target` must be a new file or a new folder, unless it is to be "
            f"overwritten (--overwrite). Received: target={target!r}, which "
            "is there"
        )
    source = find_model(source)
    with enough_memory(image_size):
        kinds = (VisionTransformer, DensePredictor)
        model = open_model(source, image_size=image_size, kinds=kinds, **hints)
        if layer_norm_epsilon is not None:
            model = model.with_layer_norm_epsilon(layer_norm_epsilon)
        names = ()
        is_keras = layout == "keras"
        has_names = is_keras or LAYOUTS[layout].class_entries([]) is not None
        # A DensePredictor knows its classes itself.
        if has_names and isinstance(model, VisionTransformer):
            # Names that do not fit are an error before anything is written.
            count = model.config.num_classes
            names = read_classes(source, count) or known_classes(model)
            if not names and not source.endswith(".keras"):
                names = stated_class_names(locate(source), count)
        if not is_keras:
            notes = save_checkpoint(model, target, layout=layout)
            write_class_names(target, layout, names)
            return notes
        if names and not known_classes(model):
            model = copy_model(model, class_names=tuple(names))
        with atomic_write(path) as draft:
            model.save(draft)
    return ()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: The arguments; default is the command line of this process.
    """
    options = make_convert_parser().parse_args(arguments)
    if options.layout == "keras":
        import_tensorflow()  # Keras does to save a model, on any backend.
    try:
        # Its notes are logged.
        convert(
            options.source,
            options.target,
            options.layout,
            image_size=options.image_size,
            layer_norm_epsilon=options.layer_norm_epsilon,
            overwrite=options.overwrite,
            **hints_of(options),
        )
    except (ValueError, OSError, MemoryError) as error:
        print(f"Error: {message_of(error)}", file=sys.stderr)
        return 1
    print(f"{options.target}: written, {options.layout}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
