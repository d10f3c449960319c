"""The shapes in a file, looked up by the layers of a VisionTransformer."""

import collections
from collections.abc import Collection

import numpy as np

from keras_vit.weights.detect import Detected
from keras_vit.weights.foreign_parts import foreign_parts


class Shapes:
    """The shapes of the arrays of a checkpoint, by layer and weight.

    A weight is identified by the template of its layer, the kind of the layer
    and the name of the weight, such as ("encoder_norm", "norm", "gamma").
    Keyword arguments are the indices in the template.

    Args:
        detected: The checkpoint.
    """

    def __init__(self, detected: Detected):
        self.detected = detected
        self.layout = detected.layout

    @property
    def stored_names(self) -> Collection[str]:
        """The names as they are in the file."""
        return self.detected.checkpoint.entries.keys()

    def fail(self, message: str):
        """Raise a ValueError that names the file.

        Args:
            message: The message of the error.
        """
        names = self.detected.names
        foreign = foreign_parts(n for n in names if not self.layout.knows(n))
        if foreign:
            message += f" It is a model with {', '.join(foreign)}."
        raise ValueError(f"{self.detected.checkpoint.path}: {message}")

    def name_of(self, template: str, kind: str, weight: str, **fields):
        """Return the name of a weight in the family, or None."""
        name = self.layout.names.get(template)
        if name is None:
            return None
        name = name if isinstance(name, str) else name[0]
        index = fields.get("i")
        fields["_i"] = f"_{index}" if index else ""
        return (
            name.format(**fields)
            + self.layout.style_of(template, kind)[weight][0]
        )

    def has(self, *row) -> bool:
        """Return whether the file has a weight."""
        return self.in_file(*row) is not None

    def in_file(self, *row, **fields) -> tuple | None:
        """Return the shape of a weight in the file, None if it is missing."""
        name = self.name_of(*row, **fields)
        if name not in self.detected.names:
            return None
        return self.detected.shape(name)

    def get(self, *row, rank: int, **fields) -> tuple | None:
        """Return the shape of a weight in the model, None if it is missing.

        Fails unless the stored array has `rank` axes.
        """
        shape = self.in_file(*row, **fields)
        if shape is None:
            return None
        if len(shape) != rank or 0 in shape:
            name = self.name_of(*row, **fields)
            self.fail(f"{name} has the shape {shape}, not of rank {rank}.")
        template, kind, weight = row
        array = np.broadcast_to(np.float32(0), shape)
        _, form = self.layout.style_of(template, kind)[weight]
        return form.to_ours(array, shape).shape

    def need(self, *row, rank: int, **fields) -> tuple:
        """Return the result of `get`; fail if the weight is missing."""
        shape = self.get(*row, rank=rank, **fields)
        if shape is None:
            self.fail(f"it lacks {self.name_of(*row, **fields)}.")
        return shape

    def vote(self, *witnesses) -> int | None:
        """Return the most frequent size in several arrays, None without one.

        Several arrays contain each size. A damaged array is outvoted here, and
        reported when all arrays are compared with the configuration.

        Args:
            *witnesses: Template, kind, weight, rank and axis of each array.
        """
        votes = collections.Counter()
        for *row, rank, axis in witnesses:
            for index in range(3 if "{i" in row[0] else 1):
                shape = self.in_file(*row, i=index)
                if shape is not None and len(shape) == rank and 0 not in shape:
                    votes[self.get(*row, rank=rank, i=index)[axis]] += 1
        return votes.most_common(1)[0][0] if votes else None
