"""The documentation is true: its code runs, its tables match the code."""

import ast
import builtins
import contextlib
import dataclasses
import json
import pathlib
import re
import runpy
import shlex
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import VARIANTS, ViTConfig
from keras_vit.applications import BUILDERS
from keras_vit.weights import HUB_MODELS, LAYOUTS, PRETRAINED, RESIZES
from keras_vit.weights.hub import DESCRIPTIONS, TOKENIZER_FILES
from keras_vit.weights.write import WRITERS
from tests import commands
from tests.shared import made_once
from trainers.recipes.recipes import RECIPES

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests/golden"
MODELS = (ROOT / "docs/models.md").read_text()
PAGES = [
    *ROOT.glob("*.md"),
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "saved_models/README.md",
    ROOT / "benchmarks/README.md",
]

# Pages whose code runs in a checkout with a finished run, as a whole. A
# command that several have runs with the first.
GUIDES = (
    [ROOT / "README.md"]
    + [
        ROOT / f"docs/{name}.md"
        for name in (
            "weights",
            "index",
            "quick_start",
            "models",
            "train",
            "fine_tune",
            "dense",
            "zero_shot",
            "python",
            "plugins",
            "labels",
            "unlabelled",
            "embeddings",
            "experiments",
            "export",
            "web",
            "phone",
            "inspect",
        )
    ]
    + sorted(ROOT.glob("docs/coming_from/*.md"))
    + sorted(ROOT.glob("docs/background/*.md"))
)


def page_name(page):
    return str(page.relative_to(ROOT))


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def table_after(page, heading):
    """Return the cells of the first table below a heading of a page."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"((?:^\|.*\n)+)", section, re.M)[1]
    rows = [
        [cell.strip() for cell in line.strip("|\n").split(" | ")]
        for line in table.splitlines()
    ]
    return rows[2:]


def make_digits_run(folder):
    """Make saved_models/digits in a folder a (short) run."""
    from trainers.data.datasets import open_dataset
    from trainers.train import prepare

    recipe = dataclasses.replace(
        RECIPES["digits"],
        model="mu/16",
        patch_size=2,
        total_steps=2,
        warmup_steps=0,
        peak_tflops=1.0,
    )
    tf.config.run_functions_eagerly(True)
    prepare(recipe, str(folder / "saved_models/digits")).train()
    tf.config.run_functions_eagerly(False)
    image, _ = next(iter(open_dataset("digits").examples("test")))
    keras.utils.save_img(folder / "digit.png", image.numpy())
    return folder


def make_official_file(folder):
    """Make a file as the official code writes a B/16, of random weights."""
    model = keras_vit.ViT_B16(classifier_activation=None)
    head = model.get_layer("predictions").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    keras_vit.save_checkpoint(model, folder / "ViT-B_16.npz")
    return folder / "ViT-B_16.npz"


# Without TensorFlow's graphs and pictures, which take longer than two updates;
# the demos of .ci/run train with them.
EAGERLY = """
import runpy, sys
import tensorflow as tf
from trainers.training import trainer
tf.config.run_functions_eagerly(True)
for name in ("draw_first_batch", "plot_learning_curve"):
    setattr(trainer, name, lambda *arguments: None)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_command(line, environment, *more):
    """Run a line of a page unchanged, except for the path of Python."""
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment = {**environment, name: value}
    assert words.pop(0) == ".venv/bin/python"
    if words[0] == "docs/examples/make_scenes.py":
        # Fewer than the page says.
        runpy.run_path(str(ROOT / words[0]))["make_scenes"](words[1], 12)
        return
    if words[0] == "docs/examples/make_unknown.py":
        runpy.run_path(str(ROOT / words[0]))["make_unknown"](words[1], 30)
        return
    if words[0] == "docs/examples/change_labels.py":
        module = runpy.run_path(str(ROOT / words[0]))
        folder, *more = words[1:]
        if more:
            checked = more[0].partition("=")[2]
            module["count_found"](pathlib.Path(folder), pathlib.Path(checked))
        else:
            module["make_pictures"](pathlib.Path(folder))
        return
    assert words[0] == "-m"
    output = words[-1] if words[-2] == ">" else None
    words = words[:-2] if output else words
    if words[1] == "trainers.train" and "--help" not in words:
        words = ["-c", EAGERLY, *words[1:]]
    result = commands.run([*words, *more], environment)
    assert result.returncode == 0, f"{line}: {result.stderr}"
    if output:
        pathlib.Path(output).write_text(result.stdout)


