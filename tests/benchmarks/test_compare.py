import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import compare, harness, pipe
from benchmarks.flops import (
    MATRIX_SHAPE,
    forward_flops,
    matrix_flops,
    step_flops,
)
from keras_vit import VARIANTS, ViTConfig
from tests import commands

RESULT = compare.Result(
    model="S/16",
    task="forward",
    precision="float32",
    batch_size=8,
    flops=50 * matrix_flops(*MATRIX_SHAPE),
    seconds={"ours": [1.0, 2.0, 4.0], "keras-hub": [2.0, 2.0, 2.0]},
    product_seconds={"tensorflow": [0.01, 0.01, 9.0], "torch": [0.02]},
    memory={"ours": 3 * 2**20, "keras-hub": 5 * 2**20},
)


@pytest.mark.parametrize(
    ("model", "gigaflops"),
    [("Ti/16", 2.5), ("S/16", 9.2), ("B/16", 35.1), ("L/16", 123.1)],
)
def test_forward_flops_are_the_published_ones(model, gigaflops):
    flops = forward_flops(VARIANTS[model].config)
    assert flops / 1e9 == pytest.approx(gigaflops, abs=0.05)


def test_flops_count_every_product_of_a_small_model():
    config = ViTConfig(
        width=6,
        depth=2,
        mlp_dim=10,
        num_heads=3,
        patch_size=4,
        image_size=(8, 12),
        num_classes=7,
    )
    patches = matrix_flops(6, 4 * 4 * 3, 6)
    attention = 3 * [(2, 7)] + 3 * [(7, 2)]  # Two products for each head.
    block = (
        matrix_flops(7, 6, 18)
        + sum(matrix_flops(7, inner, columns) for inner, columns in attention)
        + matrix_flops(7, 6, 6)
        + matrix_flops(7, 6, 10)
        + matrix_flops(7, 10, 6)
    )
    head = matrix_flops(1, 6, 7)
    assert forward_flops(config) == patches + 2 * block + head
    assert step_flops(config, "forward", 8) == 8 * forward_flops(config)
    assert step_flops(config, "train", 8) == 24 * forward_flops(config)


def test_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians():
    assert harness.median_ratio([3.0, 1.0, 8.0], [1.0, 2.0, 4.0]) == 2.0


def test_missed_bars_are_named_row_by_row_and_for_the_mean():
    def result(**seconds):
        return dataclasses.replace(RESULT, seconds=seconds)

    slow = result(ours=[1.0], timm=[0.8])
    fast = result(ours=[1.0], timm=[1.25])
    alone = result(ours=[1.0])

    def missed(row, mean, *results):
        return compare.missed_bars(results, {"timm": compare.Bar(row, mean)})

    # The mean of 0.8 and 1.25, a fourth slower and a fourth faster, is 1.
    assert missed(0.8, 0.999, slow, fast, alone) == []
    [line] = missed(1.0, 0.999, slow, fast)
    assert "timm / ours = 0.800, below 1.0" in line
    [line] = missed(0.8, 1.1, slow, fast)
    assert "timm / ours = 1.000, below 1.1" in line
    assert missed(2.0, 2.0, alone) == []


def test_csv_has_a_row_for_every_package(tmp_path):
    harness.write_table(tmp_path / "results.csv", compare.csv_rows([RESULT]))
    ours, theirs = harness.read_csv(tmp_path / "results.csv")
    published = pathlib.Path(compare.__file__).parent / "results"
    [published] = published.glob("2026-11-27.csv")
    assert list(ours) == list(harness.read_csv(published)[0])
    assert (ours["package"], theirs["package"]) == ("ours", "keras-hub")
    assert (ours["ratio"], ours["images_per_second"]) == ("1.0000", "4")
    # The floor is that of the faster library.
    assert (ours["rounds"], ours["floor_seconds"]) == ("3", "0.5")
    assert (ours["peak_mib"], theirs["peak_mib"]) == ("3", "5")
    assert ours["mfu"] == ""


def test_the_machine_is_described_without_its_name_or_paths():
    lines = harness.describe_machine({"keras": "3.15.1"}, 2)
    assert "keras 3.15.1" in lines[-1]
    assert "2 threads" in lines[0]
    assert not any(str(pathlib.Path.home()) in line for line in lines)


