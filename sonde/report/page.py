"""HTML pages: report.html of a run, and the comparison of several runs.  No external resource, no script, prints well.

All markup is made by `tag`, which escapes its arguments, so no text of a run can become HTML.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import ResourceFault, SondeError, clean
from ..core.files import replace_file
from ..core.metrics import direction
from ..core.numbers import format_cell, number, percent
from ..core.reading import Reading, Subject
from ..lenses.curves import TRAINING_METRICS, CurvePoints, panel, series, without_copies
from .draw import draw, short, svg

MAX_EXAMPLES = 10_000
MAX_EVENTS = 60
WIDE_FIGURE = 560
SHOWN = "shown"
"""folder of a run with the pictures that its recipe drew; the page shows all of them"""


class Html(str):
    """Text that is markup already."""


def tag(kind: str, /, *inside: Any, **attributes: Any) -> Html:
    """<kind>inside</kind>; arguments that are not Html are escaped.  `class_` means class, `http_equiv` http-equiv."""
    attrs = "".join(f' {key.rstrip("_").replace("_", "-")}="{_escape(value)}"' for key, value in attributes.items() if value)
    if kind in ("meta", "img", "source"):
        return Html(f"<{kind}{attrs}>")
    return Html(f"<{kind}{attrs}>{_join(inside)}</{kind}>")


def _join(parts: Iterable[Any]) -> Html:
    return Html("".join(part if isinstance(part, Html) else _escape(part) for part in parts))


def _escape(value: Any) -> str:
    """Text that is safe in an element and in a quoted attribute; control characters and direction marks are made visible."""
    return html.escape(clean(value), quote=True)


# The report of one run


def report(run: Any) -> Path:
    """Write report.html into the run directory and its pictures into figures/; returns the path of the page."""
    figures, lenses, info = _Figures(run.path / "figures"), _Lenses(run), run.info
    sections = [
        *_results(run, lenses, figures),
        _section("Configuration", _pairs("Recipe options", info.get("options", {})), _pairs("Run options", _run_settings(info)), grid=True),
        _section("Data", *_data(info, lenses), grid=True),
        _section("Environment", _pairs("Machine", info.get("machine", {})), _pairs("Versions", info.get("versions", {})), grid=True),
        _section("Events", _events(run.events)),
        _section("Not shown", tag("ul", *(tag("li", reason) for reason in lenses.refused))) if lenses.refused else "",
    ]
    head = tag("header", tag("p", "Sonde run", class_="kicker"), tag("h1", run.name), tag("p", _lead(info, run.result), class_="lead"))
    page = _page(f"{run.name} · Sonde", head, _tiles(run), *sections)
    return _write(run.path / "report.html", page)


def _results(run: Any, lenses: _Lenses, figures: _Figures) -> list[Html]:
    """Final metrics, what the recipe reported, and every lens that declares `REPORT`, in the order of their positions.

    A lens declares {"position": 30}, and optionally "section", a heading that several readings share side by side, and
    "examples", how many to give it at most.  Without a section each of its readings has its own, under the reading's title.
    """
    blocks = [(20, "Metrics", _final(run)), *((25, "Trained model", block) for block in _recipe_results(run))]
    shared = {"Metrics"}
    for lens in registry.names("lenses"):
        declared = registry.constant("lenses", lens, "REPORT")
        for reading in lenses.read(lens, declared.get("examples")) if declared else ():
            heading = declared.get("section")
            block = figures.add(_slug(reading.title) if heading else lens, reading, titled=bool(heading))
            blocks.append((declared["position"], heading or reading.title, block))
            shared |= {heading} - {None}
    blocks.sort(key=lambda block: block[0])
    headings = dict.fromkeys(heading for _, heading, _ in blocks)
    return [_section(one, *(block for _, heading, block in blocks if heading == one), grid=one in shared) for one in headings]


class _Lenses:
    """Reads a run through lenses and remembers why one does not apply."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.refused: list[str] = []
        self.metrics = Subject(None, None, metrics=run.metrics, name=run.name)
        """enough for lenses of the learning curves, which then also work for a run without a checkpoint"""
        self.subject: Subject | None = None
        try:
            splits = run.data.splits
            split = next((name for name in ("test", "valid", "train") if name in splits and len(splits[name])), "train")
            self.subject = run.subject(split, MAX_EXAMPLES)
        except SondeError as error:
            self.refused.append(f"lenses that need the model and its data: {error.what}")

    def read(self, lens: str, examples: int | None = None) -> list[Reading]:
        module = registry.load("lenses", lens)
        try:
            subject = self.subject if module.why_not(self.metrics) else self.metrics
            if subject is None:
                return []
            if examples is not None:
                subject = replace(subject, batch=subject.batch[:examples])
            reason = module.why_not(subject)
            if reason:
                self.refused.append(f"{lens}: {reason}")
                return []
            readings = module.read(subject)
        except SondeError as error:
            self.refused.append(f"{lens}: {error.what}")
            return []
        return readings if isinstance(readings, list) else [readings]


