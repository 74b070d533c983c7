"""The Python of the guide to images runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/how-to/images.md"


def test_the_blocks_run_one_after_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
    assert (tmp_path / "resnet18.safetensors").exists()
