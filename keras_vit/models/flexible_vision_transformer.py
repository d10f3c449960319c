"""FlexibleVisionTransformer: patches of any size in any grid."""

import keras
from keras import ops

from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.prefix_tokens import PrefixTokens
from keras_vit.layers.resize_rules import RESIZES
from keras_vit.layers.rotary_positions import RotaryPositions
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.models.patch_sequences import cut_patches
from keras_vit.models.position_inputs import position_layers
from keras_vit.models.submodels import check_vision_transformer


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
        ValueError: If the model has a stem or relative positions.

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
        ):
            if getattr(config, field) != default:
                raise ValueError(
                    "`vision_transformer` must have no stem, no relative "
                    "positions, which belong to one grid, and positions "
                    "before the first block alone. Received: "
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
        coordinates = ops.cast(coordinates, "float32")
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
