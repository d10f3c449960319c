"""The command lines of the trainers: how they begin, and their flags.

Nothing here imports Keras or TensorFlow, so that --help and a mistyped flag are
answered at once. Names of tables that need them are written out.
"""

import inspect
import os
import re
import sys

from absl import app, flags, logging  # noqa: F401  Two define flags.

from keras_vit.command_line import import_keras, start
from keras_vit.tables import guess
from trainers.data.labels import MAPS
from trainers.plugins import entry_points
from trainers.recipes.flags import (
    define_choice,
    define_recipe_flags,
    is_recipe_file,
    show_values,
)
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES


def begin(module: str):
    """Answer --help and a mistyped flag, or import Keras on TensorFlow."""
    start()
    DEFINITIONS[module]()
    flags.DEFINE_list(
        "plugins",
        [],
        "Modules with recipes, data sets, operations, callbacks and metrics "
        "of your own, or their .py files, separated by commas.",
    )
    words = sys.argv[1:]
    if {"-h", "-help", "--help", "--helpshort", "--helpfull"} & {*words}:
        if "recipe" in flags.FLAGS:
            given = [x for x in words if x.startswith("--recipe=")]
            try:
                show_values("".join(given).partition("=")[2])
            except ValueError as error:  # There is no such file.
                sys.exit(f"Error: {error}")
        print_help(inspect.cleandoc(sys.modules["__main__"].__doc__))
        sys.exit()
    parse_flags(sys.argv)
    check_recipe_name()
    backend = import_keras()
    if backend not in ("tensorflow", "jax"):
        sys.exit(
            "Error: the trainers need the backend TensorFlow or JAX of Keras. "
            f"Received: KERAS_BACKEND={backend}"
        )


def parse_flags(words: list[str]) -> list[str]:
    """Parse a command line; return what is not a flag of it.

    What is wrong with it ends the command with a one-line message.
    """
    try:
        return flags.FLAGS(words)
    except flags.UnrecognizedFlagError as error:
        proposal = guess(error.flagname, flags.FLAGS)
        sys.exit(
            f"Error: there is no flag --{error.flagname}"
            f"{proposal or '. --help lists them all.'}"
        )
    except flags.Error as error:
        text = " ".join(str(error).split())
        missing = re.match(r"flag --(\w+)=None: ", text)
        text = f"--{missing[1]} must be given" if missing else text
        sys.exit(f"Error: {text}")


def check_recipe_name():
    """Exit if there is no such recipe, and no plug-in may have it."""
    name = flags.FLAGS["recipe"].value if "recipe" in flags.FLAGS else None
    if name in (None, *RECIPES) or is_recipe_file(name):
        return
    if flags.FLAGS.plugins or entry_points():
        return  # `choose_recipe` checks it.
    sys.exit(
        f"Error: --recipe must be one of {', '.join(RECIPES)}, or a .json or "
        f".yaml file. Received: {name!r}{guess(name, RECIPES)}"
    )


def print_help(text: str):
    """Print the description of a command and its flags.

    A program such as `head` may read a part of it.
    """
    values = flags.FLAGS
    for name in values:
        if values.find_module_defining_flag(name).startswith("trainers."):
            values.register_key_flag_for_module("Flags", values[name])
    try:
        print(text, values.module_help("Flags"), sep="\n", flush=True)
    except BrokenPipeError:
        # Or Python, too, would complain when it ends and empties its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Of `trainers.evaluation.probing`, `keras_vit.known` and `keras_vit.export`.
PROBES = ("few_shot", "knn")
SCORES = ("max_probability", "energy", "neighbors", "class_means")
FORMATS = ("onnx", "openvino", "saved_model", "tflite", "web")
QUANTIZATIONS = (
    *("float32", "float16", "dynamic_int8", "int8", "static_int8"),
)


