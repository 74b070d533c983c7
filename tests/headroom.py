"""A pytest plugin that measures how close each test comes to its bounds: which tests could fail on another processor?

    SONDE_HEADROOM=headroom.jsonl python -m pytest -p tests.headroom -o enable_assertion_pass_hook=true tests

appends one line of JSON for each test that is not in the file yet: `shares`, for each kind of comparison the largest
fraction of its tolerance that was used (1 is the limit), and `digest`, a checksum of the floating-point numbers compared.
A test with the same digest on two processors does not depend on the processor.

Kinds: `close` (allclose, assert_close, approx), `bits` (floats that must be equal), `bound` (`<` or `>` in an assertion or
an exhibit), `unread` (a comparison of floats that cannot be parsed, such as one inside `all(...)`).

pytest caches compiled tests; set PYTHONPYCACHEPREFIX to a new folder, or tests compiled without the hook are used.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import operator
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import sensitive

ApproxScalar: Any = type(pytest.approx(1.0))
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
CHECKERS = ("torch/autograd/gradcheck.py", "sklearn/utils/_testing.py", "sklearn/utils/estimator_checks.py")
CLOCK = r"\btime\b|monotonic|perf_counter|deadline|seconds|elapsed"
"""a comparison of times depends on the load of the machine, not on its arithmetic"""
TOLERANCE = 1e-2
"""an upper bound that is not larger than this is a tolerance"""
SIGNS = {ast.Lt: "<", ast.LtE: "<", ast.Gt: ">", ast.GtE: ">"}


class Record:
    """Measurements of the comparisons of one test."""

    def __init__(self) -> None:
        self.fractions: dict[str, float] = {}
        self.locations: dict[str, str] = {}
        self.digest, self.started = 0, cpu_seconds()

    def add(self, kind: str, fraction: float, values: Any, location: str) -> None:
        """Record a comparison: the used fraction of its tolerance, the values compared, and where it is."""
        fraction = float(fraction) if math.isfinite(fraction) else 1e9
        if fraction >= self.fractions.get(kind, 0.0):
            self.fractions[kind], self.locations[kind] = fraction, location[:160]
        for value in values:
            self.digest = zlib.crc32(np.ascontiguousarray(value).tobytes(), self.digest)

    def line(self, test: str, outcome: str, seconds: float | None = None) -> str:
        """One line of JSON, with the hash of the source of the test."""
        body = {
            "test": test,
            "key": sensitive.key(sensitive.split(test)[0]),
            "shares": {kind: round(fraction, 6) for kind, fraction in self.fractions.items()},
            "digest": self.digest,
            "seconds": round(cpu_seconds() - self.started if seconds is None else seconds, 3),
            "outcome": outcome,
            "places": self.locations,
        }
        return json.dumps(body) + "\n"


def cpu_seconds() -> float:
    """Processor time of this process and its children; unlike wall-clock time, it does not depend on other processes."""
    return sum(os.times()[:4])


current = Record()
"""record of the test that is running"""
folder, process = "", os.getpid()
"""folder of the tests, and the process that runs them"""


def caller() -> str:
    """File and line, `test_x.py:12`, of the call of the wrapped function, if it is in a test or in a library's checks; else empty."""
    frame = sys._getframe(2)
    name = frame.f_code.co_filename
    return f"{Path(name).name}:{frame.f_lineno}" if name.startswith(folder) or name.endswith(CHECKERS) else ""


def array(value: Any) -> np.ndarray | None:
    """The value as an array of floating-point or complex numbers, else None."""
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().resolve_conj().resolve_neg().to_dense() if value.layout != torch.strided else value.detach()
            value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
        value = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    return value if value.dtype.kind in "fc" else None


