"""A new row of a table is written exactly, or refused with the reason."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer, from_checkpoint, layers
from keras_vit.layers import mlp
from keras_vit.layers.pooling import TokenPooling
from keras_vit.layers.positions import PositionEmbedding
from keras_vit.weights import load_checkpoint, save_checkpoint
from keras_vit.weights.families import family
from keras_vit.weights.write import WRITERS
from tests.tiny import (
    LATER_KINDS,
    NO_TOKEN,
    PAPER_POSITIONS,
    make,
    noise,
    randomize,
    tiny_config,
    to_numpy,
)


class FirstPooling(TokenPooling):
    """A pooling that takes the first token, whichever it is."""

    needed_token = None


class ScaledPooling(FirstPooling):
    """A pooling with a weight."""

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=input_shape[-1:])

    def call(self, tokens, mask=None):
        return super().call(tokens) * self.scale


class ProbingPooling(FirstPooling):
    """A pooling whose weight has a name that families know."""

    def build(self, input_shape):
        shape = (1, input_shape[-1])
        self.probe = self.add_weight(name="probe", shape=shape)

    def call(self, tokens, mask=None):
        return super().call(tokens) + self.probe


class DoubleNorm(layers.LayerNorm):
    """A norm with the weights of another."""

    def call(self, inputs, training=None):
        return 2 * super().call(inputs)


class SlopePositions(PositionEmbedding):
    """A position embedding with one weight."""

    def build_table(self, width):
        self.slope = self.add_weight(name="slope", shape=(width,))

    def table(self, grid_size):
        h, w = grid_size
        grid = ops.arange(h * w, dtype="float32")[:, None] * self.slope
        return self.flat_with_prefix(grid)


class FastPositions(layers.AxialRotaryPositions):
    """Rotary positions that turn twice as far."""

    def angles(self, y, x, sizes):
        return 2 * super().angles(y, x, sizes)


class DoubleTable(layers.RelativePositionTable):
    """Relative positions with the weights of others."""

    def call(self, tokens):
        return 2 * super().call(tokens)


# The field of ViTConfig, the table, the name of the row and the row.
ROWS = {
    "scaled_pooling": ("pooling", layers.POOLINGS, "foreign", ScaledPooling),
    "probing_pooling": ("pooling", layers.POOLINGS, "map_far", ProbingPooling),
    "activation": (
        "activation",
        layers.ACTIVATIONS,
        "mish",
        keras.activations.mish,
    ),
    "double_norm": ("norm", layers.NORMS, "foreign", DoubleNorm),
    "slope_positions": (
        "position_embedding",
        layers.POSITION_EMBEDDINGS,
        "foreign",
        SlopePositions,
    ),
    "fast_positions": (
        "rotary_positions",
        layers.ROTARY_POSITIONS,
        "centered_far",
        FastPositions,
    ),
    "double_table": (
        "relative_positions",
        layers.RELATIVE_POSITIONS,
        "foreign",
        DoubleTable,
    ),
}
# Between them, they are of all classes that models are written for.
MODELS = {"plain": {}, "map": {**NO_TOKEN, "pooling": "map"}, **LATER_KINDS}
ENDINGS = {"official": ".npz", "big_vision": ".npz"}


@pytest.fixture
def foreign(request, monkeypatch):
    """Add a row to its table; return the field of ViTConfig with its name."""
    field, table, name, row = ROWS[request.param]
    tables = [table]
    if field == "activation":
        # Those for training and for inference are of the same file.
        others = vars(mlp).values()
        tables = [t for t in others if isinstance(t, dict) and "relu" in t]
    for table in tables:
        monkeypatch.setitem(table, name, row)
    family._shapes_of_one_block.cache_clear()
    return {field: name}


each_row = pytest.mark.parametrize("foreign", ROWS, indirect=True)


@each_row
@pytest.mark.parametrize("kind", MODELS)
def test_a_new_row_is_refused_or_written_exactly(foreign, kind, tmp_path):
    model = make(**{**MODELS[kind], "depth": 1, **foreign})
    images = noise(2, 32, 32, 3)
    [field] = foreign
    for layout in WRITERS:
        path = tmp_path / f"{layout}{ENDINGS.get(layout, '')}"
        try:
            save_checkpoint(model, path, layout)
        except ValueError as error:
            assert "cannot express this model" in str(error)
            assert not path.exists()
            continue
        assert field == "position_embedding"  # It is written as a table.
        np.testing.assert_allclose(
            to_numpy(from_checkpoint(path)(images)),
            to_numpy(model(images)),
            rtol=0,
            atol=1e-6,
        )


@pytest.mark.parametrize(
    ("foreign", "layout", "reason"),
    [
        ("scaled_pooling", "official", "pooling='foreign'"),
        ("probing_pooling", "timm", "pooling='map_far'"),
        ("activation", "official", "activation='mish'"),
        ("activation", "huggingface", "activation='mish'"),
        ("fast_positions", "timm", "rotary_positions='centered_far'"),
    ],
    indirect=["foreign"],
)
def test_the_reason_names_the_row(foreign, layout, reason, tmp_path):
    model = VisionTransformer(tiny_config(**foreign, depth=1))
    with pytest.raises(ValueError, match=reason):
        save_checkpoint(model, tmp_path / f"m{ENDINGS.get(layout, '')}", layout)


@each_row
@pytest.mark.filterwarnings("ignore:The source computes with")
def test_a_file_is_loaded_into_a_model_of_a_new_row_or_refused(
    foreign, tmp_path
):
    path = tmp_path / "official.npz"
    source = make(depth=1)
    save_checkpoint(source, path, "official")
    model = randomize(VisionTransformer(tiny_config(**foreign, depth=1)), 2)
    before = [to_numpy(weight) for weight in model.weights]
    try:
        report = load_checkpoint(model, path)
    except ValueError as error:
        assert "does not fit the model" in str(error)
        for weight, value in zip(model.weights, before):
            np.testing.assert_array_equal(to_numpy(weight), value)
        return
    reset = [weight for weight in model.weights if weight.path in report.reset]
    assert all(weight.path.startswith("predictions") for weight in reset)
    for weight, value in zip(model.weights, before):
        assert (to_numpy(weight) != value).any(), weight.path


@pytest.mark.parametrize("name", PAPER_POSITIONS)
def test_positions_of_the_paper_are_compared_before_they_are_loaded(
    name, tmp_path
):
    path = tmp_path / "official.npz"
    source = make()
    save_checkpoint(source, path, "official")
    model = VisionTransformer(tiny_config(**PAPER_POSITIONS[name]))
    if name == "every_block_shared":
        with pytest.warns(UserWarning, match="position_placement='stem'"):
            load_checkpoint(model, path)
        return
    with pytest.raises(ValueError, match="_00/.* is missing"):
        load_checkpoint(model, path)
