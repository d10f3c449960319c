"""Convert checkpoints: `python -m keras_vit.convert SRC DST --layout=timm`."""

import argparse
import sys

import keras

from keras_vit.files import atomic_write
from keras_vit.inspect_checkpoint import add_hints, parse_image_size
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.tables import pick
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.loading import from_checkpoint
from keras_vit.weights.saving import WRITERS, save_checkpoint


def convert(
    source: str,
    target: str,
    layout: str,
    num_heads: int | None = None,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> tuple[str, ...]:
    """Write the model of one checkpoint as another.

    Args:
        source: As `path_or_name` of `from_checkpoint`, or a `.keras` file of
            this package.
        target: The file or folder to write.
        layout: "official", "big_vision", "timm", "huggingface", or "keras"
            for a `.keras` file.
        num_heads: Number of attention heads, if the source does not say.
        image_size: The positions are resized to it; default as in the source.
        source_image_size: Of the images of the source, if it does not say.

    Returns:
        What a reader must know because the file cannot say it.

    Raises:
        ValueError: If the source cannot be read or the layout cannot express
            its model.
    """
    pick(dict.fromkeys((*WRITERS, "keras")), layout, "layout")
    if layout == "keras" and not target.endswith(".keras"):
        raise ValueError(
            "`target` must end in .keras with layout='keras'. "
            f"Received: target={target!r}"
        )
    model = open_model(source, num_heads, image_size, source_image_size)
    if layout != "keras":
        return save_checkpoint(model, target, layout=layout)
    with atomic_write(target) as draft:
        model.save(draft)
    return ()


def open_model(
    source: str,
    num_heads: int | None = None,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> VisionTransformer:
    """Return the model of a `.keras` file or a checkpoint of any family.

    Args:
        source: See `convert`.
        num_heads: See `convert`.
        image_size: See `convert`.
        source_image_size: See `convert`.

    Raises:
        ValueError: If the source cannot be read or is of another model.
    """
    if not source.endswith(".keras"):
        return from_checkpoint(
            source,
            num_heads=num_heads,
            image_size=image_size,
            source_image_size=source_image_size,
        )
    model = keras.saving.load_model(source, compile=False)
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{source} holds no VisionTransformer but a {type(model).__name__}."
        )
    return model if image_size is None else model.with_image_size(image_size)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    Args:
        arguments: The command line without the program, default that of this
            process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.convert",
        description="Write the weights of a Vision Transformer for the users "
        "of another library.",
        epilog="Layouts: "
        + "; ".join(f"{name}: {LAYOUTS[name].title}" for name in WRITERS)
        + "; keras: a .keras file.",
    )
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a checkpoint of any family, a .keras file of this package, or "
        "the name of a pretrained model",
    )
    parser.add_argument("target", metavar="DST", help="what to write")
    parser.add_argument(
        "--layout", required=True, choices=[*WRITERS, "keras"], help="see below"
    )
    parser.add_argument(
        "--image_size",
        type=parse_image_size,
        metavar="SIZE",
        help="resize the positions to images of this size",
    )
    add_hints(parser)
    options = parser.parse_args(arguments)
    try:
        # What the reader must know is logged.
        convert(
            options.source,
            options.target,
            options.layout,
            options.num_heads,
            options.image_size,
            options.source_image_size,
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.target}: written, {options.layout}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
