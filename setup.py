"""Build script: all metadata of the package is here."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "keras_vit/version.py").read_text()
).group(1)

TRAIN = [
    "ai-edge-litert>=2.1",
    "importlib_resources",  # tensorflow-datasets imports it undeclared
    "matplotlib>=3.8",
    "Pillow>=10",
    "psutil>=5.9",
    "pyarrow>=18",  # tensorflow-datasets needs it as well.
    "PyYAML>=6",  # Recipes in YAML files.
    "scikit-learn>=1.4",
    "tensorboard>=2.20",
    "tensorflow>=2.20",
    "tensorflow-datasets>=4.9.9",
    "tensorflow-serving-api>=2.20",  # Messages of the files for TF Serving.
]
# The wheels of pillow-heif, the better known package, are under the GPL.
HEIC = ["pi-heif>=1"]
UMAP = ["umap-learn>=0.5.7"]
# Embeddings and predictions on many machines.
CLUSTER = ["ray>=2.40"]
PLOTS = ["matplotlib>=3.8", "Pillow>=10"]
# Classes by name: the tokenizers of text towers.
TEXT = ["ftfy>=6.1", "sentencepiece>=0.2", "tokenizers>=0.20"]
# Other implementations, for the tests that compare with them.
PEERS = ["timm>=1.0.20", "torch>=2.6", "transformers>=5"]
SERVING = ["tensorflow-serving-api>=2.20", "urllib3>=2.1"]
# The small server; of a SavedModel it needs tensorflow, of a TFLite file
# ai-edge-litert.
SERVE = [
    "ai-edge-litert>=2.1",
    "Pillow>=10",
    "starlette>=0.46",
    "tensorflow>=2.20",
    "uvicorn>=0.34",
]
ONNX = ["onnx>=1.17", "onnxruntime>=1.20", "tf2onnx>=1.17"]
OPENVINO = ["openvino>=2025"]
QUANTIZER = ["ai-edge-quantizer>=0.7"]
# Experiment trackers.
MLFLOW = ["mlflow-skinny>=3"]
TRACKIO = ["trackio>=0.20"]
WANDB = ["wandb>=0.20"]
# To look at pages as a person does; the browser is Debian's `chromium`.
BROWSER = ["axe-playwright-python>=0.1.7", "playwright>=1.55"]
# The site, and what its figures and its reference are made with.
DOCS = [
    "importlib_resources",
    "matplotlib>=3.8",
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.7,<10",
    "mkdocstrings[python]>=1",
    "Pillow>=10",
    "ruff>=0.9",  # It formats signatures.
    "scikit-learn>=1.4",
    "tensorflow>=2.20",
    "tensorflow-datasets>=4.9.9",
]
DEV = [
    *TRAIN,
    *CLUSTER,
    *HEIC,
    *TEXT,
    *SERVING,
    *SERVE,
    *ONNX,
    *OPENVINO,
    *QUANTIZER,
    *MLFLOW,
    *TRACKIO,
    *BROWSER,
    *DOCS,  # Tests look at how docstrings are read.
    "hypothesis>=6.100",
    "jax>=0.4.36",
    "mypy>=1.15",
    "optax>=0.2",
    "pytest>=8",
    "pytest-xdist>=3.5",
    "pyright[nodejs]>=1.1.400",
    "ruff>=0.9",
    "scipy>=1.11",
]

setup(
    # Imported as `keras_vit`; `keras-vit` on PyPI is another project.
    name="keras-vision-transformer",
    version=VERSION,
    description="The Vision Transformer for Keras 3",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["keras_vit*", "trainers*"]),
    package_data={
        "keras_vit": [
            "py.typed",
            "data/*",
            "data/map/*",
            "data/report/*",
            "data/serve/*",
            "data/web/*",
        ],
    },
    entry_points={"console_scripts": ["keras-vit = trainers.console:main"]},
    install_requires=[
        "absl-py>=2",
        "keras>=3.13",
        "ml_dtypes>=0.4",  # bfloat16; Keras needs it as well.
        "numpy>=1.26",
        "safetensors>=0.4.5",  # Its first version that reads bfloat16.
    ],
    extras_require={
        "train": TRAIN,
        "heic": HEIC,
        "plots": PLOTS,
        "text": TEXT,
        "onnx": ONNX,
        "serve": SERVE,
        "serving": SERVING,
        "openvino": OPENVINO,
        "mlflow": MLFLOW,
        "trackio": TRACKIO,
        "wandb": WANDB,
        "quantizer": QUANTIZER,
        "peers": PEERS,
        "umap": UMAP,
        "cluster": CLUSTER,
        "docs": DOCS,
        "dev": DEV,
    },
    project_urls={"Paper": "https://arxiv.org/abs/2010.11929"},
    license_files=["LICENSE", "keras_vit/data/WORDNET_LICENSE.txt"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
)
