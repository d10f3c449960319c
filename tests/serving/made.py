"""Small SavedModels: exports, and one of unusual types."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import Serving, export_file

SHAPE = (8, 12, 3)


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
THRESHOLDS = (0.1, 0.9, 0.5, 0.2, 0.99, 0.6, 0.4)
LEAST = 0.4  # Probability of a known image.
# Those of an exported model.
SIGNATURES = (
    "attention",
    "attention_bytes",
    "features",
    "serve_bytes",
    "serve_uint8",
    "serving_default",
)


def export_model(path, seed, **choices):
    """Export a model whose weights are all random, none zero.

    The choices are those of `Serving`.
    """
    config = ViTConfig(
        24, 1, 48, 3, patch_size=4, image_size=SHAPE[:2], num_classes=7
    )
    model = VisionTransformer(config)
    random = np.random.default_rng(seed)
    for weight in model.weights:
        value = random.normal(scale=0.3, size=weight.shape)
        weight.assign(value + (1 if weight.name == "gamma" else 0))
    images = random.uniform(-1, 1, (3, *SHAPE)).astype("float32")
    choices = {"top": 3, "use_attention": True, **choices}
    serving = Serving(class_names=NAMES, **choices)
    export_file(model, path, images, serving=serving)