def test_training_in_bfloat16_is_mixed_and_measured_once():
    options = compare.parse(["--precisions", "bfloat16,mixed_bfloat16"])
    found = [(c["task"], c["precision"]) for c in compare.cases(options)]
    assert found == 2 * [
        ("forward", "bfloat16"),
        ("forward", "mixed_bfloat16"),
        ("train", "mixed_bfloat16"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--models", "B/17"],
        ["--models", "R50+B/16"],
        ["--models", "B/16-gap"],
        ["--precisions", "float16"],
        ["--activation", "erf"],
        ["--against", "vit-keras"],
        ["--against", "keras-hub", "--backend", "jax"],
        ["--backend", "torch"],
        ["--batch_sizes", "0"],
        ["--batch_sizes", "1,x"],
        ["--torch_python", "no/such/python"],
    ],
)
def test_options_that_do_not_fit_end_the_program(arguments, capsys):
    with pytest.raises(SystemExit):
        compare.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_timm_is_left_out_without_an_interpreter():
    python = ["--torch_python", sys.executable]
    assert compare.rivals(compare.parse([])) == ["keras-hub"]
    assert compare.rivals(compare.parse(python)) == ["keras-hub", "timm"]
    jax = ["--backend", "jax", *python]
    assert compare.rivals(compare.parse(jax)) == ["plain-jax", "timm"]


@pytest.mark.parametrize(
    ("backend", "package", "module"),
    [
        ("tensorflow", "ours", "keras"),
        ("tensorflow", "keras-hub", "keras"),
        ("tensorflow", "timm", "torch"),
        ("torch", "ours", "torch"),
        ("jax", "ours", "jax"),
        ("jax", "plain-jax", "jax"),
    ],
)
def test_each_package_runs_where_it_can(monkeypatch, backend, package, module):
    started = []
    monkeypatch.setattr(compare, "Worker", lambda *args: started.append(args))
    # Any program will do.
    options = compare.parse(["--backend", backend, "--torch_python", "true"])
    compare.start_worker(package, {}, options)
    python = "true" if module == "torch" else sys.executable
    assert started == [
        (f"benchmarks.worker_{module}", {"package": package}, python)
    ]


def test_of_several_steps_the_last_is_waited_for():
    started, waited = iter(range(9)), []
    pipe.repeat(lambda: next(started), waited.append, 3)()
    assert waited == [2]
    assert next(started) == 3


@pytest.mark.slow
def test_a_worker_that_fails_shows_its_message(forked):
    case = {"package": "theirs", "threads": 1}
    with pytest.raises(RuntimeError, match="KeyError: 'theirs'"):
        pipe.Worker("benchmarks.worker_keras", case, forked)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_command_measures_each_backend(
    tmp_path, monkeypatch, backend, forked
):
    python = os.environ.get("KERAS_VIT_PEERS_PYTHON")
    if backend == "torch" and not python:
        pytest.skip("KERAS_VIT_PEERS_PYTHON names no interpreter with timm.")
    config_of = compare.model_config
    monkeypatch.setattr(
        compare,
        "model_config",
        lambda *names: dataclasses.replace(
            config_of(*names), depth=1, width=24, mlp_dim=24, num_classes=5
        ),
    )
    rival = {"tensorflow": "", "jax": "plain-jax", "torch": "timm"}[backend]
    code = compare.main(
        [
            *("--models", "Ti/16", "--image_size", "32"),
            *("--batch_sizes", "2", "--train_batch_sizes", "2"),
            *("--repeats", "1", "--threads", "1", "--matrix_size", "8"),
            *("--steps", "2", "--precisions", "bfloat16"),
            *("--backend", backend, "--against", rival),
            *("--torch_python", python or forked),
            *("--out", str(tmp_path)),
        ]
    )
    assert code == 0
    rows = harness.read_csv(tmp_path / "results.csv")
    packages = ["ours", rival] if rival else ["ours"]
    assert [(row["task"], row["package"]) for row in rows] == [
        (task, package) for task in ("forward", "train") for package in packages
    ]
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert all(int(row["peak_mib"]) > 1 for row in rows)
    page = (tmp_path / "results.md").read_text()
    assert page.count("| Ti/16 | forward, bfloat16 |") == 2


def test_plain_jax_answers_as_our_model():
    pytest.importorskip("jax")
    environment = commands.environment() | {"KERAS_BACKEND": "jax"}
    found = commands.run(["-c", PLAIN_JAX], environment, pipe.REPOSITORY)
    assert not found.returncode, found.stderr
    assert float(found.stdout.split()[-1]) < 1e-5


