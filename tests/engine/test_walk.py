"""The walk from the training loop to `backward()` is short enough to read: at most four files and six frames."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sonde
from sonde.core import terms
from tests.engine.small import line

PACKAGE = Path(sonde.__file__).parent


def frames_below(name: str) -> list[tuple[str, str]]:
    """(file, function) of the frames of the package between a function and here, outermost first."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            frames.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))
            if frame.f_code.co_name == name:
                return frames[::-1]
        frame = frame.f_back
    return []


@pytest.mark.parametrize("shards", [1, 2])
def test_from_the_loop_to_backward(tmp_path, monkeypatch, shards):
    walks = []
    real = terms._run_backward

    def watched(*args):
        walks.append(frames_below("run"))
        return real(*args)

    monkeypatch.setattr(terms, "_run_backward", watched)
    sonde.train(line(steps=3), run=tmp_path / "run", quiet=True, threads=1, shards=shards)
    walk = walks[0]
    assert walk[0] == ("engine/trainer.py", "run") and walk[-1] == ("core/terms.py", "backward")
    # `_run_backward` itself is one frame more.
    assert len(walk) + 1 <= 6 and len({file for file, _ in walk}) <= 4, walk
