"""A small SavedModel with the signatures of an exported model."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import Serving, export_saved_model

SHAPE = (6, 4, 3)
LABELS = ("ant", "bee", "cow", "dög", "elk")


def write_model(path, seed=0):
    """Write it; `seed` makes other weights."""
    random = np.random.default_rng(seed)
    size = int(np.prod(SHAPE))
    into, head = (
        tf.Variable(random.normal(size=shape, scale=0.3).astype("float32"))
        for shape in ((size, 7), (7, len(LABELS)))
    )

    def features(images):
        images = tf.ensure_shape(images, (None, *SHAPE))
        return {"features": tf.tanh(tf.reshape(images, (-1, size)) @ into)}

    def serve(images):
        return {"logits": features(images)["features"] @ head}

    def serve_uint8(images):
        return serve(tf.cast(images, tf.float32) / 127.5 - 1)

    def read(content):
        image = tf.io.decode_image(content, 3, expand_animations=False)
        image.set_shape((None, None, 3))
        return tf.image.resize(image, SHAPE[:2]) / 127.5 - 1

    def serve_bytes(image_bytes):
        images = tf.map_fn(
            read,
            image_bytes,
            fn_output_signature=tf.TensorSpec(SHAPE, tf.float32),
        )
        probabilities = tf.nn.softmax(serve(images)["logits"])
        values, indices = tf.math.top_k(probabilities, 3)
        return {
            "labels": tf.gather(tf.constant(LABELS), indices),
            "probabilities": values,
        }

    archive = keras.export.ExportArchive()
    for name, function, shape, dtype, argument in (
        ("serving_default", serve, SHAPE, tf.float32, "images"),
        ("serve_uint8", serve_uint8, SHAPE, tf.uint8, "images"),
        ("serve_bytes", serve_bytes, (), tf.string, "image_bytes"),
        ("features", features, SHAPE, tf.float32, "images"),
    ):
        spec = tf.TensorSpec((None, *shape), dtype, name=argument)
        archive.add_endpoint(name, function, input_signature=[spec])
    archive.write_out(str(path), verbose=False)


def write_odd_model(path):
    """Write a model of types that exported models do not have."""

    def half(x):
        return {"half": tf.cast(x, tf.bfloat16)}

    def several(x):
        rows = tf.shape(x)[0]
        return {
            "text_bytes": tf.repeat(tf.constant([b"\xff\x00"]), rows),
            "text": tf.repeat("ß", rows),
            "is_large": x > 1,
            "count": tf.cast(x, tf.int64) * 2**40,
            "infinite": x / 0,
        }

    archive = keras.export.ExportArchive()
    for name, function in (("serving_default", half), ("several", several)):
        spec = tf.TensorSpec((None,), tf.float32, name="x")
        archive.add_endpoint(name, function, input_signature=[spec])
    archive.write_out(str(path), verbose=False)


def make_images(count, seed=1):
    random = np.random.default_rng(seed)
    return random.uniform(-1, 1, (count, *SHAPE)).astype("float32")


def make_files(count, seed=2):
    """Return the contents of PNG and JPEG files of several sizes."""
    random = np.random.default_rng(seed)
    files = []
    for i in range(count):
        pixels = random.integers(0, 256, (6 + i, 4 + i % 3, 3), "uint8")
        encode = (tf.io.encode_png, tf.io.encode_jpeg)[i % 2]
        files.append(encode(pixels).numpy())
    return files


NAMES = ("ant", "bee", "cow", "dög", "elk", "fly", "gnu")
# Those of an exported model.
SIGNATURES = (
    "attention",
    "attention_bytes",
    "features",
    "serve_bytes",
    "serve_uint8",
    "serving_default",
)


def export_model(path, seed):
    """Export a model whose weights are all random, none zero."""
    config = ViTConfig(
        24, 1, 48, 3, patch_size=4, image_size=(8, 12), num_classes=7
    )
    model = VisionTransformer(config)
    random = np.random.default_rng(seed)
    for weight in model.weights:
        value = random.normal(scale=0.3, size=weight.shape)
        weight.assign(value + (1 if weight.name == "gamma" else 0))
    images = random.uniform(-1, 1, (3, 8, 12, 3)).astype("float32")
    serving = Serving(class_names=NAMES, top=3, use_attention=True)
    export_saved_model(model, str(path), images, serving)
