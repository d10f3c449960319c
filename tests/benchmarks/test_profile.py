import os

import pytest

from benchmarks import pipe, profile
from benchmarks.flops import (
    forward_flops,
    moved_numbers,
    num_parameters,
    pair_flops,
    step_flops,
)
from keras_vit import ViTConfig
from tests import commands

CONFIG = ViTConfig(
    width=6,
    depth=2,
    mlp_dim=10,
    num_heads=3,
    patch_size=4,
    image_size=(8, 12),
    num_classes=7,
)  # 7 tokens.


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("vit/block_00/mlp/hidden/MatMul:_MklNativeFusedMatMul", "products"),
        ("vit/block_00/attention_1/MatMul:_MklBatchMatMulV2", "pairs"),
        ("vit/block_00/attention_1/Softmax:_MklSoftmax", "softmax"),
        ("vit/block_00/mlp_norm_1/Cast:Cast", "norms and GELU"),
        ("ThunkExecutor::Execute", "norms and GELU"),
        ("vit/block_00/attention_1/Cast:Cast", "casts"),
        ("vit/block_00/attention_1/split:Split", "copies"),
        ("vit/block_00/add_1:AddV2", "sums"),
        ("adam/Sqrt_3:Sqrt", "optimizer"),
        ("vit/ArithmeticOptimizer/add:AddV2", "sums"),
        ("aten::addmm", "products"),
        ("aten::bmm", "pairs"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "pairs"),
        ("aten::native_layer_norm", "norms and GELU"),
        ("aten::gelu_", "norms and GELU"),
        ("aten::addcmul_", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("aten::copy_", "copies"),
        ("aten::view", "rest"),
    ],
)
def test_an_operation_belongs_to_one_part(name, part):
    part = "products of pairs" if part == "pairs" else part
    parts = profile.by_part({name: 2.0})
    assert parts.pop(part) == 2.0
    assert not any(parts.values())


def test_products_of_pairs_are_two_in_each_block():
    assert pair_flops(CONFIG, "forward", 1) == 2 * 2 * (2 * 7 * 6 * 7)
    assert pair_flops(CONFIG, "train", 5) == 15 * pair_flops(
        CONFIG, "forward", 1
    )
    assert pair_flops(CONFIG, "forward", 1) < forward_flops(CONFIG)


def test_the_numbers_that_a_forward_pass_moves():
    tokens, inner, scores = 4 * 7 * 6, 4 * 7 * 10, 4 * 3 * 7 * 7
    assert moved_numbers(CONFIG, "forward", 4) == {
        "norms and GELU": 2 * (5 * tokens + 2 * inner),
        "softmax": 2 * 2 * scores,
        "sums": 3 * 4 * tokens,
        "optimizer": 0,
    }
    moved = moved_numbers(CONFIG, "train", 4)
    assert moved["optimizer"] == 7 * num_parameters(CONFIG)
    assert moved["softmax"] == 5 * 2 * scores


def test_floors_are_work_over_the_measured_rates():
    options = profile.parse(["--task", "train", "--batch_size", "4"])
    assert options.precision == "mixed_bfloat16"
    floors = profile.floor_milliseconds(CONFIG, options, 1e6, 1e5)
    assert set(floors) < set(profile.OPERATION_KINDS)
    work = floors["products"] + floors["products of pairs"]
    assert work == pytest.approx(step_flops(CONFIG, "train", 4) / 1e3)
    moved = moved_numbers(CONFIG, "train", 4)
    assert floors["sums"] == pytest.approx(2 * moved["sums"] / 1e2)
    # The weights are float32.
    assert floors["optimizer"] == pytest.approx(4 * moved["optimizer"] / 1e2)


@pytest.mark.slow
def test_the_command_names_where_a_training_step_spends_its_time():
    found = commands.run(
        [
            *("-m", "benchmarks.profile", "--model", "Ti/16"),
            *("--task", "train", "--batch_size", "2", "--image_size", "32"),
            *("--steps", "1"),
        ],
        {**os.environ, "KERAS_BACKEND": "tensorflow"},
        pipe.REPOSITORY,
    )
    assert not found.returncode, found.stderr
    rows = [x.strip("| ").split(" | ") for x in found.stdout.splitlines()]
    times = {
        row[0]: float(row[1])
        for row in rows
        if row[0] in profile.OPERATION_KINDS
    }
    assert times.keys() == profile.OPERATION_KINDS.keys()
    assert min(times[name] for name in times if name != "rest") > 0
    # The products of even a small step take more than its sums.
    assert times["products"] > times["sums"]