# What several commands have.
TEXTS = {
    "run_dir": "Folder of the run.",
    "model": "Model to use instead of --run_dir: a .keras file, the folder of "
    "a run, a checkpoint of any family, or the name of a published one.",
    "data_dir": "Folder of the data sets of tensorflow-datasets.",
}


def define_texts(*names: str):
    """Define flags of TEXTS."""
    for name in names:
        flags.DEFINE_string(name, None, TEXTS[name])


def define_source_flags():
    """Define the flags that name a model and the images for it."""
    define_texts("run_dir", "model", "data_dir")
    flags.DEFINE_string(
        "dataset",
        None,
        "Data set. Default: that of the run; --model needs one.",
    )
    flags.DEFINE_string(
        "eval_split",
        None,
        "Split to read, or a slice of one. Default: that of the run.",
    )
    define_label_flags()
    define_preprocess_flag()


def define_label_flags():
    """Define the flags of how the labels of images are read."""
    for name in ("labels", "label_separator"):
        field = Recipe.__dataclass_fields__[name]
        text, choices = field.metadata["help"], field.metadata["choices"]
        if choices:
            define_choice(name, field.default, choices, text)
        else:
            flags.DEFINE_string(name, field.default, text)


def define_preprocess_flag():
    """Define the flag of the commands that prepare images for any model."""
    flags.DEFINE_string(
        "preprocess",
        None,
        "Operations on the images, separated by '|', such as "
        "'resize_small(256)|central_crop(224)'. Default: those of the run; "
        "with --model, those that its file states, or the whole image is "
        "resized.",
    )


def define_token_flags():
    """Define the flags of the commands that can change the tokens."""
    flags.DEFINE_integer(
        "patch_size",
        None,
        "Side of the patches in pixels: the model's own are resized to it, as "
        "in FlexiViT. Default: that of the model.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "merged_tokens",
        None,
        "Number of patches that each block merges with similar ones, which is "
        "faster and less accurate. Default: that of the model.",
        lower_bound=0,
    )


def define_reading_flags():
    """Define the flags of the commands that read a data set as it is."""
    flags.DEFINE_integer(
        "max_bad_examples",
        0,
        "Number of unreadable images to skip before the command stops.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "batch_size", 128, "Number of images per batch.", lower_bound=1
    )


def define_evaluation_flags():
    """Define the flags of the commands that evaluate a model."""
    define_source_flags()
    define_reading_flags()
    flags.DEFINE_string(
        "report_dir",
        None,
        "Folder to write the report to. Default: the folder of the run; an "
        "evaluation of another data set, preprocessing or patch size has a "
        "folder of its own there. With --model, the report is only printed.",
    )


def define_worker_flags():
    """Define the flags of a WorkerConfig."""
    flags.DEFINE_string(
        "workers",
        None,
        "For --strategy=multi_worker, and any of JAX over several processes: "
        "host:port of all processes, with commas. "
        "Default: from TF_CONFIG or Slurm.",
    )
    flags.DEFINE_integer(
        "worker_index", None, "Index of this process in --workers, from 0."
    )
    flags.DEFINE_float(
        "start_timeout",
        600.0,
        "Seconds to wait at the start for other processes and the data "
        "service.",
        lower_bound=0.0,
    )
    flags.DEFINE_string(
        "tpu",
        None,
        "For --strategy=tpu: name or address of the TPU, if not local.",
    )


def define_train_flags():
    """Define the flags of trainers.train."""
    define_recipe_flags()
    flags.DEFINE_string(
        "run_dir",
        None,
        "Folder of the run, or an address in a bucket such as gs://bucket/run. "
        "Default: saved_models/<recipe>.",
    )
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Print what training would need, draw the first batch, and stop. "
        "This is the model, the memory and the time.",
    )
    flags.DEFINE_bool("force", False, "Continue a run with a different recipe.")
    define_worker_flags()