def shortened(line):
    """Return the flags that make a training on a page one of no time."""
    size = 2 if "--dataset" in line else 32  # Four photos, or digits.
    more = ["--total_steps=2", "--warmup_steps=0", f"--batch_size={size}"]
    more.append("--peak_tflops=1")  # Not measured.
    if "--dataset" not in line:
        more.append("--eval_split=test[:64]")
    else:
        more.append("--epochs_per_eval=9")  # Only at the end.
    if re.search(r"--image_size=\d{3}|=(folder|images):", line):
        more.append("--image_size=64")
    if "segment_digits" in line:  # Digits in photographs, of 32x32 pixels.
        more += ["--patch_size=8", "--depth=2", "--dense_blocks=0,1"]
    elif "--init_from" not in line:
        patch = 2 if "digits" in line else 16
        more += ["--model=mu/16", f"--patch_size={patch}"]
    if "--objective=autoencoder" in line:
        more += ["--decoder_width=8", "--decoder_depth=1", "--decoder_heads=2"]
    return more


def commands_of_the_demo():
    """Return what `make demo` runs, as .ci/run does, whole and unchanged."""
    makefile = (ROOT / "Makefile").read_text()
    run = re.search(r"^RUN = (.*)$", makefile, re.M)[1]
    recipe = re.search(r"^demo: \.venv.*\n((?:\t.*\n)+)", makefile, re.M)[1]
    return lines_of(recipe.replace("$(RUN)", run))


def test_the_demo_is_what_the_readme_says():
    """The page is not run where the demo runs the same, line by line."""
    page = lines_of("".join(blocks((ROOT / "README.md").read_text(), "bash")))
    names = ("train --recipe=digits", "evaluate")
    for start in names:
        line = f".venv/bin/python -m trainers.{start} "
        line += "--run_dir=saved_models/digits"
        assert line in page and line in commands_of_the_demo()
    assert "make demo photos" in (ROOT / ".ci/run").read_text()


def put_small_checkpoint():
    """Put a small file of the official form in the place of a large one."""
    pathlib.Path("ViT-B_16.npz").unlink(missing_ok=True)
    shutil.copy(GOLDEN / "official_token.npz", "ViT-B_16.npz")


def put_towers(cache):
    """Put small towers in the place of those that the hub has."""
    folder = cache / "huggingface/google/siglip-base-patch16-224"
    shutil.copytree(GOLDEN / "towers/siglip", folder)
    for name in (*DESCRIPTIONS, *TOKENIZER_FILES):
        if not (folder / name).exists():
            (folder / f".no_{name}").touch()


