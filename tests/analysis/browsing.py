"""A page in headless Chromium, and readings of its content."""

import contextlib
import os
import shutil

import numpy as np
import pytest

# No browser of the test's own: Debian's, without what it asks the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000  # Milliseconds; a busy machine is slow.


@contextlib.contextmanager
def open_browser(*flags):
    """Give a headless Chromium, with more flags.

    Where there is none the test is skipped; in continuous integration, where
    there has to be one, it fails.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    missing = pytest.fail if os.environ.get("CI") else pytest.skip
    if not chromium:
        missing("needs Debian's `chromium`: apt-get install chromium")
    try:
        from playwright.sync_api import expect, sync_playwright
    except ModuleNotFoundError:
        missing("needs `playwright`: pip install playwright")

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=[*FLAGS, *flags]
        )
        yield browser
        browser.close()


def settle(page):
    """Wait until nothing moves: halfway, a colour or a width is neither."""
    page.evaluate(
        """async () => {
            // What changed a style just now begins with the next frame.
            await new Promise(requestAnimationFrame);
            const running = () => document.getAnimations().filter(
                (animation) => animation.playState === "running"
            );
            while (running().length)
                await Promise.allSettled(
                    running().map((animation) => animation.finished)
                );
        }"""
    )


class Visit:
    """A tab, with the messages and the requests of its pages.

    What changes a page waits until it has drawn: what is read after that is
    what was asked for, however busy the machine.
    """

    def __init__(self, browser, **choices):
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **choices}
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda ask: self.asked.append(ask.url))

    def go(self, path, fragment=""):
        """Open a page as if for the first time."""
        self.page.mouse.move(1, 1)
        # To another fragment it would only scroll.
        self.page.goto("about:blank")
        self.page.emulate_media(
            color_scheme="light", reduced_motion="no-preference"
        )
        self.page.goto(f"{path.as_uri()}{fragment}")
        self.wait()
        return self

    def wait(self):
        """Wait until all that was asked for is drawn."""
        self.page.wait_for_selector('html[data-state="drawn"]')

    def check_quiet(self):
        """Check that the pages printed nothing and requested nothing."""
        # Messages arrive before the reply to a later question.
        self.page.evaluate("() => new Promise((done) => setTimeout(done))")
        said, asked = self.said[:], self.asked[:]
        self.said.clear()
        self.asked.clear()
        assert not said, said
        outside = [
            url
            for url in asked
            if not url.startswith(("file:", "data:", "blob:", "about:"))
        ]
        assert not outside, outside

    def panel(self, index=0):
        """Return a panel."""
        return self.page.locator(".panel").nth(index)

    def stage(self, index=0):
        """Return the image of a panel, with its overlays."""
        return self.panel(index).locator(".stage")

    def centre_of(self, row, column, grid_size, panel=0):
        """Return the place of a patch within the image."""
        box = self.stage(panel).bounding_box()
        return {
            "x": (column + 0.5) / grid_size[1] * box["width"],
            "y": (row + 0.5) / grid_size[0] * box["height"],
        }

    def hover(self, row, column, grid_size, panel=0):
        """Move the mouse to a patch."""
        place = self.centre_of(row, column, grid_size, panel)
        self.stage(panel).hover(position=place)
        self.wait()

    def click(self, row, column, grid_size):
        """Click a patch."""
        self.stage().click(position=self.centre_of(row, column, grid_size))
        self.wait()

    def press(self, key):
        """Press a key."""
        self.page.keyboard.press(key)
        self.wait()

    def choose(self, name, value):
        """Choose one of a group of radio buttons."""
        self.page.locator(f'[name="{name}"][value="{value}"]').check()
        self.wait()

    def switch(self, name, on):
        """Set a check box."""
        self.page.locator(f"#{name}").set_checked(on)
        self.wait()

    def select(self, selector, option):
        """Choose from a list."""
        self.page.locator(selector).select_option(option)
        self.wait()

    def slide(self, name, value):
        """Set a slider."""
        self.page.locator(f"#{name}").fill(str(value))
        self.wait()

    def reading(self, panel=0):
        """Return the sentence below an image."""
        return self.panel(panel).locator("figcaption .reading")

    def caption(self, panel=0):
        """Return the caption of a map."""
        return self.panel(panel).locator(".caption")

    def table(self, panel=0):
        """Return {first cells of a line: its value} of the strongest."""
        lines = (
            self.panel(panel)
            .locator(".strongest tbody")
            .evaluate(
                """body => [...body.rows].map(
                    (row) => [...row.cells].map((cell) => cell.innerText),
                )"""
            )
        )
        return {
            tuple(map(int, names[1:])) if len(names) == 3 else names[0]: (
                number_in(value)
            )
            for *names, value in lines
        }

    def colours(self, selector=".heat", panel=0):
        """Return the colours of a map, (h, w, 3)."""
        width, height, data = (
            self.panel(panel)
            .locator(selector)
            .evaluate(
                """canvas => {
                    const { width, height } = canvas;
                    // Of the page's own one a second reading warns.
                    const copy = new OffscreenCanvas(width, height);
                    const context = copy.getContext("2d", {
                        willReadFrequently: true,
                    });
                    context.drawImage(canvas, 0, 0);
                    const image = context.getImageData(0, 0, width, height);
                    return [width, height, [...image.data]];
                }"""
            )
        )
        pixels = np.reshape(data, (height, width, 4))
        assert (pixels[..., 3] == 255).all()
        return pixels[..., :3]


def number_in(text):
    """Return a number that a page shows, per cent as a share."""
    text = text.replace("\xa0", " ")
    number = float(text.split()[0])
    return number / 100 if text.endswith("%") else number


def viridis_places(colours):
    """Return where colours lie on matplotlib's scale, from 0 to 1."""
    import matplotlib

    scale = matplotlib.colormaps["viridis"](np.linspace(0, 1, 256))[:, :3]
    distances = np.linalg.norm(
        colours[..., None, :] - 255 * scale, axis=-1
    )  # (h, w, 256)
    # matplotlib's own colours, or near them: the page interpolates.
    assert distances.min(axis=-1).max() < 10
    return distances.argmin(axis=-1) / 255