def define_sweep_flags():
    """Define the flags of trainers.sweep."""
    define_recipe_flags()
    flags.DEFINE_list(
        "learning_rates",
        None,
        "Learning rates to try, separated by commas. Default: those of the "
        "paper for its fine-tuning, else three around that of the recipe.",
    )
    flags.DEFINE_string(
        "held_out",
        None,
        "Training images that choose the learning rate: a share such as 2%, "
        "or a number. They are the last ones of the training split. Default: "
        "the share of the paper for its fine-tuning, else 10%.",
    )
    flags.DEFINE_integer(
        "num_seeds",
        3,
        "Number of runs with the chosen rate. Their seeds are --seed and the "
        "numbers after it.",
    )
    flags.DEFINE_string(
        "sweep_dir",
        None,
        "Folder of the sweep, with a folder for each run, or an address in a "
        "bucket. Default: saved_models/<recipe>_sweep.",
    )
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Print the plan and what its first run would need, and stop.",
    )
    define_worker_flags()


def define_vtab_flags():
    """Define the flags of a sweep and the others."""
    define_sweep_flags()
    flags.FLAGS.set_default("recipe", "vtab_l16")
    flags.DEFINE_list(
        "tasks",
        None,
        "Tasks of VTAB, separated by commas, such as pets,clevr_count. "
        "Default: all 19.",
    )


def define_evaluate_flags():
    """Define the flags of trainers.evaluate."""
    define_evaluation_flags()
    flags.DEFINE_string(
        "compare",
        None,
        "Folder of another evaluation of the same images, which the page shows "
        "beside this one.",
    )
    define_token_flags()


def define_probe_flags():
    """Define the flags of trainers.probe."""
    define_evaluation_flags()
    flags.DEFINE_list(
        "probes", list(PROBES), f"Comma-separated, of {', '.join(PROBES)}."
    )
    flags.DEFINE_list(
        "shots",
        ["1", "5", "10", "25"],
        "Numbers of images per class for few_shot. A class with fewer images "
        "uses all of them.",
    )
    flags.DEFINE_integer("num_seeds", 3, "Number of random draws for few_shot.")
    flags.DEFINE_list(
        "neighbors",
        None,
        "Numbers of neighbours for knn, such as 10,20,100,200. Default: "
        "20, or all training images if there are fewer.",
    )
    flags.DEFINE_string(
        "train_split",
        None,
        "Split to fit the probes to, or a slice of one. Default: that of the "
        "data set.",
    )


