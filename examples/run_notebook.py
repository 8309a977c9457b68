"""Run a notebook in a fresh virtual environment with tfswap from a wheel, and keep its outputs.

    python examples/run_notebook.py dist [--notebook examples/colab.ipynb] [--out FILE]

Installs the wheel (of a folder, the one for this Python), tensorflow-cpu and what runs notebooks.
The notebook's own installation, the cell with the tag "install", is left out. With `--here` instead
of a wheel, runs it in the environment of this Python, which needs nbclient and ipykernel.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

NOTEBOOK = Path(__file__).with_name("colab.ipynb")
REQUIREMENTS = ("tensorflow-cpu<2.22", "nbclient", "ipykernel")
CELL_TIMEOUT_S = 900


def run_here(path: Path, out: Path) -> None:
    """Execute the notebook in this environment, without its installation; write the result.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    sources = {cell.id: cell.source for cell in notebook.cells}
    for cell in notebook.cells:
        if "install" in cell.metadata.get("tags", ()):
            cell.source = ""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # where the notebook writes its files
        NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        cell.source = sources[cell.id]
        for output in [each for each in cell.get("outputs", ()) if each.get("name") == "stderr"]:
            print(output.text, file=sys.stderr, end="")  # what TensorFlow logs when it starts
            cell.outputs.remove(output)
    notebook.metadata.pop("language_info", None)  # which Python ran it
    nbformat.validate(notebook)
    nbformat.write(notebook, out)
    print(f"{path.name}: {time.monotonic() - began_s:.0f} s, {out.stat().st_size / 1e3:.0f} kB")


def wheel_of(path: Path) -> Path:
    """Return the wheel at a path: of a folder, the newest one for this Python."""
    if path.is_file():
        return path
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted(path.glob(f"tfswap-*-{tag}-*.whl"), key=lambda each: each.stat().st_mtime)
    if not wheels:
        raise SystemExit(f"There is no wheel of tfswap for {tag} in {path}.")
    return wheels[-1]


def main() -> None:
    """Run the notebook."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="a wheel, or a folder of wheels")
    parser.add_argument("--here", action="store_true", help="use the environment of this Python")
    parser.add_argument("--notebook", type=Path, default=NOTEBOOK, help="(examples/colab.ipynb)")
    parser.add_argument("--out", type=Path, help="the executed notebook (the notebook itself)")
    options = parser.parse_args()
    if (options.wheel is None) != options.here:
        parser.error("give a wheel, or --here")
    out = options.out or options.notebook
    if options.here:
        run_here(options.notebook, out)
        return
    wheel = wheel_of(options.wheel)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", wheel.resolve(), *REQUIREMENTS]
        subprocess.run(pip, check=True)
        run = [python, __file__, "--here", "--notebook", options.notebook, "--out", out]
        raise SystemExit(subprocess.run(run).returncode)


if __name__ == "__main__":
    main()
