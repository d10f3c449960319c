"""The files of a web page, with stand-ins for the packages of LiteRT.js."""

import hashlib
import json
import re

import numpy as np
import pytest

from keras_vit import Preprocessing
from keras_vit.export import ExportOptions, Serving, export_web
from keras_vit.export.contract import ExportRequest
from keras_vit.export.formats import find_format
from keras_vit.export.formats.web import ENGINE_FILES, FORMAT, IMPORT_MAP
from tests.export.conftest import make_model
from tests.export.web_engine import stand_in_engine

NAMES = [f"class {number}" for number in range(7)]


@pytest.fixture(scope="module")
def engine():
    with stand_in_engine() as folder:
        yield folder


@pytest.fixture(scope="module")
def page(shallow, images, engine, tmp_path_factory):
    path = tmp_path_factory.mktemp("web") / "page"
    export_web(
        shallow,
        path,
        images,
        serving=Serving(
            class_names=NAMES, preprocessing=Preprocessing("zero_one")
        ),
        name="<Cats & dogs>",
        engine_dir=engine,
    )
    return path


def test_every_file_has_its_checksum(page):
    manifest = json.loads((page / "manifest.json").read_text())
    found = {
        path.relative_to(page).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in page.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert manifest["sha256"] == found
    names = {name for names in ENGINE_FILES.values() for name in names.values()}
    expected = {"index.html", "model.json", "model.tflite", "litert/LICENSE"}
    assert expected | names <= found.keys()
    assert [package["name"] for package in manifest["packages"]] == [
        "@litertjs/core",
        "@litertjs/wasm-utils",
    ]
    # All of them may be read by a web server.
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in page.rglob("*"))


def test_packages_are_pinned():
    for package in ENGINE_FILES:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
        assert re.fullmatch(r"sha512-[\w+/]{86}==", package.integrity)


def test_the_description(page):
    assert json.loads((page / "model.json").read_text()) == {
        "format": "keras_vit 1",
        "version": "0.1.0",
        "name": "<Cats & dogs>",
        "input": {
            "height": 32,
            "width": 24,
            "channels": 3,
            "dtype": "float32",
        },
        "image_steps": [
            {
                "kind": "resize",
                "height": 32,
                "width": 24,
                "method": "antialias",
            }
        ],
        "mean": [0.0] * 3,
        "deviation": [1.0] * 3,
        "output": "logits",
        "activation": "softmax",
        "class_names": NAMES,
    }


def test_the_page_names_no_other_server(page):
    text = (page / "index.html").read_text()
    assert "<title>&lt;Cats &amp; dogs&gt;</title>" in text
    assert "{{" not in text and IMPORT_MAP in text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert addresses == ["data:,", "style.css", "page.js"]
    for path in page.glob("*"):
        if path.suffix in (".js", ".css", ".html"):
            assert "://" not in path.read_text()


def test_models_without_classes_are_refused(shallow, images, engine, tmp_path):
    for model, serving, message in (
        (shallow, Serving(output="features"), "must be a classifier"),
        (shallow, Serving(read_image=lambda x: x), "must have `image_steps`"),
        (make_model(depth=1, channels=4), None, "1 or 3 channels"),
    ):
        shape = (2, *model.input_shape[1:])
        with pytest.raises(ValueError, match=message):
            export_web(
                model,
                tmp_path / "page",
                np.zeros(shape, "float32"),
                serving=serving,
                engine_dir=engine,
            )
    assert not list(tmp_path.iterdir())


def test_quantizations(shallow, images, engine, tmp_path):
    for quantization in ("float16", "dynamic_int8"):
        options = ExportOptions(
            web_quantization=quantization, web_engine_dir=engine
        )
        FORMAT.check(options, False)
        folder = tmp_path / quantization
        folder.mkdir()
        request = ExportRequest(shallow, images, options, "name")
        [agreement] = FORMAT.write(request, folder)
        assert agreement.kind == f"web {quantization}"
        assert not agreement.faults
        assert find_format(agreement.path) is FORMAT
        assert json.loads((folder / "model.json").read_text())["name"] == "name"
    with pytest.raises(ValueError, match="`web_quantization` must be one of"):
        FORMAT.check(ExportOptions(web_quantization="int8"), True)


def test_an_engine_that_is_missing_is_told_first(tmp_path):
    with pytest.raises(OSError, match="npm pack @litertjs/core@"):
        FORMAT.check(ExportOptions(web_engine_dir=str(tmp_path)), False)


def test_a_folder_of_no_format(tmp_path):
    with pytest.raises(ValueError, match=r"saved_model.pb or index.html"):
        find_format(str(tmp_path))
    with pytest.raises(ValueError, match=r"ends in .onnx, .xml, .tflite"):
        find_format(str(tmp_path / "model.h5"))
