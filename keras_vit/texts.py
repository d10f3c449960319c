"""Texts beside images: their vectors, and classifiers whose classes are texts.

CLIP and SigLIP learned vectors of images and of texts that are near each other
if they belong together. So the vector of "a photo of a cat" is the row of a
classifier for cats, which nobody trained.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.layers.base import as_float32, refuse_quantized
from keras_vit.models import VisionTransformer
from keras_vit.models.text import TextTransformer
from keras_vit.models.tuning import copy_model
from keras_vit.tokenization import read_tokenizer
from keras_vit.weights.containers import open_file
from keras_vit.weights.hub import locate, locate_tokenizer
from keras_vit.weights.read import from_checkpoint, load_text, warn

HEAD = "predictions"
TEMPLATES = ("a photo of a {}.",)


class TextEncoder(NamedTuple):
    """The text tower of a model with its tokenizer.

    Args:
        model: The tower.
        tokenizer: Returns the tokens of texts, (N, L) whole numbers, such as a
            `keras_vit.tokenization.Tokenizer`.
    """

    model: TextTransformer
    tokenizer: Callable[[Sequence[str]], np.ndarray]

    def __call__(
        self, texts: Sequence[str], batch_size: int = 64
    ) -> np.ndarray:
        """Return the vectors of texts, each of length 1.

        The product of two vectors is the cosine of their angle; those of images
        are the features of the image tower, divided by their length.

        Shapes:
            returns: (N, D), float32.

        Args:
            texts: N texts; what is too long is cut.
            batch_size: Number of texts in memory at a time.

        Raises:
            ValueError: If they are no texts, or the tokenizer is of another
                model.
        """
        check_texts(texts, "texts")
        tokens = np.asarray(self.tokenizer(texts))
        config = self.model.config
        count, end = config.vocabulary_size, config.end_token
        if config.pooling == "end" and not (tokens == end).any(axis=-1).all():
            raise ValueError(
                f"`tokenizer` must end texts by the token {end} of the model. "
                f"Received: texts without it, such as {tokens[0].tolist()}"
            )
        if not (0 <= tokens.min() and tokens.max() < count):
            raise ValueError(
                f"`tokenizer` must be that of the model, whose {count} tokens "
                f"are 0 to {count - 1}. Received: tokens {tokens.min()} to "
                f"{tokens.max()}"
            )
        vectors = self.model.predict(tokens, batch_size=batch_size, verbose=0)
        return _normalize(vectors)


def load_text_encoder(
    path_or_name: str | os.PathLike, *, dtype=None
) -> TextEncoder:
    """Return the text tower of a checkpoint and its tokenizer.

    Args:
        path_or_name: A folder of CLIP, MetaCLIP 2, SigLIP or SigLIP 2 as
            transformers or OpenCLIP write it, with the files of its tokenizer,
            or "hf://owner/name".
        dtype: Dtype policy of the layers.

    Raises:
        ValueError: If the tower or the tokenizer cannot be read.
        ConnectionError: If a download fails.

    Example:
        >>> encode = load_text_encoder("hf://openai/clip-vit-base-patch32")
        ... # doctest: +SKIP
        >>> encode(["a cat", "a dog"]).shape  # doctest: +SKIP
        (2, 512)
    """
    with open_file(locate(path_or_name)) as file:
        model = load_text(file, dtype)
    warn(model.load_report, stacklevel=2)
    folder = locate_tokenizer(path_or_name)
    length = model.config.context_length
    return TextEncoder(model, read_tokenizer(folder, file.json, length))


def zero_shot(
    model: VisionTransformer | str | os.PathLike,
    class_names: Sequence[str] | Mapping[str, str],
    templates: Sequence[str] = TEMPLATES,
    *,
    text: TextEncoder | None = None,
    **options,
) -> VisionTransformer:
    """Return a classifier of images whose classes are texts.

    The vector of a class is the mean over the templates of the vectors of its
    texts. With unit vectors of images and classes, a logit is
    scale * (image . class) + bias, with the scale and the bias that the model
    learned. The result is a model like any other: it is saved, evaluated,
    fine-tuned and exported without the text tower.

    Args:
        model: A folder or name of a model with both towers, see
            `load_text_encoder`; or its image tower, as `from_checkpoint`
            returns it, with `text`.
        class_names: Names of the classes, as people would write them, in the
            order of the outputs; or a mapping from the names of a data set to
            such names.
        templates: Texts about an image, with {} for the name.
        text: The text tower and its tokenizer. Default: those of `model`.
        **options: Of `from_checkpoint`, such as `image_size` and `dtype`.

    Returns:
        A model that returns probabilities: a softmax over the classes, or a
        sigmoid for each if the model was trained with one (SigLIP).
        `with_classifier_activation(None)` returns logits. The names are
        `model.config.class_names`.

    Raises:
        ValueError: If the towers cannot be read or do not belong together, a
            template has no {}, or names are equal or none at all.
        ConnectionError: If a download fails.

    Reference: Radford et al. 2021, arXiv:2103.00020, section 3.1.
    """
    words = class_names
    if isinstance(class_names, Mapping):
        words, class_names = [*class_names.values()], [*class_names]
        check_texts(words, "class_names")
    check_texts(class_names, "class_names")
    if len(set(class_names)) < len(class_names):
        double = next(n for n in class_names if class_names.count(n) > 1)
        raise ValueError(
            f"`class_names` must differ. Received: {double!r} more than once"
        )
    check_texts(templates, "templates")
    for template in templates:
        if "{}" not in template:
            raise ValueError(
                "`templates` must have {} where the name of the class belongs. "
                f"Received: {template!r}"
            )
    if isinstance(model, VisionTransformer):
        if text is None or options:
            raise ValueError(
                "`text` must be given, and no options of `from_checkpoint`, "
                f"with a model. Received: text={text!r}, options={options}"
            )
    else:
        text = text or load_text_encoder(model)
        model = from_checkpoint(model, **options)
    _check_towers(model, text)
    texts = [t.replace("{}", word) for word in words for t in templates]
    vectors = text(texts).reshape(len(class_names), len(templates), -1)
    return _with_classes(
        model, _normalize(vectors.mean(axis=1)), class_names, text.model.config
    )


def check_texts(texts, argument: str):
    """Raise a ValueError unless an argument is a sequence of strings."""
    is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not is_list or not texts or not all(isinstance(t, str) for t in texts):
        raise ValueError(
            f"`{argument}` must be a list of texts, one or more. Received: "
            f"{argument}={texts!r}"
        )


def _normalize(vectors) -> np.ndarray:
    """Return vectors (N, D) divided by their lengths."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(length, 1e-12)