def define_calibrate_flags():
    """Define the flags of trainers.calibrate."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_string("dataset", None, "Data set. Default: that of the run.")
    define_texts("data_dir")
    flags.DEFINE_string(
        "eval_split",
        None,
        "Images to measure on; the model must not have learned from them. "
        "Default: the split that the run evaluates.",
    )
    flags.DEFINE_string(
        "train_split",
        None,
        "Images that the scores compare with, such as train[:5%]. Default: "
        "those that the run learned from.",
    )
    flags.DEFINE_list(
        "unknown",
        None,
        "Image files, or folders of them, that show other things; they choose "
        "the score. Comma-separated.",
    )
    define_choice(
        "score",
        None,
        SCORES,
        "What tells whether an image is known. Default: the best one.",
    )
    flags.DEFINE_float(
        "refuse",
        0.05,
        "Share of images like those of --eval_split that may be unknown.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "temperature",
        True,
        "Divide the logits by a temperature, if that makes the probabilities "
        "more honest.",
    )
    flags.DEFINE_string(
        "threshold_goal",
        None,
        "Of several labels, what their thresholds serve: f1, or a precision "
        "such as precision:0.9. Default: that of the run.",
    )
    define_reading_flags()


def define_ray_flags():
    """Define the flags of commands that run on a cluster of Ray."""
    flags.DEFINE_string(
        "ray",
        None,
        "Compute on a cluster of Ray: auto on one of its machines, its "
        "HOST:PORT, or local for workers on this machine. Default: in this "
        "process.",
    )
    flags.DEFINE_integer(
        "ray_workers",
        0,
        "Number of processes on the cluster. Default: one on each GPU or, "
        "without any, on each machine.",
        lower_bound=0,
    )


def define_predict_flags():
    """Define the flags of trainers.predict."""
    define_texts("run_dir", "model")
    flags.DEFINE_string(
        "classes",
        None,
        "Names of classes, separated by commas, or a file with a name on each "
        "line, for a --model of images and texts, such as "
        "hf://openai/clip-vit-base-patch32.",
    )
    flags.DEFINE_string(
        "templates",
        None,
        "A text about an image with {} for the name of a class of --classes, "
        "or a file with a text on each line. Default: 'a photo of a {}.'.",
    )
    flags.DEFINE_integer(
        "top", 5, "Largest number of classes to print.", lower_bound=1
    )
    flags.DEFINE_float(
        "coverage",
        None,
        "Show as many classes as it takes for the right one to be among them "
        "for this share of images, such as 0.9. Needs trainers.calibrate.",
    )
    define_choice(
        "format",
        "text",
        ["text", "csv", "jsonl", "table"],
        "Form of the output: lines for people, a CSV table, a JSON object on "
        "each line, or a table of labels for a spreadsheet, which "
        "--dataset=csv:PATH reads when a person has corrected it.",
    )
    flags.DEFINE_string(
        "out",
        None,
        "Folder for the maps of a model with an answer for each pixel: PNG "
        "files of classes, or of depths in millimetres, with the images below "
        "them in overlays/.",
    )
    flags.DEFINE_bool(
        "windows",
        False,
        "With --out: read an image that is larger than those of the model in "
        "overlapping windows, instead of making it smaller.",
    )
    define_preprocess_flag()
    define_ray_flags()


def define_embed_flags():
    """Define the flags of trainers.embed."""
    define_texts("run_dir", "model")
    flags.DEFINE_string("out", None, "Folder to write to.", required=True)
    flags.DEFINE_string(
        "dataset",
        None,
        "Data set, if no files are given. Default: that of the run.",
    )
    define_texts("data_dir")
    flags.DEFINE_string(
        "split", None, "Split to read, or a slice of one. Default: all splits."
    )
    flags.DEFINE_string(
        "vector",
        "pooled",
        "Which vector of an image: pooled, the input of the head; output, what "
        "the model returns, for texts; token, the class token; "
        "mean, that of the patches; grid, all patches; or the mean after a "
        "block, as block:3, or of several, as block:3,7. "
        "block:3:token and block:3:grid are other parts.",
    )
    define_choice(
        "dtype", "float32", ["float32", "float16"], "Type of the numbers."
    )
    flags.DEFINE_integer(
        "shard_rows",
        4096,
        "Number of images of a shard, which are lost if the command is killed.",
        lower_bound=1,
    )
    define_label_flags()
    define_preprocess_flag()
    define_reading_flags()
    define_ray_flags()


def define_page_flag():
    """Define the flag of a page that a command writes."""
    flags.DEFINE_string(
        "out", None, "Page to write, a file that ends in .html."
    )


def define_similar_flags():
    """Define the flags of trainers.similar."""
    flags.DEFINE_integer(
        "top", 10, "Number of images to find for each of them.", lower_bound=1
    )
    flags.DEFINE_multi_string(
        "text",
        None,
        "A text to search for in place of photos, for embeddings by "
        "--vector=output of a model of images and texts; may be repeated.",
    )
    flags.DEFINE_float(
        "duplicates",
        None,
        "Find groups of images whose vectors have at least this cosine, such "
        "as 0.95, in place of those that are similar to photos.",
    )
    define_choice(
        "format",
        "text",
        ["text", "csv"],
        "Form of the output: lines for people, or a CSV table.",
    )
    define_page_flag()


def define_check_labels_flags():
    """Define the flags of trainers.check_labels."""
    flags.DEFINE_string(
        "out",
        None,
        "Folder to write to: labels.csv and suspects.html.",
        required=True,
    )
    flags.DEFINE_integer(
        "neighbors",
        10,
        "Number of neighbours that vote beside the probe. Their time grows "
        "with the square of the number of images; 0 leaves them out.",
        lower_bound=0,
    )


def define_map_flags():
    """Define the flags of trainers.map."""
    define_page_flag()
    flags.mark_flag_as_required("out")
    define_choice(
        "method",
        "pca",
        ["pca", "umap"],
        "How vectors become points: the first principal components, or UMAP, "
        "which needs the package umap-learn.",
    )
    flags.DEFINE_integer(
        "most_images",
        20_000,
        "Largest number of images on the page; of more, a random part.",
        lower_bound=1,
    )


def define_inspect_flags():
    """Define the flags of trainers.inspect."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_string(
        "out",
        None,
        "Folder to write to. Default: `inspection` in the folder of the run.",
    )
    flags.DEFINE_string(
        "compare",
        None,
        "A second model, shown beside the first: the folder of a run, a .keras "
        "file, a checkpoint or the name of a published model.",
    )
    flags.DEFINE_integer(
        "num_images",
        None,
        "Number of test images to inspect. Default: 4.",
        lower_bound=1,
    )
    define_choice("format", "png", ["png", "svg"], "Format of the pictures.")
    flags.DEFINE_integer(
        "max_bad_examples",
        0,
        "Number of unreadable test images to skip before the command stops.",
        lower_bound=0,
    )