# Gives our weights to it, and prints the largest difference of the logits.
PLAIN_JAX = """
import dataclasses, jax, numpy as np
from benchmarks import worker_jax
from keras_vit import VisionTransformer
from tests.tiny import randomize, tiny_config

config = tiny_config()
case = {"config": dataclasses.asdict(config), "activation": "tanh",
        "precision": "float32", "batch_size": 2}
model = randomize(VisionTransformer(config))
get = dict(zip([w.path for w in model.weights], model.get_weights())).get
weights, apply = worker_jax.plain_jax_model(case)
pair = lambda name: (get(name + "/kernel"), get(name + "/bias"))
norm = lambda name: (get(name + "/gamma"), get(name + "/beta"))
weights["patches"] = pair("patch_encoder")
weights["token"] = get("class_token/token")
weights["positions"] = get("position_embedding/embedding")[None]
for index, block in enumerate(weights["blocks"]):
    name = f"block_{index:02d}/"
    for part, new in {"norm_1": "attention_norm", "norm_2": "mlp_norm"}.items():
        block[part] = norm(name + new)
    kernel, bias = pair(name + "attention/qkv")
    for part, (w, b) in zip(("query", "key", "value"),
                            zip(np.split(kernel, 3, 1), np.split(bias, 3))):
        block[part] = w.reshape(24, 3, 8), b.reshape(3, 8)
    kernel, bias = pair(name + "attention/out")
    block["out"] = kernel.reshape(3, 8, 24), bias
    block["hidden"] = pair(name + "mlp/hidden")
    block["mlp_out"] = pair(name + "mlp/out")
weights["norm"] = norm("encoder_norm")
weights["head"] = pair("predictions")
images, _ = worker_jax.batch(case)
ours = np.asarray(model(images))
print(np.abs(np.asarray(apply(weights, images, False)) - ours).max()
      / np.abs(ours).max())
"""


class FakeWorker:
    """Replies at once and records the order of the requests."""

    asked = []
    cases = []
    versions = {"keras": "3"}

    def __init__(self, module, case, python=None):
        self.package = case["package"]
        self.cases.append(case)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def ask(self, name):
        if name == "memory":
            return 2**20
        if name == "device":
            return "NVIDIA H100"
        self.asked.append((self.package, name))
        return {"ours": 2.0, "keras-hub": 1.0}[self.package]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeWorker, "asked", [])
    monkeypatch.setattr(FakeWorker, "cases", [])
    monkeypatch.setattr(compare, "Worker", FakeWorker)
    return FakeWorker


def test_a_bar_that_is_missed_fails_the_command_if_asked(
    fake, tmp_path, capsys
):
    arguments = ["--models", "S/16", "--out", str(tmp_path)]
    assert compare.main(arguments) == 0
    assert compare.main([*arguments, "--require"]) == 1
    printed = capsys.readouterr().out
    assert "MISSED: S/16 forward float32, batch 8: keras-hub" in printed
    assert "timm was left out" in (tmp_path / "results.md").read_text()


def test_rounds_are_interleaved_and_a_gpu_is_told(fake, tmp_path):
    compare.main(
        [
            *("--models", "B/16", "--precisions", "bfloat16"),
            *("--tasks", "train", "--train_batch_sizes", "128"),
            *("--repeats", "2", "--out", str(tmp_path), "--use_remat"),
            *("--matrix_size", "8192", "--peak_tflops", "989"),
            *("--steps", "5"),
        ]
    )
    steps = [package for package, name in fake.asked if name == "step"]
    assert steps == ["ours", "keras-hub"] * 2
    for case in fake.cases:
        assert case["config"]["dropout_rate"] == 0
        assert case["config"]["use_remat"] is True
        assert (case["batch_size"], case["steps"]) == (128, 5)
        assert case["matrix_shape"] == (8192, 8192, 8192)
    ours, theirs = harness.read_csv(tmp_path / "results.csv")
    flops = step_flops(VARIANTS["B/16"].config, "train", 128)
    for row, seconds in ((ours, 2.0 / 5), (theirs, 1.0 / 5)):
        mfu = flops / seconds / 989e12
        assert float(row["mfu"]) == pytest.approx(mfu, abs=1e-3)
    # A product is faked to take 2 seconds.
    rate = matrix_flops(8192, 8192, 8192) / 2e9
    assert float(ours["matrix_gflops"]) == pytest.approx(rate, rel=1e-5)
    page = (tmp_path / "results.md").read_text()
    assert "- GPU: NVIDIA H100\n" in page
    assert "(8192, 8192) x (8192, 8192)" in page
    assert f"| {ours['mfu']} | {theirs['mfu']} |\n" in page


def test_the_script_for_gpus_measures_what_it_says(tmp_path):
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(f'#!/bin/sh\necho "$KERAS_BACKEND $@" >> {calls}\n')
    python.chmod(0o755)
    subprocess.run(
        ["bash", "benchmarks/gpu.sh", "989.4", str(python)], check=True
    )
    found = set()
    for line in calls.read_text().splitlines():
        backend, _, module, *arguments = line.split()
        options = compare.parse(arguments)
        assert (module, options.backend) == ("benchmarks.compare", backend)
        assert options.compile and options.peak_tflops == 989.4
        assert options.batch_sizes == options.train_batch_sizes
        found |= {
            (backend, *options.models, size) for size in options.batch_sizes
        }
    assert found == {
        (backend, model, size)
        for backend in ("jax", "torch")
        for model in ("B/16", "L/16")
        for size in (128, 256, 512)
    }
