"""Reading the text towers of checkpoints: text_from_checkpoint."""

import os

from keras_vit.models.text import TextTransformer
from keras_vit.weights.containers import File, open_file
from keras_vit.weights.find import find_text
from keras_vit.weights.hub import locate
from keras_vit.weights.read import LoadReport, join_parts, warn


def text_from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    dtype=None,
    name: str = "text_transformer",
) -> TextTransformer:
    """Build the text tower of a checkpoint and load its weights.

    It is beside an image tower, which `from_checkpoint` reads. The names of the
    arrays and the JSON beside them determine the whole configuration.

    Args:
        path_or_name: See `from_checkpoint`: a folder or a file of CLIP,
            MetaCLIP 2, SigLIP or SigLIP 2 as transformers or OpenCLIP write it,
            with its JSON.
        dtype: Dtype policy of the layers, such as "mixed_bfloat16".
        name: Name of the model.

    Returns:
        A TextTransformer with a `load_report`, see `LoadReport`.

    Raises:
        ValueError: If the file is damaged, incomplete or has no such tower. The
            message names the file and every array that does not fit.
        ConnectionError: If a download fails.
    """
    with open_file(locate(path_or_name)) as file:
        model = load_text(file, dtype, name)
    warn(model.load_report, stacklevel=2)
    return model


def load_text(
    file: File, dtype=None, name: str = "text_transformer"
) -> TextTransformer:
    """Return the text tower in a file, see `text_from_checkpoint`."""
    found, used = find_text(file), []
    model = TextTransformer(found.config, dtype=dtype, name=name)
    for weight in model.weights:
        parts = found.parts[weight.path]
        places = [found.places[part.name] for part in parts]
        weight.assign(join_parts(parts, [file.read(*p) for p in places]))
        used += [raw for raw, _ in places]
    model.load_report = LoadReport(
        file.path, found.key, tuple(used), (), (), found.ignored, found.notes
    )
    return model
