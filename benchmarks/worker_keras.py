"""The worker for Keras on TensorFlow: ours, keras-hub, a matrix product."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks.harness import build_ours, random_batch
from benchmarks.pipe import answer_requests, repeat


def make_functions(case: dict) -> tuple[dict[str, Callable], dict]:
    """Return the functions for `case`, and the versions of the packages."""
    tf.config.threading.set_intra_op_parallelism_threads(case["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(case["threads"])
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    model = MODEL_BUILDERS[case["package"]](case, versions)
    step = {"forward": forward_step, "train": train_step}[case["task"]]
    return {"step": step(model, case), "product": product(case)}, versions


def our_model(case: dict, versions: dict) -> keras.Model:
    """Return keras_vit's model of `case["config"]`."""
    return build_ours(case)


def keras_hub_model(case: dict, versions: dict) -> keras.Model:
    """Return keras-hub's model of `case["config"]`."""
    import keras_hub

    versions["keras-hub"] = keras_hub.__version__
    config = case["config"]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(*config["image_size"], config["channels"]),
        patch_size=config["patch_size"],
        num_layers=config["depth"],
        num_heads=config["num_heads"],
        hidden_dim=config["width"],
        mlp_dim=config["mlp_dim"],
        dtype=case["precision"],
    )
    return keras_hub.models.ViTImageClassifier(
        backbone, num_classes=config["num_classes"]
    )


def forward_step(model: keras.Model, case: dict) -> Callable[[], object]:
    """Return the inference of a batch, a compiled graph."""
    images, _ = batch(case)

    @tf.function(jit_compile=case["compile"])
    def forward(images):
        return model(images, training=False)

    return repeat(lambda: forward(images), np.asarray, case["steps"])


def train_step(model: keras.Model, case: dict) -> Callable[[], object]:
    """Return a training step with cross-entropy and Adam, a compiled graph."""
    images, labels = batch(case)
    variables = model.trainable_variables
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=case["compile"])
    def train(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(gradients, variables)
        return loss

    return repeat(lambda: train(images, labels), np.asarray, case["steps"])


def batch(case: dict) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `random_batch` as tensors of TensorFlow."""
    images, labels = random_batch(case)
    return tf.constant(images), tf.constant(labels)


def product(case: dict) -> Callable[[], object]:
    """Return one product of matrices of `case["matrix_shape"]`."""
    rows, inner, columns = case["matrix_shape"]
    a, b = (
        tf.cast(tf.random.uniform(shape, -1, 1), case["matrix_dtype"])
        for shape in ((rows, inner), (inner, columns))
    )
    multiply = tf.function(tf.matmul)
    # One number is fetched, which waits for the whole product.
    return lambda: multiply(a, b)[0, 0].numpy()


MODEL_BUILDERS = {"ours": our_model, "keras-hub": keras_hub_model}

if __name__ == "__main__":
    answer_requests(make_functions)
