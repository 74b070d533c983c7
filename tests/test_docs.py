"""Documentation that cannot go stale unseen: links lead somewhere, code imports what exists, commands are commands."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

from sonde.core import registry
from sonde.core.errors import SondeError
from sonde.models.published import PUBLISHED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in inside if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_imports_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sonde":
                module = importlib.import_module(node.module)
                for alias in node.names:  # a name of the module, or a module below it that nobody has imported yet
                    below = importlib.util.find_spec(f"{node.module}.{alias.name}") if hasattr(module, "__path__") else None
                    assert hasattr(module, alias.name) or below, ast.unparse(node)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_commands(page: Path) -> None:
    """Every `sonde` line names a command that exists, and its recipe or lens if it names one."""
    for line in "\n".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["sonde"] or words[1:2] == ["--help"]:
            continue
        registry.check("cli.commands", words[1])
        if words[1] in ("train", "sweep", "explain") and re.fullmatch(r"[a-z]\w+", words[2]):
            known = {*registry.names("recipes"), *registry.names("models"), *registry.names("nn.mixers"), *PUBLISHED}
            assert words[2] in known, line
        if words[1] == "look" and len(words) > 3:
            registry.check("lenses", words[3])


def test_each_registry_has_a_guide() -> None:
    guides = {path.stem for path in (ROOT / "docs/how-to").glob("*.md")}
    assert guides >= {"add-a-recipe", "add-an-objective", "add-an-optimizer", "add-a-lens", "add-a-mixer", "add-an-exhibit"}


def test_exit_codes_are_told_as_they_are() -> None:
    text = (ROOT / "docs/run-directory.md").read_text()
    codes = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| [^|]+ \| `(\w+)` \|", text, re.M)}
    assert codes == {kind.__name__: kind.exit_code for kind in (SondeError, *SondeError.__subclasses__())}


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/add-a-recipe.md"])
def test_the_recipes_shown_train(page: str, tmp_path: Path) -> None:
    import sonde

    mine = tmp_path / "mine.py"
    mine.write_text(next(block for block in blocks(ROOT / page, "python") if "def recipe" in block))
    run = sonde.train(str(mine), run=tmp_path / "run", quiet=True, threads=1, width=64)
    assert run.result["metrics"]["test/accuracy"] > 0.9


def test_the_objective_lens_and_exhibit_shown_work(tmp_path: Path) -> None:
    objective = shown("add-an-objective", tmp_path).tiny()
    assert objective[0](*objective[1:]).loss().isfinite()
    lens = shown("add-a-lens", tmp_path)
    lens.check_applies = lambda *_, **__: None  # it looks the lens up in the registry, which does not have this one
    reading = lens.read(lens.tiny())
    assert 0 < reading.values["zeros"][0] < 1 and lens.why_not(lens.tiny()) == ""
    from sonde.atlas.exhibit import Exhibit

    exhibit = Exhibit(tmp_path)
    assert shown("add-an-exhibit", tmp_path).opt_06(exhibit) == "1 draw of each of 10 indices" and exhibit.findings[0].passed


def test_the_guide_to_mixers_runs_and_names_each_as_it_is() -> None:
    page = ROOT / "docs/how-to/mixers.md"
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, names)
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page.read_text(encoding="utf-8"), re.M)
    assert sorted(name for name, *_ in rows) == registry.names("nn.mixers")
    for name, kind, forms, state in rows:
        layer = names["mixer"](name, width=256)
        with names["record_recurrences"]() as watch, torch.no_grad():
            after = layer(torch.randn(1, 64, 256))[1]
        assert set(re.findall(r"\w+", forms.partition(";")[0])) - {"only"} == set(layer.forms()) - {"step"}, name
        assert {steps.kind for steps, _ in watch.seen} == set(re.findall("separable|hadamard|delta", kind)), name
        kept = sum(s.numel() * (1 + s.is_complex()) for key, s in after.items() if key not in ("length", "used"))
        assert kept == (0 if state == "none" else int(state.split()[0].replace(",", "")) * (64 if state.endswith("T") else 1)), name


def shown(guide: str, folder: Path):
    """The example of a guide, as a module."""
    path = folder / f"{guide.replace('-', '_')}.py"
    path.write_text(blocks(ROOT / f"docs/how-to/{guide}.md", "python")[0])
    return registry.load_file(path)