def _check_towers(model, text):
    """Raise a ValueError unless the towers make vectors of the same space."""
    refuse_quantized(model, "call `zero_shot` before `quantize`")
    config, size = model.config, text.model.config.embedding_size
    is_tower = (
        config.pooling != "none"
        and not config.representation_size
        and config.classifier_activation is None
        and config.class_names is None
    )
    given = config.num_classes or model.output_shape[-1]
    if not is_tower or given != size:
        raise ValueError(
            "`model` must be an image tower that returns vectors of "
            f"{size} numbers, as the text tower does. Received: a model with "
            f"output_shape={model.output_shape}, "
            f"pooling={config.pooling!r}, "
            f"representation_size={config.representation_size}, "
            f"classifier_activation={config.classifier_activation!r}, "
            f"class_names={config.class_names!r}"
        )
    if text.model.config.logit_scale is None:
        raise ValueError(
            "`text` must have the scale of the logits, `logit_scale` in its "
            "configuration. Received: logit_scale=None"
        )


def _with_classes(model, vectors, class_names, text) -> VisionTransformer:
    """Return the classifier whose head has the class vectors (N, D).

    `text` is the configuration of the text tower. What is the head of the image
    tower is the projection before the new one.
    """
    size = model.config.num_classes or None
    activation = "softmax" if text.logit_bias is None else "sigmoid"
    copy = copy_model(
        model,
        ("pre_logits", "unit_norm", HEAD),
        representation="unit",
        representation_size=size,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        classifier_activation=activation,
    )
    if size:
        projection, old = copy.get_layer("pre_logits"), model.get_layer(HEAD)
        projection.kernel.assign(np.array(as_float32(old.kernel)))
        projection.bias.assign(np.array(as_float32(old.bias)))
    head = copy.get_layer(HEAD)
    head.kernel.assign(text.logit_scale * vectors.T)
    head.bias.assign(np.full(len(vectors), text.logit_bias or 0.0, "float32"))
    return copy
