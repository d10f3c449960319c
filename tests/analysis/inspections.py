"""Inspections made of seeded numbers: no model is run."""

import keras
import numpy as np

from keras_vit.analysis import Inspection, PrincipalFilters, roll_out
from tests.tiny import tiny_config


def make_inspection(
    grid_size=(3, 4),
    images=2,
    layers=3,
    heads=2,
    classes=6,
    num_prefix_tokens=1,
    num_registers=0,
    reads_patches=False,
    channels=3,
    sharpness=2.0,
    seed=0,
    **changes,
):
    """Return an Inspection of softmax maps, with `changes` to its fields.

    The registers are among the prefix tokens. Its arrays cannot be written.
    Patches have 8 pixels.
    """
    rng = np.random.default_rng(seed)
    h, w = grid_size
    length = num_prefix_tokens + h * w
    config = tiny_config(
        depth=layers,
        num_heads=heads,
        image_size=(8 * h, 8 * w),
        channels=channels,
        num_classes=classes,
        use_class_token=num_prefix_tokens > num_registers,
        num_registers=num_registers,
        pooling="avg" if reads_patches else "token",
    )
    shape = (layers, images, heads, length, length)
    maps = np.exp(sharpness * rng.standard_normal(shape, "float32"))
    maps /= maps.sum(axis=-1, keepdims=True)
    maps = maps.astype("float16")
    probabilities = rng.dirichlet(np.ones(classes), images).astype("float32")
    top = np.argsort(-probabilities, axis=1)[:, :3]
    norms = rng.uniform(5, 9, (layers, images, length)).astype("float32")
    norms[-1, 0, -2] = 80  # An artefact.
    vectors = rng.standard_normal((h * w, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = (vectors @ vectors.T).reshape(h, w, h, w).astype("float32")
    fields = {
        "model_name": "a small model",
        "config": config,
        "image_names": tuple(f"photo {i + 1}.jpg" for i in range(images)),
        "pixels": rng.integers(
            0, 256, (images, 8 * h, 8 * w, channels), dtype="uint8"
        ),
        "grid_size": grid_size,
        "maps": maps,
        "rollouts": keras.ops.convert_to_numpy(roll_out(maps)),
        "token_norms": norms,
        "distances": rng.uniform(3, 30, (layers, heads)).astype("float32"),
        "similarity": similarity,
        "filters": PrincipalFilters(
            rng.standard_normal((4, 8, 8, channels), "float32"),
            np.array([0.5, 0.2, 0.1, 0.05], "float32"),
        ),
        "class_names": tuple(f"class {i}" for i in range(classes)),
        "probabilities": probabilities,
        "top_classes": top,
        "relevances": 1e-3
        * rng.exponential(size=(images, 3, length, length)).astype("float32")
        + np.eye(length, dtype="float32"),
    }
    inspection = Inspection(**{**fields, **changes})
    for value in vars(inspection).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return inspection


# The fields of a model without a head.
HEADLESS = dict.fromkeys(
    ("class_names", "probabilities", "top_classes", "relevances")
)
