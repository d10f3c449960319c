"""A name means one thing in the whole project."""

import ast
import collections
import pathlib

from tests.test_sizes import SOURCES

# Names that several modules define on purpose, because they play one role.
ROLES = {
    "BATCH_SIZE": "how many images a command takes at once",
    "BLOCK_NAME": "the prefix of a block's weights, in each family",
    "CHUNK_BYTES": "how much is read from a stream at once",
    "FLAGS": "absl's flags, in each command",
    "FORMAT": "the row of an export format",
    "LAYOUT": "the row of a checkpoint family",
    "RECIPES": "the rows of a paper, and all of them together",
    "define_flags": "the flags of a command",
    "main": "a command",
    "make_jsons": "the JSON files of a family",
    "start": "a session of an export format, for measuring it",
    "write": "the writer of an export format",
}


# Roles that each benchmark has, or each of several.
ROLES_OF_BENCHMARKS = {
    "MODEL_BUILDERS": "the models that a worker can build",
    "RATES": "the learning rates that are tried",
    "Result": "a row of the CSV file",
    "STUDY": "what a study trains",
    "WAYS": "what is compared",
    "batch": "the images and labels of a worker",
    "csv_rows": "the results as rows of the CSV file",
    "describe": "the report",
    "draw": "the figure",
    "find_gpu": "the GPU that a worker uses",
    "format_page": "the report as a page",
    "forward_step": "the inference that a worker measures",
    "make_functions": "what a worker measures",
    "make_panels": "the panels of the figure",
    "measure": "the measurement",
    "measure_case": "the measurement of one case",
    "name_arm": "the name of an arm in the figure",
    "our_model": "keras_vit's model in a worker",
    "parse": "the options",
    "product": "the matrix product of a worker",
    "run": "the training of one trial, or of all",
    "train_step": "the training step that a worker measures",
}

# Stems of several files of `keras_vit` and `trainers`, which treat one thing.
ROLES_OF_FILES = {
    "attention": "attention, computed by a layer and read from a model",
    "augreg": "the paper AugReg: its augmentation and its recipes",
    "baselines": "ResNets as baselines, and their recipes",
    "callbacks": "callbacks of Keras, one of our own and the running of any",
    "descriptions": "JSON that describes a model, of any file and of a family",
    "digits": "the digits of scikit-learn: the data set and its recipes",
    "errors": "what an error means, of libraries, servers and the training",
    "fine_tuning": "which weights are trained: the choice and its fields",
    "folder": "what is read from a folder: a checkpoint, a data set",
    "image_files": "the reading of image files, in each place that takes them",
    "inputs": "the inputs of a model, made from images and in a request",
    "inspect": "the command `inspect`, for a file and for a run",
    "inspecting": "what an inspection computes, of a model and of a data set",
    "keras_files": "`.keras` files: finding one, and reading it",
    "limits": "the size of what is accepted: a request, a checkpoint",
    "litert": "LiteRT, of which an export and the server run files",
    "lora": "LoRA: the weights of a model, and their files",
    "page": "the HTML page of an inspection",
    "patch_sizes": "several patch sizes: the training and its field",
    "positions": "position embeddings: their figure, and those of a file",
    "predictions": "the most probable classes of images",
    "progress": "the progress bar, in general and of a run",
    "representations": "tokens after each block: their similarity, its figure",
    "rest": "the REST interface, of the client and of the server",
    "saved_model": "a SavedModel, written by an export and run by a server",
    "visible_parts": "what is compared with config.json, for each library",
    "vtab": "the benchmark VTAB: its data sets, its sweeps, its command",
}


def public_names():
    """Return {name: modules that define it}."""
    found = collections.defaultdict(set)
    for path, text in SOURCES.items():
        if not path.endswith(".py"):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            elif isinstance(node, ast.AnnAssign):
                names = [node.target.id]
            else:
                continue
            for name in names:
                if not name.startswith("_"):
                    found[name].add(path)
    return found


def files_by_stem():
    """Return {stem: files with this name}, without those of benchmarks."""
    found = collections.defaultdict(set)
    for path in map(pathlib.PurePath, SOURCES):
        is_module = path.suffix == ".py" and path.stem != "__init__"
        if is_module and path.parts[0] in ("keras_vit", "trainers"):
            found[path.stem].add(str(path))
    return found


def test_a_name_means_one_thing():
    twice = {name: at for name, at in public_names().items() if len(at) > 1}
    roles = ROLES | ROLES_OF_BENCHMARKS
    unexplained = {name: at for name, at in twice.items() if name not in roles}
    assert not unexplained
    assert not roles.keys() - twice.keys(), "these are unique now"


def test_the_name_of_a_file_means_one_thing():
    twice = {stem: at for stem, at in files_by_stem().items() if len(at) > 1}
    assert not {s: at for s, at in twice.items() if s not in ROLES_OF_FILES}
    assert not ROLES_OF_FILES.keys() - twice.keys(), "these are unique now"
