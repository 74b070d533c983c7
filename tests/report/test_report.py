"""The page of a run and the comparison of several: complete, escaped, self-contained, whole or not at all."""

from __future__ import annotations

import base64
import html.parser
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sonde.core import files
from sonde.core.errors import NoCheckpoint, ResourceFault
from sonde.core.reading import Subject
from sonde.lenses.tools.tiny import METRICS, images, values
from sonde.report.page import Html, compare, compare_curves, compare_rows, report, tag

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[2J‮"


def a_run(path: Path, subject: Subject, **changes) -> SimpleNamespace:
    """What the report reads of a run, without training one."""
    path.mkdir(parents=True)
    metrics = [*METRICS, {"step": 12, "epoch": 3.0, "test/loss": 0.18, "test/nll": 0.18, "test/accuracy": 0.93}]
    data = SimpleNamespace(
        splits={"valid": subject.data.train}, report={"rows dropped": 3}, task=subject.data.task, classes=subject.data.classes
    )
    run = SimpleNamespace(
        path=path,
        name=path.name,
        info={
            "format": 2,
            "recipe": {"name": "tiny"},
            "options": {"lr": 0.01, "widths": [4, 5], "text": None},
            "seed": 3,
            "run_options": {"processes": 1},
            "versions": {"sonde": "0.1.0"},
            "machine": {"cores": 2},
            "data": {"valid": {"n": 23, "sha256": "cd" * 32}},
            "parameters": {"all": 239, "trainable": 239},
        },
        result={"status": "done", "steps": 12, "model_step": 12, "metrics": {"test/loss": 0.18, "test/nll": 0.18, "test/accuracy": 0.93}},
        metrics=metrics,
        events=[{"event": "start", "step": 0, "time": "2026-01-05T10:00:00+00:00"}]
        + [{"event": "checkpoint", "step": step, "time": "2026-01-05T10:00:01+00:00"} for step in (3, 6, 9)]
        + [{"event": "warning", "step": 9, "time": "2026-01-05T10:00:02+00:00", "text": "a slow disk"}],
        data=data,
        subject=lambda split, n: Subject(subject.model, subject.batch[:n], subject.objective, data, metrics, path.name),
    )
    vars(run).update(changes)
    return run


class Page(html.parser.HTMLParser):
    """Elements, attributes and text of a page, as a browser would take them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.inside: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, kind, attributes) -> None:
        self.kinds.append(kind)
        self.attributes += [(name, value or "") for name, value in attributes]
        if kind not in ("meta", "img", "source"):
            self.inside.append(kind)

    def handle_endtag(self, kind) -> None:
        assert self.inside.pop() == kind

    def handle_data(self, text) -> None:
        if self.inside[-1:] != ["style"]:
            self.words += text + "\n"


KNOWN = re.findall(
    r"\w+",
    "html head meta title style body main header section p h1 h2 h3 dl div dt dd figure figcaption picture source img "
    "table thead tbody tfoot tr th td ul li strong",
)


def check_page(path: Path) -> Page:
    """Balanced, only elements of ours, nothing from outside, no script."""
    page = Page(path)
    assert not page.inside and set(page.kinds) <= set(KNOWN)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "srcset", "href"):
            assert value.startswith(("data:image/svg+xml;base64,", "data:image/png;base64,"))
    text = path.read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" in text and "prefers-color-scheme: dark" in text and "@media print" in text
    assert "@import" not in text and "url(" not in text
    return page


def test_pictures_of_the_recipe_stand_in_the_page(tmp_path) -> None:
    run = a_run(tmp_path / "tiny-001", images())
    assert "Trained model" not in check_page(report(run)).words
    (run.path / "shown").mkdir()
    kept = {f"{name}.png": name.encode() * 5 for name in ("samples", "codes & more")}
    for name, data in kept.items():
        (run.path / "shown" / name).write_bytes(data)
    (run.path / "shown" / "notes.txt").write_text("no picture", encoding="utf-8")
    page = check_page(report(run))
    drawn = [value for name, value in page.attributes if name == "src" and value.startswith("data:image/png;base64,")]
    assert [base64.b64decode(value.partition(",")[2]) for value in drawn] == [kept["codes & more.png"], kept["samples.png"]]
    assert "Trained model" in page.words and ("alt", "codes & more") in page.attributes


def test_what_the_recipe_said_of_the_model_stands_before_what_happened(tmp_path) -> None:
    run = a_run(tmp_path / "tiny-001", images())
    run.events.append({"event": "IoU", "step": 12, "time": "2026-01-05T10:00:03+00:00", "text": "0.931 <b>(disc)</b>", "learned": True})
    words = check_page(report(run)).words
    assert words.index("Trained model") < words.index("0.931 <b>(disc)</b>") < words.index("Events")
    assert words.count("0.931") == 1 and words.count("IoU") == 1


def test_report_of_a_classifier_has_every_part(tmp_path) -> None:
    run = a_run(tmp_path / "tiny-001", images())
    path = report(run)
    assert path == tmp_path / "tiny-001" / "report.html"
    page = check_page(path)
    for words in (
        *("tiny-001", "Recipe tiny, seed 3, finished after 12 steps.", "93.00 %", "239", "Learning curves", "Loss", "Accuracy"),
        *("Learning rate", "Gradient norm", "Final model", "Over the run", "Confusion matrix", "Precision and recall", "Mistakes"),
        *(
            "Gradients by layer",
            "First-layer filters",
            "Cost of one example",
            "Conv2d",
            "8 × 6",
            "Recipe options",
            "Run options",
            "widths",
            "4, 5",
            "cores",
        ),
        *(
            "Versions",
            "0.1.0",
            "rows dropped",
            "cdcdcdcdcdcdcdcd",
            "a slow disk",
            "3 in a row; this is the last",
        ),
    ):
        assert words in page.words, words
    assert page.words.count("checkpoint\n") == 1
    sections = ("Learning curves", "Metrics", "Predictions", "Mistakes", "Gradients by layer", "First-layer filters", "Cost of one example")
    assert sorted(sections, key=page.words.index) == list(sections)
    drawn = sorted(entry.name for entry in (run.path / "figures").iterdir())
    assert drawn == sorted(
        f"{name}.png"
        for name in (
            "loss",
            "accuracy",
            "learning-rate",
            "gradient-norm",
            "confusion-matrix",
            "mistakes",
            "gradient-norms",
            "filters",
        )
    )


def test_report_of_a_regression(tmp_path) -> None:
    page = check_page(report(a_run(tmp_path / "r", values())))
    assert "Predicted against true" in page.words and "R² " in page.words and "confusion: the target is" in page.words


def test_report_of_a_run_without_checkpoint_still_shows_its_curves(tmp_path) -> None:
    def none(split, n):
        raise NoCheckpoint("no checkpoint yet", where="here", fix="train")

    run = a_run(tmp_path / "r", images(), result={})
    run.subject = none
    page = check_page(report(run))
    assert "not finished" in page.words and "So far" in page.words and "Learning curves" in page.words
    assert "model and its data: no checkpoint yet" in page.words and "Cost of one example" not in page.words


def test_report_of_a_run_without_anything(tmp_path) -> None:
    def broken():
        raise NoCheckpoint("its recipe is gone", where="here", fix="restore it")

    class Bare:
        path, name, info, result, metrics, events = tmp_path / "bare", "bare", {}, {}, [], []
        data = property(lambda self: broken())

    Bare.path.mkdir()
    page = check_page(report(Bare()))
    assert "No metrics yet." in page.words and "model and its data: its recipe is gone" in page.words


def test_nothing_in_a_run_becomes_markup(tmp_path) -> None:
    subject = images()
    subject.data = SimpleNamespace(train=subject.data.train, task="classes", classes=[HOSTILE + str(i) for i in range(5)])
    run = a_run(tmp_path / "run", subject)
    run.name = HOSTILE
    run.info = {
        **run.info,
        "recipe": {"name": HOSTILE},
        "options": {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        "machine": {HOSTILE: HOSTILE},
        "data": {HOSTILE: {"n": HOSTILE, "sha256": HOSTILE}},
        "about_data": {"name": HOSTILE, "report": {HOSTILE: HOSTILE}},
    }
    run.result = {"status": "done", "steps": HOSTILE, "metrics": {f"test/{HOSTILE}": 1.0, "valid/accuracy": HOSTILE}}
    run.metrics = [*run.metrics, {"step": 13, f"valid/{HOSTILE}": 1.0, HOSTILE: 2.0}, {"step": 14, f"valid/{HOSTILE}": 1.5, HOSTILE: 3.0}]
    run.events = [{"event": HOSTILE, "step": HOSTILE, "time": HOSTILE, "text": HOSTILE}, {HOSTILE: HOSTILE}]
    text = check_page(report(run)).words
    assert "<script>alert(1)</script>" in text  # shown to the reader as it was written
    assert all(entry.parent == run.path / "figures" for entry in (run.path / "figures").rglob("*"))
    other = a_run(tmp_path / "other", images())
    assert "<script>alert(1)</script>" in check_page(compare([run, other], tmp_path / "c.html")).words


def test_tag_escapes_what_is_not_markup() -> None:
    assert tag("p", "<b>", Html("<i></i>"), 3, class_='"x') == '<p class="&quot;x">&lt;b&gt;<i></i>3</p>'


def test_report_is_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    run = a_run(tmp_path / "run", values())
    first = report(run).read_bytes()

    class Full(files.Disk):
        """No room for the files whose name has a certain part."""

        def __init__(self, part: str) -> None:
            self.part = part

        def create(self, path):
            if self.part in path.name:
                raise OSError(28, "No space left on device")
            return super().create(path)

    for part in ("report.html", ".png"):
        monkeypatch.setattr(files, "disk", Full(part))
        with pytest.raises(ResourceFault, match="No space left on device"):
            report(run)
    assert (run.path / "report.html").read_bytes() == first
    assert not [entry for entry in run.path.rglob(".tmp-*")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_fault_with_advice(tmp_path) -> None:
    run = a_run(tmp_path / "run", values())
    run.path.chmod(0o500)
    with pytest.raises(ResourceFault, match="cannot be written"):
        report(run)


def test_compare_tells_differences_only(tmp_path) -> None:
    one, two = a_run(tmp_path / "a" / "tiny-001", images()), a_run(tmp_path / "b" / "tiny-001", images())
    two.info = json.loads(json.dumps(two.info)) | {"seed": 4}
    two.info["options"]["lr"] = 0.1
    two.result = {**two.result, "metrics": {"test/loss": 0.3, "test/nll": 0.3, "test/accuracy": 0.95, "valid/f1": 0.5}}
    rows = compare_rows([one, two])
    assert [list(row) for row in rows] == [["run", "lr", "seed", "test/loss", "test/accuracy", "valid/f1"]] * 2
    assert [list(row.values()) for row in rows] == [
        [str(one.path), 0.01, 3, 0.18, 0.93, None],
        [str(two.path), 0.1, 4, 0.3, 0.95, 0.5],
    ]
    path = compare([one, two], tmp_path / "out" / "compare.html")
    text = path.read_text(encoding="utf-8")
    assert "<strong>0.18</strong>" in text and "<strong>95.00 %</strong>" in text and "<strong>0.3</strong>" not in text
    check_page(path)
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert [panel.title for panel in compare_curves([one, two])] == [
        "Valid loss",
        "Valid accuracy",
        "Train loss",
        "Gradient norm",
        "Learning rate",
    ]


def test_compare_of_runs_without_rows(tmp_path) -> None:
    empty = [a_run(tmp_path / name, values(), metrics=[], result={}) for name in ("a", "b")]
    page = check_page(compare(empty, tmp_path / "c.html"))
    assert "2 runs side by side" in page.words and compare_rows(empty) == [{"run": "a"}, {"run": "b"}]


def test_report_changes_no_random_state(tmp_path) -> None:
    before = torch.get_rng_state()
    report(a_run(tmp_path / "run", images()))
    assert torch.equal(before, torch.get_rng_state())


def test_report_of_a_real_run(tmp_path) -> None:
    import sonde

    run = sonde.train("wine", run=tmp_path / "wine-001", quiet=True, epochs=2)
    page = check_page(run.report())
    for words in (
        "wine-001",
        "Recipe wine, data wine",
        "Learning curves",
        "Confusion matrix",
        "Gradients by layer",
        "Cost of one example",
        "start",
    ):
        assert words in page.words, words
    assert (run.path / "figures" / "confusion-matrix.png").is_file()
