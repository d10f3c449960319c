"""The files of a web page, and the npm packages from a registry on loopback."""

import hashlib
import json
import re

import numpy as np
import pytest

from keras_vit.export import Serving, export_file
from keras_vit.export.formats.web import (
    IMPORT_MAP,
    LITERT,
    WASM_UTILS,
    NpmPackage,
    find_archive,
    find_registry,
    unpack,
)
from tests.export.conftest import make_model
from tests.export.web_engine import Registry, make_package


@pytest.fixture(scope="module")
def page(shallow, images, engine, tmp_path_factory):
    path = tmp_path_factory.mktemp("web") / "page"
    report = export_file(
        shallow,
        path,
        images[:16],
        "web",
        name="<Cats & dogs>",
        web_quantization="dynamic_int8",
        web_engine_dir=engine,
    )
    assert report.kind == "web dynamic_int8" and not report.faults
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
    expected = {"index.html", "model.json", "model.tflite", "litert/LICENSE"}
    expected |= {"litert/index.js", "litert/wasm-utils.js"}
    assert expected <= found.keys()
    assert [package["name"] for package in manifest["packages"]] == [
        "@litertjs/core",
        "@litertjs/wasm-utils",
    ]
    # All of them may be read by a web server.
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in page.rglob("*"))


def test_the_page_names_no_other_server(page):
    text = (page / "index.html").read_text()
    assert "<title>&lt;Cats &amp; dogs&gt;</title>" in text
    assert "{{" not in text and IMPORT_MAP in text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert addresses == ["data:,", "style.css", "page.js"]
    for path in page.glob("*"):
        if path.suffix in (".js", ".css", ".html"):
            assert "://" not in path.read_text()


def test_models_that_a_page_cannot_run_are_refused(shallow, engine, tmp_path):
    for model, choices, words in (
        (shallow, {"serving": Serving(output="features")}, "`model` .*classif"),
        (make_model(depth=1, channels=4), {}, "1 or 3 channels"),
        (shallow, {"web_quantization": "int8"}, "`web_quantization`"),
        (shallow, {"web_engine_dir": tmp_path}, "npm pack @litertjs/core@"),
    ):
        images = np.zeros((2, *model.input_shape[1:]), "float32")
        choices = {"web_engine_dir": engine, **choices}
        with pytest.raises((OSError, ValueError), match=words):
            export_file(model, tmp_path / "page", images, "web", **choices)
    assert not list(tmp_path.iterdir())


def test_packages_are_pinned():
    for package in (LITERT, WASM_UTILS):
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
        assert re.fullmatch(r"sha512-[\w+/]{86}==", package.integrity)


# npm packages.

FILES = {"dist/index.js": b"export {};", "wasm/a.wasm": bytes(1000)}
PACKAGE, CONTENT = make_package("@scope/engine", FILES)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty home and cache."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache/npm"


@pytest.fixture
def registry(monkeypatch, cache):
    with Registry([(PACKAGE, CONTENT)]) as registry:
        monkeypatch.setenv("npm_config_registry", f"{registry.address}/")
        yield registry


def test_a_package_is_fetched_once(registry, cache):
    for content, count in (
        (CONTENT, 1),
        (CONTENT, 1),
        # A damaged file in the cache is fetched again.
        (CONTENT[:-1], 2),
    ):
        if cache.exists():
            find_archive(PACKAGE).write_bytes(content)
        path = find_archive(PACKAGE)
        assert path == cache / "scope-engine-1.2.3.tgz"
        assert path.read_bytes() == CONTENT
        assert [each.name for each in cache.iterdir()] == [path.name]
        wanted = ["/@scope/engine/-/engine-1.2.3.tgz"] * count
        assert registry.asked == wanted


def test_what_cannot_be_fetched_leaves_nothing(registry, cache, tmp_path):
    other = PACKAGE._replace(integrity="sha512-AAAA")
    with pytest.raises(ValueError, match="checksum sha512-AAAA. Received"):
        find_archive(other)
    with pytest.raises(OSError, match=r"engine-9.tgz (.|\n)*leave `web` out"):
        find_archive(PACKAGE._replace(version="9"))
    assert not list(cache.iterdir())
    (tmp_path / other.file_name).write_bytes(CONTENT)
    with pytest.raises(ValueError, match="checksum sha512-AAAA. Received"):
        find_archive(other, tmp_path)


def test_packages_may_be_brought_in_a_folder(cache, tmp_path):
    with pytest.raises(FileNotFoundError, match="npm pack @scope/engine@1.2.3"):
        find_archive(PACKAGE, tmp_path)
    path = tmp_path / PACKAGE.file_name
    path.write_bytes(CONTENT)
    assert find_archive(PACKAGE, tmp_path) == path
    assert not cache.exists()


def test_the_configuration_of_npm_names_the_registry(
    cache, tmp_path, monkeypatch
):
    assert find_registry(PACKAGE) == "https://registry.npmjs.org"
    (tmp_path / ".npmrc").write_text("# ours\nregistry = http://all/\n")
    assert find_registry(PACKAGE) == "http://all"
    monkeypatch.setenv("npm_config_registry", "http://first")
    assert find_registry(PACKAGE) == "http://first"
    (tmp_path / ".npmrc").write_text("@scope:registry=http://scope/npm/\n")
    assert find_registry(PACKAGE) == "http://scope/npm"
    assert find_registry(NpmPackage("@b/c", "1", "")) == "http://first"


def test_only_files_of_the_package_are_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.tgz"
    path.write_bytes(CONTENT)
    assert unpack(path, FILES) == FILES
    for name in ("../package/dist/index.js", "dist"):
        with pytest.raises(ValueError, match="must contain"):
            unpack(path, [name])
    monkeypatch.setattr("keras_vit.export.formats.web.MAX_FILE_BYTES", 999)
    with pytest.raises(ValueError, match="wasm/a.wasm, of at most 999 bytes"):
        unpack(path, FILES)
