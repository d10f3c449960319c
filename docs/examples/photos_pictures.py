"""Take the pictures of docs/photos.md from the pages that its commands wrote.

    make photos
    .venv/bin/pip install playwright urllib3
    .venv/bin/python docs/examples/photos_pictures.py

It needs Chromium, and what is not in `saved_models/photos` is not shown.
"""

import contextlib
import functools
import http.server
import io
import pathlib
import shutil
import subprocess
import sys
import threading

import urllib3
from PIL import Image
from playwright.sync_api import sync_playwright

RUN = pathlib.Path("saved_models/photos")
PHOTO = pathlib.Path("new_photos/3.jpg")
IMAGES = pathlib.Path("docs/images")
PORT = 8501
PAGES = {  # File: (page, height that is shown).
    "photos_data": (pathlib.Path("saved_models/photos_data/index.html"), 900),
    "photos_evaluation": (RUN / "evaluation.html", 920),
    "photos_inspection": (RUN / "inspection/report.html", 1060),
}


def photograph(page, name: str):
    """Write docs/images/NAME.png."""
    save_small(io.BytesIO(page.screenshot()), name)


def save_small(file, name: str):
    """Write docs/images/NAME.png, with few colours."""
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(IMAGES / f"{name}.png", optimize=True)


def photograph_files(browser):
    """Photograph the pages that are files."""
    for name, (path, height) in PAGES.items():
        page = browser.new_page(viewport={"width": 1000, "height": height})
        page.goto(path.absolute().as_uri())
        page.wait_for_load_state("networkidle")
        photograph(page, name)


def photograph_answer(browser, address: str, name: str, height: int):
    """Photograph the answer of a page that takes a photo."""
    page = browser.new_page(viewport={"width": 1000, "height": height})
    page.goto(address)
    page.locator("#file:enabled").set_input_files(PHOTO)
    page.wait_for_selector("#classes tr")
    page.wait_for_timeout(1000)  # Until the bars have grown.
    photograph(page, name)


@contextlib.contextmanager
def local_server():
    """Run `keras-vit serve` on the exports of the run; yield its address."""
    command = [sys.executable, "-m", "keras_vit.serve", RUN / "export"]
    address = f"http://127.0.0.1:{PORT}/"
    server = subprocess.Popen([*command, f"--port={PORT}"])
    try:
        urllib3.request(
            "GET",
            f"{address}healthz",
            retries=urllib3.Retry(8, backoff_factor=0.5),
        )
        yield address
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def static_server():
    """Serve the web page that was exported; yield its address."""
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler,
        directory=RUN / "export/web/photos/1",
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def main():
    """Take all pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        photograph_files(browser)
        with local_server() as address:
            photograph_answer(browser, address, "photos_server", 760)
        with static_server() as address:
            photograph_answer(browser, address, "photos_web", 640)
    for name in ("first_batch", "learning_curve"):
        save_small(RUN / f"{name}.png", f"photos_{name}")


if __name__ == "__main__":
    main()
