"""Stand-ins for the npm packages of LiteRT.js, and for their registry."""

import base64
import contextlib
import hashlib
import http.server
import io
import json
import pathlib
import tarfile
import tempfile
import threading
from unittest import mock

from keras_vit.export.formats import web
from keras_vit.export.formats.web import NpmPackage


def make_package(name, files, version="1.2.3"):
    """Return a package with these files, and the content of its archive."""
    described = {"name": name, "version": version}
    files = {"package.json": json.dumps(described).encode(), **files}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    return NpmPackage(name, version, f"sha512-{digest}"), content


@contextlib.contextmanager
def stand_in_engine():
    """Give a folder with packages that the web format takes for LiteRT.js."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for real, names in web.ENGINE_FILES.items():
            texts = {name: name.encode() for name in names}
            package, content = make_package(real.name, texts)
            pathlib.Path(folder, package.file_name).write_bytes(content)
            files[package] = names
        with mock.patch.object(web, "ENGINE_FILES", files):
            yield folder


class Registry(http.server.ThreadingHTTPServer):
    """An npm registry on loopback, which counts the requests."""

    def __init__(self, packages):
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.asked, self.answers = [], {}
        for package, content in packages:
            stem = package.name.rpartition("/")[2]
            path = f"/{package.name}/-/{stem}-{package.version}.tgz"
            self.answers[path] = content

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.thread.join()
        self.server_close()


class RegistryHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.answers.get(self.path)
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"{}")

    def log_message(self, *arguments):
        pass