def define_inspect_data_flags():
    """Define the flags of trainers.inspect_data."""
    flags.DEFINE_string(
        "dataset", None, "The data set, if it is not named without a flag."
    )
    flags.DEFINE_string(
        "out", None, "Folder for a page with the findings and the images."
    )
    define_texts("data_dir")
    for split in ("train_split", "eval_split"):
        flags.DEFINE_string(
            split, None, "Split to check. Default: that of the data set."
        )
    define_label_flags()
    define_choice(
        "objective",
        None,
        MAPS,
        "What the images have for each pixel, its class or its distance, as "
        "pairs:PATH has. Default: nothing.",
    )
    for name, define in (
        ("channels", flags.DEFINE_integer),
        ("pixel_range", flags.DEFINE_string),
        ("depth_unit", flags.DEFINE_float),
    ):
        define(name, None, Recipe.__dataclass_fields__[name].metadata["help"])


def define_serve_check_flags():
    """Define the flags of trainers.serve_check."""
    flags.DEFINE_string("url", None, "REST interface, http://HOST:8501.")
    flags.DEFINE_string("grpc", None, "gRPC interface, HOST:8500.")
    flags.DEFINE_string(
        "export", None, "Folder of the version, .../NAME/NUMBER.", required=True
    )
    flags.DEFINE_string(
        "model_name", None, "Name on the server. Default: NAME of the export."
    )
    flags.DEFINE_float(
        "tolerance",
        1e-4,
        "Largest allowed difference from the recorded outputs.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "requests",
        100,
        "Number of timed requests for each signature; 0 for none.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "concurrency", 4, "Number of concurrent requests.", lower_bound=1
    )
    flags.DEFINE_string("json", None, "File to write the report to.")


def define_export_flags():
    """Define the flags of trainers.export_model."""
    define_source_flags()
    define_token_flags()
    define_destination_flags()
    define_format_flags()
    define_web_flags()
    define_comparison_flags()
    define_serving_flags()


def define_destination_flags():
    """Define the flags of the files to write."""
    flags.DEFINE_list(
        "formats",
        ["saved_model", "tflite"],
        f"Comma-separated, of {', '.join(FORMATS)}.",
    )
    flags.DEFINE_string(
        "export_dir", None, "Folder to write to. Default: <run_dir>/export."
    )
    flags.DEFINE_string(
        "name",
        None,
        "Name of the model on servers. Default: the name of the run's folder, "
        "in the letters that servers accept.",
    )
    flags.DEFINE_integer(
        "version",
        None,
        "Number of this version. Default: the one after the newest.",
        lower_bound=1,
    )


