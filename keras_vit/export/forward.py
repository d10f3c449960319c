"""What an exported graph computes: the model, without what nobody reads."""

from collections.abc import Callable, Iterator

import keras

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models import VisionTransformer
from keras_vit.models.intermediates import get_block, layers_after_blocks
from keras_vit.tables import pick


def name_output(model: keras.Model, output: str | None = None) -> str:
    """Return what `model` answers with, one of OUTPUTS.

    Without `output` the operations say it, from the last one back to the
    first that does more than to pass numbers on: a softmax or sigmoid gives
    probabilities, a linear layer with weights logits, all else features.

    Args:
        model: Of one input and one output.
        output: What someone who knows it says.

    Raises:
        ValueError: If `output` is unknown.
    """
    if output is not None:
        pick(dict.fromkeys(OUTPUTS), output, "output")
        return output
    if is_headless(model):
        return "features"
    for node in walk_back(model):
        operation = node.operation
        if is_graph(operation):
            return name_output(operation)
        activation = getattr(operation, "activation", operation)
        # Of a function, such as that of a Dense layer, or an operation.
        kind = getattr(activation, "__name__", type(activation).__name__)
        if kind.lower() in ("softmax", "sigmoid"):
            return "probabilities"
        if has_weights(operation):
            return "logits" if kind == "linear" else "features"
        if kind not in ("linear", "Dropout", "Identity"):
            break
    return "features"


def make_forward(
    model: keras.Model, output: str | None = None, is_short: bool = True
) -> Callable:
    """Return the function that answers as `model` does, and shows features.

    A head on the class token reads one row of what the last block answers.
    So only that is computed, but from the keys and values of all tokens:
    about 10 of the 12 D^2 multiplications for a token of that block are
    saved, 7 % of a model of 12 blocks.

    Shapes:
        The function takes images (B, H, W, C) and returns a dict: what
        `name_output` says, and "features" (B, D), what goes into the last
        layer with weights, the head.

    Args:
        model: Of one input and one output. Its layers are called anew.
        output: See `name_output`.
        is_short: Whether to leave out what nobody reads.
    """
    name = name_output(model, output)
    compute = split_at_head(model, name != "features", is_short)

    def forward(images):
        features, answers = compute(images)
        return {"features": features, name: answers}

    return forward


def split_at_head(
    model: keras.Model, has_head: bool, is_short: bool
) -> Callable:
    """Return the function from images to (features, answers).

    Args:
        model: Of one input and one output.
        has_head: Whether features are something else than answers.
        is_short: See `make_forward`.
    """
    has_head = has_head and not is_headless(model)
    *behind, head = walk_back(model)
    if is_graph(head.operation):
        # Of a name of its own Keras would count up, and it is in the exports.
        before = keras.Model(
            model.inputs[0], head.input_tensors[0], name=model.name
        )
        inside = split_at_head(head.operation, has_head, is_short)

        def compute(images):
            features, answers = inside(before(images, training=False))
            for node in reversed(behind):
                known = {id(node.input_tensors[0]): answers}
                args, kwargs = node.arguments.fill_in(known)
                answers = node.operation(*args, **kwargs)
            return (features if has_head else answers), answers

        return compute
    if is_short and reads_one_token(model):
        return split_short(model, has_head)
    answers = model.outputs[0]
    is_known = has_head and len(head.input_tensors) == 1
    features = head.input_tensors[0] if is_known else answers
    both = keras.Model(model.inputs[0], [features, answers], name=model.name)
    return lambda images: both(images, training=False)


def split_short(model: VisionTransformer, has_head: bool) -> Callable:
    """Return what `split_at_head` does, of a model that reads one token."""
    last = get_block(model, model.config.depth - 1)
    start = keras.Model(model.inputs[0], last.input, name=model.name)
    layers = layers_after_blocks(model)

    def compute(images):
        tokens = start(images, training=False)
        answers = last(tokens, training=False, num_queries=1)  # (B, 1, D)
        for layer in layers:
            features, answers = answers, layer(answers)
        return (features if has_head else answers), answers

    return compute


def walk_back(model: keras.Model) -> Iterator:
    """Yield the nodes of the graph from the last to the head.

    The head is the last with weights or, without one, where the graph joins.
    """
    tensor = model.outputs[0]
    while True:
        operation, index, _ = tensor._keras_history
        node = operation._inbound_nodes[index]
        yield node
        if has_weights(operation) or len(node.input_tensors) != 1:
            return
        (tensor,) = node.input_tensors


def has_weights(operation) -> bool:
    """Return whether a layer, or a function without a layer, has weights."""
    return bool(getattr(operation, "weights", ()))


def is_graph(operation) -> bool:
    """Return whether it is a model of one input and one output, of layers."""
    return (
        isinstance(operation, keras.Model)
        and len(getattr(operation, "inputs", None) or ()) == 1
        and len(operation.outputs) == 1
    )


def is_headless(model: keras.Model) -> bool:
    """Return whether it is a VisionTransformer without a classifier."""
    return isinstance(model, VisionTransformer) and not model.config.num_classes


def reads_one_token(model: keras.Model) -> bool:
    """Return whether all that is read of the last block is the class token."""
    return (
        isinstance(model, VisionTransformer)
        and model.config.pooling == "token"
        and not is_quantized(model)
    )


OUTPUTS = ("logits", "probabilities", "features")
