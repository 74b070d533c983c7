"""A place for runs that are started and killed by the hundred, and the run they are all compared with."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.engine.harness")


@pytest.fixture(autouse=True)
def attempts_end() -> Iterator[None]:
    """A test that fails while a process of its own is under way ends it, so that no other test meets it."""
    yield
    from tests.engine.harness import Attempt

    for attempt in list(Attempt.running):
        attempt.send(signal.SIGKILL)
        attempt.wait()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: a sync costs nothing there, and a kill cannot tell the difference."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="sonde-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def reference() -> dict[str, str]:
    """What the uninterrupted trial ends with.  It runs here, so that forked attempts find everything imported and warm."""
    from tests.engine import harness

    return harness.reference()