def define_format_flags():
    """Define the options of the formats."""
    flags.DEFINE_list(
        "tflite_quantizations",
        ["dynamic_int8"],
        "Quantizations of the TFLite files, comma-separated, of "
        f"{', '.join(QUANTIZATIONS)}.",
    )
    flags.DEFINE_integer(
        "tflite_batch_size",
        1,
        "The only batch size that TFLite files accept; 0 for any.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "tflite_takes_pixels",
        False,
        "Let the TFLite files take uint8 pixels from 0 to 255, of twice the "
        "height and width if the preprocessing antialiases.",
    )
    flags.DEFINE_string(
        "calibration_split",
        None,
        "Images to measure the ranges of int8 numbers on, such as "
        "train[:256]; for the TFLite quantizations int8 and static_int8.",
    )
    flags.DEFINE_bool(
        "onnx_takes_pixels",
        False,
        "Let the ONNX file take uint8 pixels from 0 to 255 instead of floats "
        "in the range of the model.",
    )
    flags.DEFINE_integer(
        "onnx_batch_size",
        None,
        "Number of images that the ONNX file takes at a time, with all shapes "
        "fixed and no computed constants, as TensorRT takes it. Default: any.",
        lower_bound=1,
    )


def define_web_flags():
    """Define the options of the web page."""
    define_choice(
        "web_quantization",
        "float32",
        ["float32", "float16", "dynamic_int8"],
        "Quantization of the model in the web page.",
    )
    flags.DEFINE_string(
        "web_engine_dir",
        None,
        "Folder with the npm packages of LiteRT.js, as `npm pack` writes "
        "them. Default: they are fetched once and cached.",
    )


def define_comparison_flags():
    """Define the flags of the comparison with the model."""
    flags.DEFINE_integer(
        "num_images",
        512,
        "Largest number of images to compare outputs on.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "max_bad_examples",
        0,
        "Number of unreadable images to skip before the command stops.",
        lower_bound=0,
    )
    flags.DEFINE_bool("measure_latency", True, "Measure latencies.")
    flags.DEFINE_bool(
        "force",
        False,
        "Write exports even if their outputs differ from those of the model.",
    )


def define_serving_flags():
    """Define the flags of pre- and post-processing on the server."""
    flags.DEFINE_integer(
        "top",
        None,
        "Largest number of classes in a prediction. Default: 5; of several "
        "labels, all.",
        lower_bound=1,
    )
    define_choice(
        "activation",
        None,
        ["softmax", "sigmoid"],
        "Function that turns logits into probabilities. Default: that of the "
        "loss of the run, or softmax.",
    )
    define_choice(
        "output",
        None,
        ["logits", "probabilities", "features", "pixel_logits", "depths"],
        "Kind of output of the model. Default: inferred from its last layers.",
    )
    flags.DEFINE_bool(
        "use_attention",
        False,
        "Add signatures that return the attention rollout of an image.",
    )


DEFINITIONS = {
    "trainers.calibrate": define_calibrate_flags,
    "trainers.check_labels": define_check_labels_flags,
    "trainers.embed": define_embed_flags,
    "trainers.evaluate": define_evaluate_flags,
    "trainers.export_model": define_export_flags,
    "trainers.inspect": define_inspect_flags,
    "trainers.inspect_data": define_inspect_data_flags,
    "trainers.map": define_map_flags,
    "trainers.predict": define_predict_flags,
    "trainers.probe": define_probe_flags,
    "trainers.serve_check": define_serve_check_flags,
    "trainers.similar": define_similar_flags,
    "trainers.sweep": define_sweep_flags,
    "trainers.train": define_train_flags,
    "trainers.vtab": define_vtab_flags,
}
