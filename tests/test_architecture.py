"""docs/architecture.md is what the code says, and the walk it shows is short."""

from __future__ import annotations

from tests import architecture


def test_the_page_and_its_picture_are_up_to_date():
    again = "write them again: python tests/architecture.py"
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture(), again
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), again


def test_every_folder_says_what_it_is():
    assert all(len(sentence) > 20 for sentence in architecture.rooms().values())


def test_no_folder_imports_one_below_it():
    names = list(architecture.rooms())
    assert all(names.index(other) < names.index(room) for room, others in architecture.imports().items() for other in others)


def test_the_walk_is_short():
    steps = architecture.walk()
    assert steps[0] == ("engine/trainer.py", "run") and steps[-1][0] == "core/terms.py"
    assert len(steps) <= 6 and len({file for file, _ in steps}) <= 4
    assert len([name for name in architecture.entered() if name not in architecture.LOGGING]) <= 14