class _Figures:
    """Pictures of a page: each is saved as PNG in a folder and embedded in the page as SVG, light and dark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _disk_error(folder, error) from error

    def add(self, name: str, reading: Reading, titled: bool = True) -> Html:
        if reading.kind == "table":
            return _card(reading, titled)
        try:
            draw(reading, self.folder / f"{_slug(name)}.png")
        except OSError as error:
            raise _disk_error(self.folder, error) from error
        drawn = any(len(values) for values in reading.values.values())
        return tag("figure", tag("h3", reading.title) if titled else "", _picture(reading) if drawn else "", _note(reading))


def _picture(reading: Reading) -> Html:
    light, dark = svg(reading)
    size = re.search(rb'<svg[^>]*? width="([0-9.]+)pt"', light.replace(b"\n", b" "))
    width = round(float(size.group(1)) * 96 / 72) if size else 0
    alt = f"{reading.title}. {reading.note}"
    picture = tag(
        "picture",
        tag("source", media="screen and (prefers-color-scheme: dark)", srcset=_uri(dark)),
        tag("img", src=_uri(light), alt=alt, width=width, style=f"min-width:{WIDE_FIGURE}px" if width > WIDE_FIGURE else ""),
    )
    return tag("div", picture, class_="scroll")


def _recipe_results(run: Any) -> list[Html]:
    """What the recipe reported about the trained model, and the PNGs it drew, which contain their titles and notes."""
    texts = {event["event"]: event.get("text", "") for event in run.events if event.get("learned")}
    drawn = sorted((run.path / SHOWN).glob("*.png"))
    pictures = [tag("figure", tag("img", src=_uri(path.read_bytes(), "png"), alt=path.stem)) for path in drawn]
    return ([tag("figure", _table(("", ""), list(texts.items()), (False, False)), class_="pairs texts")] if texts else []) + pictures


def _uri(data: bytes, kind: str = "svg+xml") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


def _card(reading: Any, titled: bool = True) -> Html:
    """A reading of kind 'table' as an HTML table."""
    formats, total = reading.formats, reading.total
    right = {name: not any(isinstance(cell, str) for cell in column) for name, column in reading.values.items()}
    columns = {name: [format_cell(cell, formats.get(name, "")) for cell in column] for name, column in reading.values.items()}
    foot = [format_cell(total[name], formats.get(name, "")) if name in total else "" for name in columns] if total else []
    if foot:
        foot[0] = foot[0] or "total"
    body = _table(list(columns), list(zip(*columns.values(), strict=False)), [right[name] for name in columns], foot)
    return tag("figure", tag("h3", reading.title) if titled else "", body, _note(reading))


def _note(reading: Reading) -> Html:
    return tag("figcaption", reading.note) if reading.note else Html("")


def _table(heads: Sequence[Any], rows: Sequence[Sequence[Any]], right: Sequence[bool], foot: Sequence[Any] = ()) -> Html:
    def line(kind: str, cells: Sequence[Any]) -> Html:
        return tag("tr", *(tag(kind, cell, class_="n" if to_right else "") for cell, to_right in zip(cells, right, strict=False)))

    parts = [tag("thead", line("th", heads)), tag("tbody", *(line("td", row) for row in rows))]
    if foot:
        parts.append(tag("tfoot", line("td", foot)))
    return tag("div", tag("table", *parts), class_="scroll")


def _pairs(title: str, values: Mapping[str, Any]) -> Html:
    """Names and values in two columns."""
    rows = [(name, _to_text(value)) for name, value in values.items()] if isinstance(values, Mapping) else []
    return tag(
        "figure", tag("h3", title), _table(("", ""), rows, (False, False)) if rows else tag("p", "none", class_="muted"), class_="pairs"
    )


def _to_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_to_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_to_text, value))
    return f"{value:g}" if isinstance(value, float) else number(value) if isinstance(value, int) else "-" if value is None else str(value)


def _lead(info: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    recipe, about = info.get("recipe", {}), info.get("about_data", {})
    name = recipe.get("name") or Path(str(recipe.get("file") or recipe.get("object") or "a recipe")).name
    parts = [f"Recipe {name}"] + ([f"data {about['name']}"] if about.get("name") else []) + [f"seed {info.get('seed', '-')}"]
    if result.get("status") == "done":
        parts.append(f"finished after {number(result.get('steps'))} steps")
        if result.get("model_step") not in (None, result.get("steps")):
            parts.append(f"weights of step {number(result['model_step'])}")
    else:
        parts.append("not finished")
    return ", ".join(parts) + "."


def _tiles(run: Any) -> Html:
    """The most important numbers, at the top of the page."""
    metrics = final_metrics(run)
    keys = [key for split in ("test", "valid") for key in metrics if key.startswith(f"{split}/")]
    keys.sort(key=lambda key: (not key.startswith("test/"), direction(key) != "max"))
    tiles = [(key.replace("/", " "), _format_metric(key, metrics[key])) for key in keys[:4]]
    count = run.info.get("parameters")
    count = count.get("all") if isinstance(count, Mapping) else count
    if isinstance(count, int):
        tiles.append(("parameters", number(count)))
    steps = run.result.get("steps") or max((row["step"] for row in run.metrics if isinstance(row.get("step"), int)), default=0)
    tiles.append(("steps", number(steps)))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in tiles), class_="tiles")


def _format_metric(key: str, value: Any) -> str:
    return percent(value) if key.rpartition("/")[2] == "accuracy" and isinstance(value, (int, float)) else number(value)


def final_metrics(run: Any) -> dict[str, float | None]:
    """Metrics of the final model; of an unfinished run, the latest value of each."""
    done = run.result.get("metrics")
    if isinstance(done, Mapping):
        return without_copies(done)
    return without_copies({name: line[1][-1] for name, line in series(run.metrics).items() if "/" in name})


def _final(run: Any) -> Html:
    """Metrics of the final model: one row per metric, one column per split."""
    metrics = final_metrics(run)
    if not metrics:
        return tag("p", "No metrics yet.", class_="muted")
    splits = list(dict.fromkeys(key.rpartition("/")[0] for key in metrics))
    names = list(dict.fromkeys(key.rpartition("/")[2] for key in metrics))
    rows = [(name, *(_format_metric(name, metrics.get(f"{split}/{name}" if split else name)) for split in splits)) for name in names]
    title = "Final model" if run.result.get("status") == "done" else "So far"
    return tag("figure", tag("h3", title), _table(("", *splits), rows, (False, *[True] * len(splits))))


def _run_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    options = info.get("run_options", {})
    return {"seed": info.get("seed"), **(options if isinstance(options, Mapping) else {})}


def _data(info: Mapping[str, Any], lenses: _Lenses) -> tuple[Html, Html]:
    parts = dict(sorted(info.get("data", {}).items(), key=lambda pair: ("train", "valid", "test", pair[0]).index(pair[0])))
    rows = [(name, number(part.get("n")), str(part.get("sha256", ""))[:16]) for name, part in parts.items() if isinstance(part, Mapping)]
    counts = info.get("about_data", {}).get("report")
    if counts is None and lenses.subject is not None:
        counts = dict(lenses.run.data.report)
    splits = tag("figure", tag("h3", "Splits"), _table(("split", "examples", "sha256"), rows, (False, True, False)))
    return splits, _pairs("Counts of data cleaning", counts or {})


def _events(events: Sequence[Mapping[str, Any]]) -> Html:
    """Events as a table; consecutive checkpoints become one row."""
    rows: list[tuple[Any, ...]] = []
    saved = 0
    for event in events:
        if event.get("learned"):  # already shown under "Trained model"
            continue
        kind = event.get("event", "")
        saved = saved + 1 if kind == "checkpoint" else 0
        more = {name: value for name, value in event.items() if name not in ("event", "step", "time", "text")}
        words = f"{saved:,} in a row; this is the last" if saved > 1 else event.get("text") or _to_text(more)
        if saved > 1:
            rows.pop()
        rows.append((str(event.get("time", "")).replace("T", " "), number(event.get("step")), kind, words))
    if not rows:
        return tag("p", "No events.", class_="muted")
    left_out = f"{len(rows) - MAX_EVENTS:,} older events are left out." if len(rows) > MAX_EVENTS else ""
    body = _table(("time", "step", "event", ""), rows[-MAX_EVENTS:], (False, True, False, False))
    return tag("figure", body, tag("figcaption", left_out) if left_out else "")


# Several runs side by side


def compare(runs: Sequence[Any], path: str | Path) -> Path:
    """Write a page with overlaid curves and a table of differing options and final metrics, and a PNG of the curves beside it."""
    path = Path(path)
    panels = compare_curves(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if panels:
            draw(panels, path.with_suffix(".png"))
    except OSError as error:
        raise _disk_error(path, error) from error
    figures = [tag("figure", tag("h3", each.title), _picture(each), _note(each)) for each in panels]
    head = tag("header", tag("p", "Sonde comparison", class_="kicker"), tag("h1", f"{len(runs)} runs side by side"))
    page = _page(
        "Comparison · Sonde",
        head,
        _section("Metrics and differing options", _side_by_side(compare_rows(runs))),
        _section("Curves", *figures, grid=True) if figures else "",
    )
    return _write(path, page)


def compare_curves(runs: Sequence[Any]) -> list[Reading]:
    """One panel per metric with one line per run; validation first."""
    curves: dict[str, dict[str, CurvePoints]] = {}
    for name, run in _name_runs(runs).items():
        for key, line in without_copies(series(run.metrics)).items():
            if len(line[0]) > 1:
                curves.setdefault(key, {})[name] = line
    keys = sorted(curves, key=lambda key: (key in TRAINING_METRICS, "/" not in key, key.rpartition("/")[2] != "loss", key))
    colors = {name: index for index, name in enumerate(_name_runs(runs))}
    return [panel(key if "/" in key or key in TRAINING_METRICS else f"train/{key}", curves[key], colors) for key in keys]


def compare_rows(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """One row per run: its name, the options (and recipe, seed) that differ, and the final metrics of all runs."""
    named = _name_runs(runs)
    options = {name: _settings(run.info) for name, run in named.items()}
    every = list(dict.fromkeys(key for settings in options.values() for key in settings))
    differing = [key for key in every if len({repr(settings.get(key)) for settings in options.values()}) > 1]
    metrics = {name: final_metrics(run) for name, run in named.items()}
    keys = list(dict.fromkeys(key for mine in metrics.values() for key in mine))
    return [
        {"run": name, **{key: options[name].get(key) for key in differing}, **{key: metrics[name].get(key) for key in keys}}
        for name in named
    ]


def _settings(info: Mapping[str, Any]) -> dict[str, Any]:
    recipe = info.get("recipe", {})
    name = recipe.get("name") or recipe.get("file") or recipe.get("object")
    return {"recipe": name, **info.get("options", {}), "seed": info.get("seed")}


def _name_runs(runs: Sequence[Any]) -> dict[str, Any]:
    """Runs by unique names: the directory name, or the whole path where two runs share it."""
    names = [run.name for run in runs]
    own = [name if names.count(name) == 1 else str(run.path) for name, run in zip(names, runs, strict=True)]
    return {name if own.count(name) == 1 else f"{name} ({index + 1})": run for index, (name, run) in enumerate(zip(own, runs, strict=True))}


def _side_by_side(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Runs as rows; the best value of each metric is bold."""
    heads = list(rows[0]) if rows else []
    best: dict[str, float] = {}
    for head in heads:
        values = [row[head] for row in rows if isinstance(row[head], (int, float)) and not isinstance(row[head], bool)]
        if "/" in head and direction(head) is not None and len(values) > 1 and min(values) < max(values):
            best[head] = max(values) if direction(head) == "max" else min(values)

    def cell(head: str, value: Any) -> Any:
        text = short(_to_text(value), 60) if "/" not in head else _format_metric(head, value)
        return tag("strong", text) if head in best and value == best[head] else text

    right = [head != "run" and all(row[head] is None or isinstance(row[head], (int, float)) for row in rows) for head in heads]
    return _table([head.replace("/", " ") for head in heads], [[cell(head, row[head]) for head in heads] for row in rows], right)


