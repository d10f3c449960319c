"""FlexibleVisionTransformer: patches of any size in any grid."""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.base import as_floats, wide
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.positions import PositionEmbedding
from keras_vit.layers.resize import RESIZES, inverse_patch_resize
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.tokens import PatchEncoder, PrefixTokens
from keras_vit.models.vit import check_vision_transformer, position_layers
from keras_vit.preprocessing.description import (
    INTERPOLATIONS,
    preprocessing_of,
)
from keras_vit.preprocessing.image_files import resize
from keras_vit.preprocessing.inputs import preprocess_input


def cut_patches(
    images,
    patch_size: int,
    model_patch_size: int | None = None,
    method: str = "bilinear",
) -> dict:
    """Cut images into patches of any size for a FlexibleVisionTransformer.

    If the model has patches of another size, those of the images are brought
    to it by the pseudo-inverse of a resize. Their product with the kernel of
    the model is then that of the patches with the resized kernel of FlexiViT.
    What is left of an image at its right and lower border is not read.

    Shapes:
        images: (B, H, W, C), preprocessed.
        returns: "patches" (B, N, P * P * C), row by row, and "coordinates"
            (1, N, 2), the row and the column of each.

    Args:
        images: Images of one size.
        patch_size: Side of a patch in pixels.
        model_patch_size: Side P of a patch of the model. Default: `patch_size`.
        method: A key of RESIZES: the rule for resizing patches.

    Raises:
        ValueError: If the images are smaller than a patch, or `patch_size` is
            no positive whole number.

    Example:
        >>> found = models.cut_patches(np.zeros((1, 24, 36, 3)), 12, 8)
        >>> [tuple(found[key].shape) for key in ("patches", "coordinates")]
        [(1, 6, 192), (1, 6, 2)]

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    side, channels = as_whole(patch_size, "patch_size"), images.shape[-1]
    h, w = (size // side for size in images.shape[1:3])
    if not h or not w:
        raise ValueError(
            "`images` must have at least one patch. Received: image "
            f"{images.shape[1]}x{images.shape[2]}, patch_size={patch_size}"
        )
    x = as_floats(images[:, : h * side, : w * side])
    x = ops.reshape(x, (-1, h, side, w, side * channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4))  # (B, h, w, side, side*C)
    x = ops.reshape(x, (-1, h * w, side, side, channels))
    target = model_patch_size or side
    if target != side:
        matrix = inverse_patch_resize(side, target, method)  # (side, P)
        matrix = ops.convert_to_tensor(matrix, dtype=x.dtype)
        for _ in range(2):  # Each product moves its axis behind the others.
            x = ops.tensordot(x, matrix, ((2,), (0,)))
        x = ops.transpose(x, (0, 1, 3, 4, 2))  # (B, N, P, P, C)
    cells = np.stack(np.divmod(np.arange(h * w), w), axis=-1)
    return {
        "patches": ops.reshape(x, (-1, h * w, target * target * channels)),
        "coordinates": ops.convert_to_tensor(cells[None], dtype="int32"),
    }


def preprocess_patches(
    images: Sequence[np.ndarray],
    model: keras.Model,
    max_patches: int,
    patch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Return images of different sizes as one batch of patches.

    Each image is resized to the most patches that are allowed, nearly in its
    own aspect ratio, and normalised for the model. Shorter sequences are
    padded.

    Shapes:
        images: each (H, W, C), uint8, as `read_image` returns them.
        returns: "patches" (B, N, P * P * C), "coordinates" (B, N, 2), and
            "mask" (B, N), False for padding; N is `max_patches`.

    Args:
        images: The images, of any sizes.
        model: A VisionTransformer, or a FlexibleVisionTransformer of one.
        max_patches: Largest number of patches of an image.
        patch_size: Side of a patch in pixels. Default: that of the model.

    Raises:
        ValueError: If there is no image, or the images have other channels
            than the model.

    Reference: Beyer et al. 2023, arXiv:2212.08013, for patches of other sizes;
        Tschannen et al. 2025, SigLIP 2, arXiv:2502.14786, section 2.4.2
        (NaFlex).
    """
    from PIL import Image

    method, config = preprocessing_of(model).interpolation, model.config
    method = INTERPOLATIONS[method]
    side = config.patch_size if patch_size is None else patch_size
    side = as_whole(side, "patch_size")
    rule = getattr(model, "patch_resize", "bilinear")
    if not len(images):
        raise ValueError("`images` must hold at least one image. Received: []")
    max_patches = as_whole(max_patches, "max_patches")
    length = config.patch_size**2 * config.channels
    batch = {
        "patches": np.zeros((len(images), max_patches, length), "float32"),
        "coordinates": np.zeros((len(images), max_patches, 2), "int32"),
        "mask": np.zeros((len(images), max_patches), bool),
    }
    for index, image in enumerate(images):
        if image.ndim != 3 or image.shape[-1] != config.channels:
            raise ValueError(
                f"`images` must be (H, W, {config.channels}) each. Received: "
                f"shape={image.shape}"
            )
        h, w = fitting_size(image.shape[:2], side, max_patches)
        planes = [
            np.asarray(resize(Image.fromarray(plane), (h, w), method))
            for plane in np.moveaxis(image, -1, 0)
        ]
        pixels = np.stack(planes, axis=-1)
        pixels = preprocess_input(pixels, "channels_last", model=model)
        found = cut_patches(pixels[None], side, config.patch_size, rule)
        count = found["patches"].shape[1]
        batch["mask"][index, :count] = True
        for key, value in found.items():
            value = ops.convert_to_numpy(value[0])
            batch[key][index, :count] = value
    return batch


