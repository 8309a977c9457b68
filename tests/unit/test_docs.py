"""The documentation against the sources: names, links and required pages."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^( *)(```+).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def defined_in(path: Path) -> set[str]:
    """Return the functions of a file, including those of classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def slug(heading: str) -> str:
    """Return the anchor that Python-Markdown gives a heading."""
    given = re.search(r"\{ *#([\w-]+) *\}\s*$", heading)
    if given:
        return given[1]
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def anchors(page: str) -> set[str]:
    text = _FENCED.sub("", text_of(page))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def test_every_named_test_exists() -> None:
    named = _TEST.findall(text_of("comparison.md"))
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or name not in defined_in(ROOT / file)
    ]
    assert not missing


def test_every_yes_names_a_test() -> None:
    rows = [line.split("|") for line in text_of("comparison.md").splitlines() if "|" in line]
    cells = [row[2].strip() for row in rows if len(row) > 10]
    claims = [cell for cell in cells if cell.startswith("yes")]
    assert len(claims) > 15
    assert [cell for cell in claims if not _TEST.search(cell)] == []
    allowed = ("yes", "no", "partial", "tfswap", "---")
    assert [cell for cell in cells if not cell.startswith(allowed)] == []


def test_every_page_is_in_the_menu_and_exists() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    menu = re.split(r"\n(?=\S)", menu)[0]
    assert sorted(re.findall(r": (\S+\.md)$", menu, re.MULTILINE)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_are_valid(page: str) -> None:
    for target in _LINK.findall(_FENCED.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (DOCS / page).parent / file if file else DOCS / page
        assert found.is_file(), target
        if anchor and found.suffix == ".md":  # the anchors of pictures select colors
            assert anchor in anchors(found.relative_to(DOCS).as_posix()), target


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_project_files_are_valid(page: str) -> None:
    targets = _LINK.findall(_FENCED.sub("", (ROOT / page).read_text(encoding="utf-8")))
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (ROOT / target.partition("#")[0]).is_file()] == []


def test_shown_examples_exist() -> None:
    shown = re.findall(r'--8<-- "([^"]+)"', text_of("examples.md"))
    assert len(shown) == 6
    assert [file for file in shown if not (ROOT / file).is_file()] == []


def test_the_notebook_is_valid_python_that_installs_and_imports_first() -> None:
    notebook = json.loads((ROOT / "examples" / "colab.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    install, *cells = (each for each in notebook["cells"] if each["cell_type"] == "code")
    assert "".join(install["source"]) == "%pip install -q tfswap"
    assert install["metadata"]["tags"] == ["install"]  # which run_notebook.py leaves out
    sources = ["".join(cell["source"]) for cell in cells]
    for source in sources:
        ast.parse(source)
    assert "import tfswap" in sources[0]
    assert sources[-1] == "swap.report"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []


def test_every_option_is_explained() -> None:
    tree = ast.parse((ROOT / "tfswap" / "auto_swap.py").read_text(encoding="utf-8"))
    (init,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    options = [each.arg for each in (*init.args.args, *init.args.kwonlyargs)][1:]
    assert "budget" in options and "log_dir" in options
    page = text_of("options.md")
    assert [name for name in options if not re.search(rf"\b{name}\b", page)] == []


def test_every_policy_and_command_is_explained() -> None:
    from tfswap.planning.planners import POLICIES

    policies = text_of("policies.md")
    names = {name.partition(":")[0] for name in POLICIES}
    assert sorted(name for name in names if f"`{name}" not in policies) == []
    api = text_of("api.md")
    for file in (ROOT / "tfswap" / "commands").glob("*.py"):
        if "def run(" not in file.read_text(encoding="utf-8"):
            continue
        section = api.partition(f"\n### tfswap {file.stem}\n")[2].partition("\n### ")[0]
        flags = re.findall(r'add_argument\(\s*"(--[\w-]+)"', file.read_text(encoding="utf-8"))
        assert [flag for flag in flags if f"`{flag}`" not in section] == [], file.stem
