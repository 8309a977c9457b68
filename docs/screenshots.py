"""Make the pictures of the report page in this folder, and of its chart for the site's home page.

    python docs/screenshots.py [--models ResNet50,Transformer] [--folder docs]

Trains each model for some steps under a part of what it needs, writes its page, opens it in
chromium and takes pictures. Needs playwright (``pip install "tfswap[browser]"``).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tfswap  # noqa: E402  before TensorFlow's first operation

# Batch, and pixels or tokens; budget in MiB, about 0.6 of what it needs.
_MODELS = {"ResNet50": (16, 128, 420), "Transformer": (16, 128, 700)}
_STEPS = 30
# The chart on the home page: of the load and the arcs, whose labels a phone can show.
_CHART_OF, _CHART_WIDTH, _CHART_HEIGHT = "ResNet50", 520, 384


def write_page(name: str, path: Path) -> None:
    """Train a model until its plan is settled, and write its page."""
    import keras

    from benchmarks.models import workload

    batch, size, budget_mib = _MODELS[name]
    work = workload(name, batch, size)
    swap = tfswap.AutoSwap(budget=f"{budget_mib}MiB", verbose=1)

    class UntilSettled(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            trainings = tfswap.status()["trainings"]
            self.model.stop_training = bool(trainings) and trainings[0]["phase"] == "steady"

    work.model.fit(
        work.x, work.y, batch_size=batch, epochs=_STEPS, verbose=0, callbacks=[swap, UntilSettled()]
    )
    swap.report.to_html(path)


@contextmanager
def open_page(page: Path, scheme: str, width: int, scale: int) -> Iterator[Any]:
    """Open a page in a window of that width, in a light or dark color scheme."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("docs/screenshots.py needs chromium: apt-get install chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(
            viewport={"width": width, "height": 1250},
            color_scheme=scheme,
            device_scale_factor=scale,
        )
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready=yes]")
        yield opened
        browser.close()


def take_picture(page: Path, picture: Path, scheme: str) -> None:
    """Take a picture of the upper part of the page, with the pointer in the chart."""
    with open_page(page, scheme, 1200, 1) as opened:
        box = opened.locator("#chart").bounding_box()
        assert box is not None
        opened.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 90)
        opened.screenshot(path=picture)


def take_chart(page: Path, picture: Path, scheme: str) -> None:
    """Take a picture of the chart alone, without a background."""
    with open_page(page, scheme, _CHART_WIDTH, 2) as opened:
        opened.add_style_tag(content="html, body { background: transparent !important; }")
        box = opened.locator("#chart").bounding_box()
        assert box is not None
        box["height"] = _CHART_HEIGHT
        opened.screenshot(path=picture, clip=box, full_page=True, omit_background=True)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(_MODELS), help="(all)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="(docs)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models.split(","):
            page = Path(folder) / f"{name}.html"
            write_page(name, page)
            for scheme in ("light", "dark"):
                picture = options.folder / f"report-{name.lower()}-{scheme}.png"
                take_picture(page, picture, scheme)
                print(picture)
                if name == _CHART_OF:
                    take_chart(page, options.folder / f"load-{scheme}.png", scheme)


if __name__ == "__main__":
    main()
