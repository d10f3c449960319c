"""Arrays as a published file of BiT holds them, with random values.

The names and shapes are written out as in bit_pytorch/models.py of
google-research/big_transfer, independently of our reader.
"""

import numpy as np


def draw_bit_arrays(units, factor=1, channels=3, num_classes=7):
    """Return random arrays by their published names; no norm is an identity."""
    width = int(64 * factor)
    shapes = {"root_block/standardized_conv2d/kernel": (7, 7, channels, width)}
    inputs = width
    for block, num_units in enumerate(units):
        f = width * 2**block
        for unit in range(num_units):
            prefix = f"block{block + 1}/unit{unit + 1:02d}"
            kernels = {"a": (1, 1, inputs, f), "b": (3, 3, f, f)}
            kernels["c"] = (1, 1, f, 4 * f)
            if unit == 0:
                kernels["a/proj"] = (1, 1, inputs, 4 * f)
            for part, shape in kernels.items():
                shapes[f"{prefix}/{part}/standardized_conv2d/kernel"] = shape
                if "proj" not in part:
                    norm = f"{prefix}/{part}/group_norm"
                    shapes[f"{norm}/gamma"] = shapes[f"{norm}/beta"] = shape[
                        2:3
                    ]
            inputs = 4 * f
    shapes["group_norm/gamma"] = shapes["group_norm/beta"] = (inputs,)
    shapes["head/conv2d/kernel"] = (1, 1, inputs, num_classes)
    shapes["head/conv2d/bias"] = (num_classes,)
    draws = np.random.default_rng(len(shapes))
    arrays = {}
    for name, shape in shapes.items():
        array = draws.standard_normal(shape, "float32")
        # A mean, which the standardisation has to remove.
        arrays[f"resnet/{name}"] = {
            "kernel": 0.05 * array + 0.02,
            "gamma": 1 + 0.3 * array,
            "beta": 0.3 * array,
            "bias": array,
        }[name.rpartition("/")[2]]
    return arrays
