"""npm packages: from a registry on loopback, with npm and without."""

import shutil

import pytest

from keras_vit.export.formats.web import (
    NpmPackage,
    find_archive,
    find_registry,
    unpack,
)
from tests.export.web_engine import Registry, make_package

FILES = {"dist/index.js": b"export {};", "wasm/a.wasm": bytes(1000)}
PACKAGE, CONTENT = make_package("@scope/engine", FILES)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty home and cache; npm is not installed."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache/npm"


@pytest.fixture
def registry(monkeypatch, cache):
    with Registry([(PACKAGE, CONTENT)]) as registry:
        monkeypatch.setenv("npm_config_registry", f"{registry.address}/")
        yield registry


@pytest.fixture
def npm(registry, tmp_path, monkeypatch):
    """npm as it is installed, with that registry and quick to give up."""
    monkeypatch.undo()
    if not shutil.which("npm"):
        pytest.skip("needs npm")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", registry.address)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_update_notifier", "false")


def check_fetched(cache):
    path = find_archive(PACKAGE)
    assert path == cache / "scope-engine-1.2.3.tgz"
    assert path.read_bytes() == CONTENT
    assert [each.name for each in cache.iterdir()] == [path.name]


def test_a_package_is_fetched_once(registry, cache):
    check_fetched(cache)
    assert registry.asked == ["/@scope/engine/-/engine-1.2.3.tgz"]
    check_fetched(cache)
    assert len(registry.asked) == 1
    # A damaged file in the cache is fetched again.
    find_archive(PACKAGE).write_bytes(CONTENT[:-1])
    check_fetched(cache)
    assert len(registry.asked) == 2


def test_npm_is_used_where_it_is_installed(npm, registry, cache):
    check_fetched(cache)
    assert "/@scope%2fengine" in registry.asked
    # Of npm's error, the reason is shown.
    with pytest.raises(OSError, match=r"(?s)npm pack @scope/other.*404"):
        find_archive(PACKAGE._replace(name="@scope/other"))


def test_a_package_with_another_content_is_refused(registry, cache, tmp_path):
    other = PACKAGE._replace(integrity="sha512-AAAA")
    with pytest.raises(ValueError, match="checksum sha512-AAAA. Received"):
        find_archive(other)
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


def test_a_registry_that_does_not_have_it(registry, cache):
    with pytest.raises(
        OSError,
        match=r"engine-9.tgz could not be fetched(.|\n)*leave `web` out",
    ):
        find_archive(PACKAGE._replace(version="9"))
    assert not list(cache.iterdir())


def test_there_is_no_registry_of_our_own(cache):
    with pytest.raises(OSError, match=r"npm_config_registry.*web_engine_dir"):
        find_archive(PACKAGE)


def test_the_configuration_of_npm_names_the_registry(
    cache, tmp_path, monkeypatch
):
    (tmp_path / ".npmrc").write_text("# ours\nregistry = http://all/\n")
    assert find_registry(PACKAGE) == "http://all"
    monkeypatch.setenv("npm_config_registry", "http://first")
    assert find_registry(PACKAGE) == "http://first"
    (tmp_path / ".npmrc").write_text("@scope:registry=http://scope/npm/\n")
    assert find_registry(PACKAGE) == "http://scope/npm"
    assert find_registry(NpmPackage("@b/c", "1", "")) == "http://first"


def test_only_files_of_the_package_are_unpacked(tmp_path):
    path = tmp_path / "a.tgz"
    path.write_bytes(CONTENT)
    assert unpack(path, FILES) == FILES
    for name in ("dist/other.js", "../package/dist/index.js", "dist"):
        with pytest.raises(ValueError, match="must contain"):
            unpack(path, [name])


def test_a_huge_file_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.tgz"
    path.write_bytes(CONTENT)
    monkeypatch.setattr("keras_vit.export.formats.web.MAX_FILE_BYTES", 999)
    with pytest.raises(ValueError, match="wasm/a.wasm, of at most 999 bytes"):
        unpack(path, FILES)
