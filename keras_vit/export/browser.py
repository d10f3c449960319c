"""Measuring an exported web page in headless Chromium."""

import contextlib
import dataclasses
import functools
import http.server
import importlib.resources
import json
import os
import pathlib
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Without the services of the browser that the page does not need; none of the
# others uses the network.
BROWSER_FLAGS = (
    "--headless",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
)
PAGE_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class PageSpeed:
    """The speed of a web page on this machine, with one thread.

    The page and the browser are on the same machine, so no time is spent on
    the network. The photo has 640 x 480 pixels.

    Args:
        browser: Name and version of the browser.
        first_answer_seconds: Time from the request of the page to the first
            prediction.
        answers_per_second: Number of photos, resized and classified.
        loaded_bytes: Size of the files that the page loads.
        reason: Reason why the page was not measured.
    """

    browser: str = ""
    first_answer_seconds: float | None = None
    answers_per_second: float | None = None
    loaded_bytes: int | None = None
    reason: str = ""

    def __str__(self):
        if self.reason:
            return f"web page: not measured, {self.reason}"
        return (
            f"web page: loads {self.loaded_bytes / 2**20:.2f} MiB; first "
            f"prediction after {self.first_answer_seconds:.2f} s, then "
            f"{self.answers_per_second:.1f} predictions a second "
            f"({self.browser} on this machine, one thread)"
        )


def measure_page(path: str) -> PageSpeed:
    """Return the speed of a web page, or the reason why it is not known.

    Args:
        path: The folder of the page.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        return PageSpeed(reason="Chromium is not installed")
    results = queue.Queue()
    with (
        serve_page(pathlib.Path(path), results) as address,
        run_browser(program, address),
    ):
        try:
            return PageSpeed(**results.get(timeout=PAGE_SECONDS))
        except queue.Empty:
            return PageSpeed(reason=f"no prediction in {PAGE_SECONDS} s")


@contextlib.contextmanager
def serve_page(folder: pathlib.Path, results: queue.Queue) -> Iterator[str]:
    """Serve a page on loopback; yield the address of the measurement.

    Args:
        folder: The folder of the page.
        results: Gets the results that the page sends.
    """
    source = importlib.resources.files("keras_vit") / "data" / "web"
    page = (folder / "index.html").read_text(encoding="utf-8")
    extra = {
        "/measure.html": page.replace("page.js", "measure.js"),
        "/measure.js": (source / "measure.js").read_text(encoding="utf-8"),
    }
    handler = functools.partial(PageHandler, extra, results, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/measure.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class PageHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and a few texts, and receives results.

    Args:
        extra: Texts by their paths.
        results: Gets the results, as dicts.
    """

    def __init__(self, extra, results, *arguments, **choices):
        self.extra, self.results = extra, results
        super().__init__(*arguments, **choices)

    def do_GET(self):
        if self.path not in self.extra:
            super().do_GET()
            return
        content = self.extra[self.path].encode("utf-8")
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(self.path))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.results.put(json.loads(content))

    def log_message(self, *arguments):
        """Print nothing."""


@contextlib.contextmanager
def run_browser(program: str, address: str):
    """Open an address in a new headless browser, until the end of the block.

    Args:
        program: Path of Chromium or Chrome.
        address: The address.
    """
    flags = list(BROWSER_FLAGS)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium has no sandbox for root.
    # The last processes of the browser may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={folder}", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