def pairs(actual: Any, expected: Any) -> Iterator[tuple[np.ndarray, np.ndarray, Any, Any]]:
    """Arrays of floats at the same position of two nested structures, each with the original objects."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        for name in (name for name in actual if name in expected):
            yield from pairs(actual[name], expected[name])
    elif isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)) and len(actual) == len(expected):
        for one, other in zip(actual, expected):
            yield from pairs(one, other)
    else:
        have, want = array(actual), array(expected)
        if have is None and want is not None:
            have = np.asarray(actual.detach() if isinstance(actual, torch.Tensor) else actual)
        elif want is None and have is not None:
            want = np.asarray(expected.detach() if isinstance(expected, torch.Tensor) else expected)
        if have is not None and want is not None:
            yield have, want, actual, expected


def used_fraction(have: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> float:
    """Largest difference as a fraction of the tolerance atol + rtol * |want|; 0 where both are equal."""
    try:
        have, want = np.broadcast_arrays(have, want)
        with np.errstate(all="ignore"):
            gap, tolerance = np.abs(have - want), atol + rtol * np.abs(want)
            fraction = np.where((have == want) | (np.isnan(have) & np.isnan(want)), 0.0, gap / tolerance)
        return float(np.max(fraction, initial=0.0))
    except (TypeError, ValueError):
        return math.inf


def watch_close(module: Any, name: str, defaults: Callable[[Any, Any], tuple[float, float]]) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def compare(actual: Any, expected: Any, *rest: Any, rtol: Any = None, atol: Any = None, **named: Any) -> Any:
        location = caller()
        if location:
            for have, want, one, other in pairs(actual, expected):
                default = defaults(one, other)
                tolerances = (rest[0] if rest else rtol), (rest[1] if len(rest) > 1 else atol)
                r, a = (float(default[i] if part is None else part) for i, part in enumerate(tolerances))
                current.add("close" if r or a else "bits", used_fraction(have, want, r, a), [have], location)
        named = {**named, **{key: value for key, value in (("rtol", rtol), ("atol", atol)) if value is not None}}
        return original(actual, expected, *rest, **named)

    setattr(module, name, compare)


def watch_equal(module: Any, name: str) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def compare(actual: Any, expected: Any, *rest: Any, **named: Any) -> Any:
        location = caller()
        if location:
            for have, _, _, _ in pairs(actual, expected):
                current.add("bits", 0.0, [have], location)
        return original(actual, expected, *rest, **named)

    setattr(module, name, compare)


def watch_approx() -> None:
    original = ApproxScalar.__eq__

    def compare(self: Any, actual: Any) -> bool:
        if isinstance(actual, (float, np.floating)) and isinstance(self.expected, (float, int, np.number)):
            tolerance = self.tolerance
            gap = abs(float(actual) - float(self.expected))
            current.add("close", (gap / tolerance if tolerance else math.inf) if gap else 0.0, [float(actual)], "approx")
        return original(self, actual)

    ApproxScalar.__eq__ = compare


def watch_exhibits() -> None:
    """Record the expectations of exhibits, which store what they measured."""
    from sonde.atlas.exhibit import Exhibit

    original = Exhibit._record

    def record(self: Any, *parts: Any, **named: Any) -> None:
        original(self, *parts, **named)
        add_finding(current, self.findings[-1])

    Exhibit._record = record


def add_finding(record: Record, finding: Any) -> None:
    """Add the outcome of an expectation of an exhibit as a comparison."""
    values = list(finding.values)
    if not values or not all(map(math.isfinite, values)):
        return  # NaN and infinity do not come from rounding
    if finding.rule == "within":
        kind, fraction = ("close", max(map(abs, values)) / finding.bound) if finding.bound else ("bits", 0.0)
    else:
        measured = sum(values) / len(values) if finding.rule.startswith("mean") else min(values) if finding.rule != "below" else max(values)
        kind, fraction = "bound", closeness(measured, "<" if finding.rule.endswith("below") else ">", finding.bound)
    record.add(kind, fraction, [np.array(values, dtype=float)], f"{finding.name}: {finding.measured}, expected {finding.expected}")


def closeness(value: float, sign: str, limit: float) -> float:
    """How close a value is to a limit that it satisfies: 1 at the limit, 0.5 where it is twice or half the limit.

    For values between 0 and 1 the distance from 1 counts too: 0.9999 is far above a limit of 0.99.
    """
    small, large = (value, limit) if sign == "<" else (limit, value)
    if math.isnan(small) or math.isnan(large):
        return math.inf
    if small * large <= 0:  # zero or opposite signs: the distance relative to the limit (or to 1)
        return 1 / (1 + abs(large - small) / (abs(limit) or 1.0))
    if 0 < small <= large < 1:
        return min(small / large, (1 - large) / (1 - small))
    return small / large if large > 0 else large / small


def value_of(node: ast.AST) -> float:
    """Value of an arithmetic expression of number literals; ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](value_of(node.operand))
    raise ValueError("not arithmetic")