def fitting_size(
    image_size: tuple[int, int], patch_size: int, max_patches: int
) -> tuple[int, int]:
    """Return the largest (height, width) with so many patches, in pixels.

    Both sides are a whole number of patches, and their ratio is that of the
    image up to one patch.

    Example:
        >>> models.flexible.fitting_size((480, 640), 16, 256)
        (224, 288)
    """

    def grid_at(scale):
        return [
            max(math.ceil(side * scale / patch_size), 1) for side in image_size
        ]

    # By bisection with the bounds and the tolerance of SigLIP 2's code, which
    # gives the same sizes.
    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        if math.prod(grid_at(middle)) <= max_patches:
            low = middle
        else:
            high = middle
    h, w = grid_at(low)
    return h * patch_size, w * patch_size


@keras.saving.register_keras_serializable(package="keras_vit")
class FlexibleVisionTransformer(keras.Model):
    """A VisionTransformer that reads patches of any size in any grid.

    It has no weights of its own: training it trains `vision_transformer`.
    Images may be cut into patches of any size in each call, as in FlexiViT.
    Or the patches are given, each with its place, and a mask where sequences
    are padded: then each image of a batch has its own size and aspect ratio,
    as in NaFlex.

    Shapes:
        inputs: images (B, H, W, C); or a dictionary of "patches"
            (B, N, P * P * C), "coordinates" (B, N, 2), the row and the column
            of each patch, and optionally "mask" (B, N), False for padding.
            `preprocess_patches` returns one.
        returns: what `vision_transformer` returns.

    Args:
        vision_transformer: The model whose layers are used. P is its patch
            size. How its table of positions is resized is the
            `position_resize` of its configuration.
        patch_resize: A key of RESIZES: the rule for resizing patches.
        use_square_positions: Whether the table of positions is resized to a
            square with the longer side of each grid, which keeps its aspect
            ratio, and not to the grid. Default: as `position_resize` says.

    Raises:
        ValueError: If the model has a stem or relative positions, or leaves
            out or merges patches.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> flexible = FlexibleVisionTransformer(model)
        >>> images = np.zeros((1, 240, 240, 3), "float32")
        >>> [tuple(flexible(images, patch_size=p).shape) for p in (48, 20)]
        [(1, 1000), (1, 1000)]

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013; Dehghani et al.
        2023, NaViT, arXiv:2307.06304; Tschannen et al. 2025, SigLIP 2,
        arXiv:2502.14786, section 2.4.2 (NaFlex).
    """

    def __init__(
        self,
        vision_transformer,
        patch_resize: str = "bilinear",
        use_square_positions: bool | None = None,
        **kwargs,
    ):
        check_vision_transformer(vision_transformer)
        policy = vision_transformer.dtype_policy
        super().__init__(**{"dtype": policy, **kwargs})
        config = vision_transformer.config
        for field, default in (
            ("stem_stages", None),
            ("relative_positions", "none"),
            ("position_placement", "stem"),
            ("patch_dropout_rate", 0),
            ("merged_tokens", 0),
        ):
            if getattr(config, field) != default:
                raise ValueError(
                    "`vision_transformer` must have no stem, no relative "
                    "positions, which belong to one grid, positions before "
                    "the first block alone, and all its patches. Received: "
                    f"{field}={getattr(config, field)!r}"
                )
        self.vision_transformer = vision_transformer
        self.patch_resize = patch_resize
        if use_square_positions is None:
            use_square_positions = RESIZES[config.position_resize].is_square
        self.use_square_positions = use_square_positions
        self.built = True

    @property
    def config(self):
        """The configuration of `vision_transformer`."""
        return self.vision_transformer.config

    def call(self, inputs, patch_size: int | None = None, training=None):
        # Keras hands `training` on to the layers.
        if not isinstance(inputs, dict):
            if len(getattr(inputs, "shape", ())) != 4:
                self._refuse(inputs)
            own = self.config.patch_size
            side = own if patch_size is None else patch_size
            inputs = cut_patches(inputs, side, own, self.patch_resize)
        elif patch_size is not None:
            raise ValueError(
                "`patch_size` is for images; these are cut already. Received: "
                f"patch_size={patch_size}"
            )
        self._check_sequences(inputs)
        return self._run(**inputs)

    def _check_sequences(self, inputs):
        """Raise a ValueError unless these are patches and their places."""
        length = self.config.patch_size**2 * self.config.channels
        shapes = {key: tuple(value.shape) for key, value in inputs.items()}
        if not (
            {"patches", "coordinates"} <= shapes.keys() <= SEQUENCE_KEYS
            and shapes["patches"][2:] == (length,)
            and shapes["coordinates"][2:] == (2,)
            and len(shapes.get("mask", "BN")) == 2
            # In a traced graph, a number of patches may be open.
            and len({shape[1] for shape in shapes.values()} - {None}) < 2
        ):
            self._refuse(inputs)

    def _refuse(self, inputs):
        """Raise a ValueError that describes the accepted inputs."""
        channels = self.config.channels
        length = self.config.patch_size**2 * channels
        received = keras.tree.map_structure(
            lambda x: tuple(getattr(x, "shape", ())), inputs
        )
        raise ValueError(
            f"`inputs` must be images (B, H, W, C) of {channels} "
            f"channels, or 'patches' (B, N, {length}), 'coordinates' (B, N, 2) "
            "and, as far as sequences are padded, 'mask' (B, N). Received: "
            f"shapes {received}"
        )

    def _run(self, patches, coordinates, mask=None):
        """Run the layers of the model, in their order."""
        model = self.vision_transformer
        coordinates = ops.cast(coordinates, wide(self.compute_dtype))
        sizes = ops.max(coordinates, axis=1, keepdims=True) + 1.0  # (B, 1, 2)
        if self.use_square_positions:
            sides = ops.max(sizes, axis=-1, keepdims=True)
            sizes = ops.concatenate([sides, sides], axis=-1)
        rotations = {
            layer.name: layer.at(coordinates, sizes)
            for layer in model.layers
            if isinstance(layer, RotaryPositions)
        }
        blocks = iter(position_layers(model.config))
        x = model.get_layer("patch_encoder").project(patches)
        for layer in model.layers:
            if isinstance(layer, PositionEmbedding):
                x = layer.add_at(x, coordinates, sizes)
            elif isinstance(layer, PrefixTokens):
                mask = layer.compute_mask(x, mask)
                x = layer(x)
            elif isinstance(layer, TransformerBlock):
                names = next(blocks)
                rows = {key: rotations[name] for key, name in names.items()}
                x = layer(x, mask=mask, **rows)
            elif layer.name == "pooling":
                x = layer(x, mask=mask)
            elif not isinstance(layer, BEFORE_TOKENS):
                x = layer(x)
        return x

    def get_config(self):
        return {
            **super().get_config(),
            "vision_transformer": keras.saving.serialize_keras_object(
                self.vision_transformer
            ),
            "patch_resize": self.patch_resize,
            "use_square_positions": self.use_square_positions,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(
            config["vision_transformer"], custom_objects
        )
        return cls(**{**config, "vision_transformer": model})


SEQUENCE_KEYS = {"patches", "coordinates", "mask"}
# Layers that do not read tokens.
BEFORE_TOKENS = (keras.layers.InputLayer, PatchEncoder, RotaryPositions)