# The page


def _section(title: str, *inside: Any, grid: bool = False) -> Html:
    return tag("section", tag("h2", title), *([tag("div", *inside, class_="grid")] if grid else inside))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "figure"


def _page(title: str, *body: Any) -> Html:
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    return Html("<!doctype html>\n" + tag("html", head, tag("body", tag("main", *body)), lang="en") + "\n")


def _write(path: Path, page: Html) -> Path:
    try:
        replace_file(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise _disk_error(path, error) from error
    return path


def _disk_error(path: Path, error: OSError) -> ResourceFault:
    return ResourceFault(
        f"{path.name} cannot be written: {error.strerror or error}",
        where=str(path.parent),
        last_good="the run itself is unchanged",
        fix="free some disk space or change the permissions",
    )


STYLE = """
:root { --paper:#fff; --ink:#1c2430; --muted:#667080; --rule:#e3e7ec; --soft:#f6f8fa; --accent:#0b6bb0 }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper:#14181d; --ink:#e6eaef; --muted:#98a3b1; --rule:#2b323a; --soft:#1b2027; --accent:#5ab0ee }
}
* { box-sizing:border-box }
html { -webkit-text-size-adjust:100% }
body { margin:0; background:var(--paper); color:var(--ink); 
  font:15px/1.55 Inter,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif }
main { max-width:1040px; margin:0 auto; padding:44px 28px 72px }
header { margin-bottom:26px }
h1 { font-size:31px; line-height:1.2; letter-spacing:-.02em; margin:2px 0 6px; overflow-wrap:anywhere }
h2 { font-size:19px; letter-spacing:-.01em; margin:0 0 16px }
h3 { font-size:14px; font-weight:600; margin:0 0 6px }
p { margin:0 }
.kicker { color:var(--accent); font-size:12px; font-weight:600; letter-spacing:.08em; text-transform:uppercase }
.lead, .muted, figcaption { color:var(--muted) }
section { margin-top:40px; padding-top:22px; border-top:1px solid var(--rule) }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(132px,1fr)); gap:12px; margin:0 }
.tiles div { background:var(--soft); border-radius:10px; padding:13px 16px 14px }
.tiles dt { color:var(--muted); font-size:12.5px }
.tiles dd { margin:1px 0 0; font-size:23px; font-weight:600; letter-spacing:-.02em; font-variant-numeric:tabular-nums; white-space:nowrap }
.grid { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr)); gap:26px 36px; align-items:start }
figure { margin:0 0 22px; min-width:0 }
.grid figure { margin:0 }
figcaption { font-size:13px; margin-top:7px; max-width:74ch }
.scroll { overflow-x:auto }
img { display:block; max-width:100%; height:auto }
table { border-collapse:collapse; font-size:13.5px; font-variant-numeric:tabular-nums; min-width:min(100%,300px) }
th, td { text-align:left; padding:5px 22px 5px 0; white-space:nowrap; vertical-align:top }
th:last-child, td:last-child { padding-right:4px }
th { color:var(--muted); font-weight:500; font-size:12.5px; border-bottom:1px solid var(--muted) }
td { border-bottom:1px solid var(--rule) }
tbody tr:last-child td { border-bottom:0 }
tfoot td { border-top:1px solid var(--muted); border-bottom:0; font-weight:600 }
.n { text-align:right }
.pairs table { width:100% }
.pairs thead { display:none }
.pairs td { white-space:normal; overflow-wrap:anywhere }
.pairs td:first-child { color:var(--muted); width:42% }
.texts td { white-space:pre-wrap }
.texts td:first-child { width:16% }
ul { margin:0; padding-left:18px; color:var(--muted); font-size:13.5px }
@media (max-width:560px) { main { padding:26px 16px 48px } h1 { font-size:25px } .tiles dd { font-size:20px } }
@media print {
  main { max-width:none; padding:0 }
  section, figure, .tiles div { break-inside:avoid }
  .scroll { overflow:visible }
  img { min-width:0 !important }
}
"""