def bounds(line: str) -> Iterator[tuple[float, str, float, str, str]]:
    """Parse `<` and `>` in the explanation pytest gives of an assertion: both values, the sign, both texts; ValueError if it cannot."""
    # `tensor(1.2e-05, dtype=torch.float64)` and `np.float64(0.3)` are numbers.
    plain = re.sub(r"\b(?:tensor|np\.\w+\d+|array)\(([-+\d.]+(?:e[-+]?\d+)?)(?:, [^()]*(?:\(\))?)?\)", r"(\1)", line)
    for node in ast.walk(ast.parse(plain.strip(), mode="eval")):
        if isinstance(node, ast.Call):
            raise ValueError("a call without its value")
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, sign, right in zip(sides, node.ops, sides[1:]):
                if type(sign) in SIGNS:
                    yield value_of(left), SIGNS[type(sign)], value_of(right), ast.unparse(left), ast.unparse(right)


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    # A forked child may be checked for compiling code, which happens here.
    if os.getpid() != process or not asserted_in_a_test() or re.search(CLOCK, orig):
        return
    line, location = expl.splitlines()[0], f"{item.path.name}:{lineno}"
    shown = re.sub(r"0x[0-9a-f]+", "", expl).encode()
    if " == " in line and "±" not in line and re.search(r"""(?<![\w."'])\d+\.\d{3,}(?![\w."'])""", line):
        current.add("bits", 0.0, [np.frombuffer(shown, np.uint8)], f"{location} {line}")
    if not re.search(r"[<>]", orig):
        return
    try:
        comparisons = list(bounds(line))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        comparisons = []
    for left, sign, right, left_text, right_text in comparisons:
        if isinstance(left, int) and isinstance(right, int):
            continue
        # The literal in the test is the limit; if both sides are computed, the right one.
        if left_text in orig and right_text not in orig:
            left, sign, right = right, "<" if sign == ">" else ">", left
        if sign == "<" and 0 < right <= TOLERANCE:
            current.add("close", abs(left) / right, [float(left)], f"{location} {line}")
        else:
            current.add("bound", closeness(left, sign, right), [float(left)], f"{location} {line}")
    if not comparisons and re.search(r"\d\.\d|\de-?\d|loss|norm|abs|max|mean|std", orig + line):
        current.add("unread", 0.0, [np.frombuffer(shown, np.uint8)], f"{location} {orig} | {line}")


def asserted_in_a_test() -> bool:
    """Whether the assertion that just passed is in our tests, not in a plugin whose assertions pytest rewrites too."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_assertion_pass":
        frame = frame.f_back
    return frame is not None and frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that the file has already, measured with the same source."""
    path = Path(os.environ["SONDE_HEADROOM"])
    done = {one["test"] for one in sensitive.current(sensitive.records(path))}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: Any) -> Any:
    global current
    current = Record()
    result = yield
    with open(os.environ["SONDE_HEADROOM"], "a") as file:
        file.write(current.line(item.nodeid, getattr(item, "_headroom_outcome", "none")))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        item._headroom_outcome = report.outcome
    return report


def pytest_configure(config: pytest.Config) -> None:
    if "SONDE_HEADROOM" not in os.environ:
        raise pytest.UsageError("set SONDE_HEADROOM to the file the measurements are appended to")
    global folder
    folder = str(config.rootpath / "tests")
    watch_close(torch.testing, "assert_close", lambda a, e: default_tolerances(a, e))
    watch_close(torch, "allclose", lambda a, e: (1e-5, 1e-8))
    watch_close(np, "allclose", lambda a, e: (1e-5, 1e-8))
    watch_close(np.testing, "assert_allclose", lambda a, e: (1e-7, 0.0))
    for module, name in ((torch, "equal"), (torch.Tensor, "equal"), (np, "array_equal"), (np.testing, "assert_array_equal")):
        watch_equal(module, name)
    watch_approx()
    watch_exhibits()


def default_tolerances(actual: Any, expected: Any) -> tuple[float, float]:
    from torch.testing._comparison import default_tolerances

    return default_tolerances(actual, expected) if isinstance(actual, torch.Tensor) else (1e-7, 1e-7)