def code_blocks(text):
    """Return (language, code) of each block of a page, in its order."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_block_of_code_imports_what_it_uses(page):
    """So that it runs in a fresh process, after the blocks it continues.

    The tests below run them in a process that has imported everything.
    """
    earlier = set(dir(builtins))  # Variables, not modules, of other blocks.
    for code in blocks(page.read_text(), "python"):
        imported, assigned, used = set(), set(), set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.asname or a.name for a in node.names]
                imported |= {name.split(".")[0] for name in names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                assigned.add(node.name)
            elif isinstance(node, ast.arg):
                assigned.add(node.arg)
            elif isinstance(node, ast.Name):
                is_read = isinstance(node.ctx, ast.Load)
                (used if is_read else assigned).add(node.id)
        assert used <= imported | assigned | earlier, code
        if "load_model(" in code:  # Keras knows the layers only after it.
            assert "keras_vit" in imported, code
        earlier |= assigned


def needs_litert_js():
    """Skip the test if the npm packages of LiteRT.js cannot be fetched."""
    from keras_vit.export.formats.web import fetch_engine

    try:
        fetch_engine()
    except OSError as error:
        pytest.skip(f"LiteRT.js is not in the cache, and {error}")


def lines_of(code):
    """Return the commands of a block; a backslash continues a line."""
    lines = code.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_extras_that_a_page_installs_exist():
    extras = re.findall(
        r'^        "(\w+)": ', (ROOT / "setup.py").read_text(), re.M
    )
    assert "train" in extras
    for page in PAGES:
        for line in re.findall(r"pip install [^\n`]*", page.read_text()):
            for named in re.findall(r"\[([\w,]+)\]", line):
                assert set(named.split(",")) <= set(extras), (page.name, line)


def test_versions_that_a_page_states_are_those_of_the_constraints():
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    names = "Keras|TensorFlow|JAX|PyTorch|timm|transformers"
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        found = re.findall(rf"\b({names}) (\d+\.\d+\.\d+)", text)
        assert len({name for name, _ in found}) == 6
        for name, version in found:
            key = {"PyTorch": "torch"}.get(name, name.lower())
            assert tested[key] == version, (page, name)


@contextlib.contextmanager
def served_exports(line):
    """Start a stand-in for TF Serving if a command asks one."""
    if "http://localhost:8501" not in line:
        yield line
        return
    from tests.serving.servers import Models, RestServer

    with RestServer(Models("saved_models/digits/export/saved_model")) as server:
        yield line.replace("http://localhost:8501", server.address)


@pytest.fixture
def checkout(tmp_path_factory, tmp_path, monkeypatch):
    """Return a folder with that run, small checkpoints and photos."""
    run = made_once(tmp_path_factory, "digits_run", make_digits_run)
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    put_small_checkpoint()
    shutil.copy(GOLDEN / "timm_token.safetensors", "timm_model.safetensors")
    shutil.copy(GOLDEN / "vit_keras.h5", "vit_keras.h5")
    for name in ("tf_vit", "flax_vit"):
        shutil.copytree(GOLDEN / "transformers_4" / name, name)
    noise = np.random.default_rng(0).integers(0, 255, (4, 40, 40, 3), "uint8")
    parts = ("train/cat", "train/dog", "test/cat", "test/dog")
    for part, image in zip(parts, noise):
        (tmp_path / "photos" / part).mkdir(parents=True)
        keras.utils.save_img(f"photos/{part}/1.png", image)
    for name in ("cat", "dog"):
        keras.utils.save_img(f"{name}.jpg", noise[0])
    (tmp_path / "unlabelled").symlink_to(tmp_path / "photos")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return tmp_path


# The pages whose code fits a model in a few updates, and what does.
FIT = ("fit(", "= train(")
EAGER = (
    *("dense.md", "unlabelled.md", "weights.md", "fine_tune.md", "python.md"),
)
SHAPE = r"\((?:None|\d+)(?:, (?:None|\d+))*,?\)"


def is_printed(stated, printed):
    """Return whether the shapes and the first number of a comment are there.

    The number may be rounded.
    """
    if not all(shape in printed for shape in re.findall(SHAPE, stated)):
        return False
    number = re.match(r"-?\d+(?:\.(\d+))?(?![\w.])", stated)
    if not number:
        return True
    found = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", printed)
    digits = len(number[1] or "")
    return number[0] in [f"{float(x):.{digits}f}" for x in found]


def test_what_is_printed_is_compared_with_what_a_page_says():
    for stated, printed, is_right in (
        ("(None, 4): rows", "(None, 4)", True),
        ("(None, 4): rows", "(None, 5)", False),
        ("(1, 2) (3,)", "(1, 2) (4,)", False),
        ("0.00047", "0.0004731", True),
        ("0.00047", "0.00052", False),
        ("-0.154 both", "-0.15426 0.2", True),
        ("1797", "17970", False),
        ("2: kernel and bias", "2", True),
        ("about 1e-7: rounding", "9", True),
    ):
        assert is_printed(stated, printed) == is_right, stated


@pytest.mark.slow(100)
@pytest.mark.filterwarnings("ignore:The head of .* is all zeros")
@pytest.mark.parametrize("page", GUIDES, ids=page_name)
def test_commands_and_code_of_a_page_run(
    page,
    checkout,
    subprocess_environment,
    monkeypatch,
    capsys,
    tmp_path_factory,
    without_xla,
):
    """In the order of the page, as a reader would.

    The code prints what its comments state.
    """
    if page.name in ("README.md", "weights.md"):
        large = made_once(tmp_path_factory, "official", make_official_file)
        monkeypatch.setenv("KERAS_VIT_CACHE", str(checkout / "cache"))
        fetched = checkout / "cache" / PRETRAINED["B/16-augreg-i1k"].file
        fetched.parent.mkdir(parents=True)
        fetched.symlink_to(large)
    if page.name == "README.md":
        pathlib.Path("ViT-B_16.npz").unlink()
        pathlib.Path("ViT-B_16.npz").symlink_to(large)
    earlier = GUIDES[: GUIDES.index(page)]
    if page.name == "zero_shot.md":
        put_towers(checkout / "cache")
        monkeypatch.setenv("KERAS_VIT_CACHE", str(checkout / "cache"))
        subprocess_environment["KERAS_VIT_CACHE"] = str(checkout / "cache")
    run_elsewhere = lines_of(
        "".join("".join(blocks(x.read_text(), "bash")) for x in earlier)
    )
    demo = commands_of_the_demo()
    if page.name == "python.md":
        small = dataclasses.replace(
            RECIPES["digits"], model="mu/16", patch_size=2, peak_tflops=1.0
        )
        monkeypatch.setitem(RECIPES, "digits", small)
    names = {}
    for language, code in code_blocks(page.read_text()):
        if re.search(r"^(import timm|from transformers)", code, re.M):
            continue  # Run in tests/weights/test_files_for_peers.py.
        if language == "python":
            # Graphs take longer than a few updates.
            tf.config.run_functions_eagerly(
                page.name in EAGER and any(x in code for x in FIT)
            )
            try:
                exec(compile(code, page.name, "exec"), names)
            finally:
                tf.config.run_functions_eagerly(False)
            printed = capsys.readouterr().out
            for stated in re.findall(r"^ *print\(.*\)  # (.+)$", code, re.M):
                assert is_printed(stated, printed), (stated, printed)
            continue
        for line in lines_of(code):
            if line in run_elsewhere or line.startswith("make "):
                continue
            if line in demo and "export_model" not in line:
                continue  # The export is read by what follows.
            more = shortened(line) if "trainers.train" in line else []
            if "trainers.export_model" in line:
                # After two updates all classes are about as likely. Latencies
                # take half a minute; the demo measures them.
                more = ["--force", "--nomeasure_latency", "--num_images=32"]
            if "--formats=web" in line:
                # Chromium measures the page in tests/export/test_web_page.py.
                needs_litert_js()
            if "keras_vit.inspect ViT-B_16.npz" in line:
                # A page of a model that large: see test_page_in_browser.py.
                put_small_checkpoint()
            with served_exports(line) as line:
                run_command(line, subprocess_environment, *more)
    check = CLAIMS.get(page_name(page), lambda names: True)
    assert check(names)


def saved_alike(names):
    """Return whether the page on weights has loaded and saved as it says."""
    for path, layout in (
        ("tuned.npz", "official"),
        ("tuned_timm", "timm"),
        ("tuned_hf", "huggingface"),
    ):
        again = keras_vit.from_checkpoint(path)
        assert again.load_report.layout == layout
        assert again.config.image_size == (384, 384)
        assert again.config.num_classes == 10
    return names["report"].resized and names["report"].reset


def reads_back(table):
    """Return whether a table that predict wrote is read as training data."""
    from trainers.data.datasets import open_dataset

    dataset = open_dataset(f"csv:{table}")
    has_all = sum(map(len, dataset.reader.files.values())) == 12
    return has_all and dataset.has_several_labels


CLAIMS = {
    "README.md": lambda names: (
        np.allclose(np.sum(names["probabilities"], -1), 1, rtol=1e-5)
        and tuple(names["features"].output_shape) == (None, 384)
        and names["any_size"].input_shape == (None, None, None, 3)
        and tuple(names["tokens"].shape) == (2, 197, 768)
        and names["answer"]["probabilities"].shape == (1, 5)
    ),
    "docs/weights.md": saved_alike,
    "docs/python.md": lambda names: (
        "best_so_far" in names["trainer"].run.metrics_path.read_text()
    ),
    "docs/coming_from/transformers_4.md": lambda names: all(
        keras_vit.from_checkpoint(path).load_report.layout == "huggingface"
        for path in ("for_pytorch", "from_flax")
    ),
    "docs/zero_shot.md": lambda names: (
        names["model"].config.class_names == ("cat", "dog")
        and (np.abs(names["cosines"]) < 1).all()
    ),
    "docs/embeddings.md": lambda names: (
        names["vectors"].shape[0] == len(names["labels"]) == 1797
    ),
    "docs/labels.md": lambda names: reads_back("found.csv"),
    "docs/index.md": lambda names: names["accuracy"] > 0.8,
    "docs/background/transformer.md": lambda names: names["difference"] < 1e-5,
    "docs/background/masks.md": lambda names: (
        names["changes"][0] < 1e-6 < 0.1 < names["changes"][1]
    ),
    "docs/background/patches.md": lambda names: names["difference"] < 1e-5,
    "docs/background/block.md": lambda names: (
        names["changes"][0] < 1e-5 < 0.1 < names["changes"][1]
    ),
    "docs/background/gelu.md": lambda names: (
        4.6e-4 < float(names["gap"]) < 4.8e-4
        and abs(names["masked"] - names["expected"]) < 1e-3
    ),
    "docs/background/convolution.md": lambda names: (
        names["distances"].shape == (12, 3)
    ),
    "docs/background/from_scratch.md": lambda names: (
        names["difference"] < 1e-5
        and names["change"] < 1e-5
        and names["gap"] < 1e-5
        and names["count"] == 86_567_656
    ),
    "docs/models.md": lambda names: (
        names["larger"].input_shape == (None, 384, 384, 3)
        and names["other_task"].output_shape == (None, 3)
        and names["classifier"].output_shape == (None, 5)
    ),
    "docs/train.md": lambda names: len(names["history"].epoch) <= 20,
    "docs/fine_tune.md": lambda names: (
        # Head, and two factors each for two kernels of one block.
        len(names["model"].trainable_weights) == 2 + 4 and names["plain"].built
    ),
}


def test_the_page_on_weights_lists_what_the_code_knows():
    page = (ROOT / "docs/weights.md").read_text()
    section = page.split("\n## Published checkpoints by name\n")[1]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \| (.+) \|$", section, re.M)
    rows = {row[0]: row[1:] for row in rows[: len(PRETRAINED)]}
    assert list(rows) == list(PRETRAINED)
    for name, (file, size, classes) in rows.items():
        config = PRETRAINED[name].config
        assert file == PRETRAINED[name].file
        assert size == "x".join(map(str, config.image_size))
        assert int(classes.replace(",", "")) == config.num_classes
    hub = page.split("\n### Models of the hub\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| `(.+?)` \| (\S+) \| (\d+)x\d+ \| (.+) \|$", hub, re.M
    )
    assert [(row[0], (row[1], int(row[2]), row[3])) for row in rows] == [
        (name, tuple(model)) for name, model in HUB_MODELS.items()
    ]
    families = page.split("\n## Families\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", families, re.M
    )
    assert [row[0] for row in rows] == list(LAYOUTS)
    for name, _, written, activation, epsilon in rows:
        layout = LAYOUTS[name]
        assert (written == "no") == (name not in WRITERS)
        if name in WRITERS:
            endings = {e.strip("`") for e in written.split(", ")}
            assert endings == {e or "folder" for e in WRITERS[name]}
        assert activation in (layout.activation, "config.json")
        if epsilon != "config.json":
            assert float(epsilon) == layout.layer_norm_epsilon
    methods = page.split("| `position_resize` | rule |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", methods, re.M) == list(RESIZES)


def test_table_of_variants_is_the_code():
    rows = table_after(MODELS, "Variants")
    assert [row[0].strip("`") for row in rows] == list(BUILDERS)
    for builder, variant, *sizes in rows:
        config, count, _ = VARIANTS[variant]
        numbers = (config.width, config.depth, config.mlp_dim, config.num_heads)
        assert [int(s.replace(",", "")) for s in sizes] == [*numbers, count]
        first = BUILDERS[builder.strip("`")].__doc__.splitlines()[0]
        assert first == f"Build the ViT {variant}, {count:,} parameters."


def test_options_of_a_model_are_those_of_the_code():
    from keras_vit.layers import ACTIVATIONS, POOLINGS, POSITION_EMBEDDINGS

    for name, table in (
        ("position_embedding", POSITION_EMBEDDINGS),
        ("pooling", POOLINGS),
        ("activation", ACTIVATIONS),
    ):
        row = re.search(rf"^\| `{name}` \| (.*) \|$", MODELS, re.M)[1]
        [default] = re.findall(r"`(\w+)` \(default", row)
        assert default == ViTConfig.__dataclass_fields__[name].default
        row = re.sub(r"\(.*?\)", "", row)
        assert set(re.findall(r"`(\w+)`", row)) == set(table)


def test_replacements_of_tensorflow_addons_exist():
    page = (ROOT / "docs/coming_from.md").read_text()
    rows = table_after(page, "TensorFlow Addons")
    assert len(rows) > 8
    rows += table_after(page, "keras-hub and vit-keras")
    page = (ROOT / "docs/coming_from/keras_cv.md").read_text()
    rows += table_after(page, "keras-cv")
    for _, replacement in rows:
        for path in re.findall(r"`((?:keras|keras_vit)\.[\w.]+)", replacement):
            thing = {"keras": keras, "keras_vit": keras_vit}[path.split(".")[0]]
            for part in path.split(".")[1:]:
                thing = getattr(thing, part)


def test_the_plug_in_of_the_page_is_its_file():
    [code] = blocks((ROOT / "docs/plugins.md").read_text(), "python")
    assert code == (ROOT / "docs/examples/stripes.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_that_a_page_names_exist(page):
    """Paths in backticks, except those that a run or a build writes."""
    text = page.read_text()
    made = (
        "saved_models/digits",
        "saved_models/photos",
        "saved_models/mae_digits",
        "build/",
        ".venv",
        "export/",
    )
    made += ("checkpoints/", "inspection/")
    made += ("augreg/",)  # In the bucket of the authors.
    made += ("dataset_", "patch_size_", "scenes/", "saved_models/scenes")
    made += ("tensorboard/", "PATH/", "checked/", "changed/")
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:\.\w+|/))`", text):
        if "/" not in path or path.startswith(made):
            continue
        assert (ROOT / path).exists() or (page.parent / path).exists(), (
            f"{page.name} names {path}"
        )


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_and_pictures_of_a_page_exist(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    for path in re.findall(
        r"!?\[[^\]]*\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text
    ):
        assert (page.parent / path).exists(), f"{page.name} shows {path}"


def test_flags_that_the_pages_name_exist():
    """In backticks; words of the trainers or of the benchmark."""
    from benchmarks import compare, exports, scale, study
    from benchmarks.studies import STUDIES
    from trainers.recipes.recipe import Recipe

    source = (ROOT / "trainers").rglob("*.py")
    known = set(vars(Recipe())) | {"help", "helpfull", "recipe"}
    known |= {
        name
        for file in source
        for name in re.findall(
            r'(?:flags\.DEFINE_\w+|define_choice)\(\s*"(\w+)"', file.read_text()
        )
    }
    known |= set(vars(compare.parse([]))) | set(vars(exports.parse([])))
    known |= set(vars(study.parse(STUDIES, ["transfer"])))
    known |= {name.removeprefix("--") for name, *_ in scale.OPTIONS}
    source = (ROOT / "keras_vit/command_line.py").read_text()
    known |= set(re.findall(r'"--(\w+)"', source))
    for path in ("docs/cluster/serve_data.py",):
        source = (ROOT / path).read_text()
        known |= set(re.findall(r'add\(\s*"--(\w+)"', source))
    # Those of TensorFlow Serving; tests/serving/test_page.py knows them.
    source = (ROOT / "docs/serving/compose.yaml").read_text()
    known |= set(re.findall(r"--(\w+)=", source))
    for page in PAGES:
        spans = re.findall(r"`([^`\n]*--[^`\n]*)`", page.read_text())
        named = {n for s in spans for n in re.findall(r"--(\w+)", s)}
        assert named <= known, f"{page.name}: {named - known}"


def test_recipe_flags_of_a_page_are_accepted_with_their_values():
    from trainers.recipes.recipe import Recipe

    text = "\n".join(page.read_text() for page in PAGES)
    values = re.findall(r'`--(augment|strategy)="?([^"`]+)"?`', text)
    assert {name for name, _ in values} == {"augment", "strategy"}
    for name, value in values:
        Recipe(**{name: value})


def test_the_guide_on_photos_is_the_script_that_integration_runs():
    """Every command is in both, in the same order, word by word."""
    script = (ROOT / "docs/examples/photos.sh").read_text()
    # What a person does by hand: wait for the server, and go on after errors.
    by_hand = r"^(#|set|server=|page=|trap|curl .*(healthz|:8000))"
    commands_of_script = [
        re.sub(r" (&|\|\| \[ \$\? = 1 \])$", "", line)
        for line in lines_of(script)
        if not re.match(by_hand, line)
    ]
    page = (ROOT / "docs/photos.md").read_text()
    assert lines_of("".join(blocks(page, "bash"))) == commands_of_script
    assert len(commands_of_script) >= 12
    makefile = (ROOT / "Makefile").read_text()
    assert "bash docs/examples/photos.sh" in makefile


@pytest.mark.slow(60)
def test_the_notebook_on_photos_runs(tmp_path, without_xla, monkeypatch, capfd):
    """With fewer updates, and without latencies."""
    needs_litert_js()
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs/examples")
    cells = json.loads((ROOT / "docs/examples/photos.ipynb").read_text())
    names = {}
    for cell in cells["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            code = "".join(cell["source"])
            code = code.replace("EPOCHS, STEPS = 40, 7", "EPOCHS, STEPS = 6, 7")
            code = code.replace(
                "serving=serving,", "serving=serving, threads=(),"
            )
            exec(compile(code, "photos.ipynb", "exec"), names)
    assert names["accuracy"] > 0.6
    assert len(names["answers"]) == 3
    assert names["server"].returncode == 0
