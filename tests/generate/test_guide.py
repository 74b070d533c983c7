"""The guide to generation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_guide_runs():
    page = Path(__file__).parents[2] / "docs/how-to/generate.md"
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        exec(block, names)
    assert names["greedy"].shape == names["drawn"].shape == (2, 20) and len(names["texts"]) == 2
    assert names["prompt"].endswith("Output:") and names["guess"].shape == (1,)
