"""The words of the house: American spelling, and no word of the old dialect, in code, prose, tests and file names."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEMS = (
    "capital categor character discret equal factor final general initial linear local marginal maxim memor minim normal optim organ "
    "orthogonal parametr penal prior quant random real recogn regular serial special stabil standard summar symmetr synchron token "
    "util vector visual"
)
BRITISH = re.compile(
    rf"(?i)(?<![a-z])(?:un|re|de|pre)?(?:{'|'.join(STEMS.split())})is(?:e|ed|er|ers|es|ing|ation|ations|able)(?![a-z])"
    r"|colour|neighbour|behaviour|favour|honour|tumour|centre|centring|(?<![a-z])(?:milli)?metres?(?![a-z])|(?<![a-z])grey|labell|modell(?=ed|ing)"
    r"|learnt|spelt|defence|licence|catalogue|programmes?(?![a-z])|artefact|judgement|analyse|cancell(?=ed|ing)|towards"
)
DIALECT = re.compile(r"(?i)(?<![a-z])(?:dials?|shelf|shelves)(?![a-z])|(?<![a-z])mend(?![a-z])|gone on with|nobody watches")
VARIABLES = {"told", "found", "asked", "given", "made"}
"""no name of a variable: a noun says what it holds"""
FUNCTIONS = VARIABLES | {
    *("able", "alone", "answered", "around", "begun", "disproof", "fitting", "hush", "hushed", "judge", "judged", "judging", "mistaken"),
    *("need", "reason_against", "said", "says", "spared", "spelt", "spoilt", "together", "untouched"),
}
"""no name of a function, a method or a class, in any spelling with underscores: a verb says what it does, a noun what it is"""
PARTICIPLE = re.compile("(ed|en|ing)$")
NOT_PARTICIPLES = {
    "a verb": "embed feed open seed shorten widen",
    "a noun": "drawing embedding listing mapping nothing overfitting padding reading rounding setting token training underfitting",
    "the name of a person": "hoeffding",
}
"""words in -ed, -en and -ing that the name of a function may end in"""
VERBS = {"add", "check", "encode", "fill", "has", "is", "load", "mix", "open", "prepare", "read", "seed", "start", "train", "warn"}
"""a name that begins with one of these says what the function does, and may end in a participle: is_observed, check_fitted"""
PARTICIPLES_ALLOWED = {
    ("sonde/core/options.py", "checked"): "a decorator: an adjective of what it decorates",
    ("sonde/core/recipe.py", "evaluated"): "an event of a Callback, which users override",
    ("sonde/engine/tensorboard.py", "evaluated"): "the same event",
    ("sonde/atlas/exhibit.py", "passed"): "a yes or no, as in pytest's report",
    ("sonde/data/corrupt.py", "masking"): "a noun of the field: masked language modeling",
    ("sonde/data/sequences.py", "copying"): "a data set that users name: the copying task",
    ("sonde/data/sequences.py", "tagging"): "a data set that users name: sequence tagging",
}
SHARED = {
    "_Arguments": "mirrors the C struct of each kernel",
    "_Row": "mirrors the C row of each kernel",
    "Weights": "the same choice, with and without None",
}
"""names of classes and types that several modules define"""
EXCEPTIONS = {
    "tests/test_voice.py": "the lists themselves",
    "sonde/core/renamed.py": "old names, to refuse them",
    "tests/cli/test_upgrade.py": "files of an older version",
    "tests/engine/test_old_records.py": "records of an older version",
    "benchmarks/_digests.py": "names of older revisions",
    "benchmarks/identical.py": "names of older revisions",
    "CHANGELOG.md": "what changed",
    "LICENSE": "not ours",
}
VARIABLES_LEFT = {
    ("benchmarks/estimators.py", "asked"),
    ("sonde/atlas/recurrent_networks.py", "given"),
    ("tests/engine/test_other_data.py", "found"),
}
"""variables that stay: a parameter that callers name, a yes or no of a search"""


def texts() -> list[str]:
    """Files of text that git knows; outside a checkout, those below the folders of the project."""
    try:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        names = [
            path.relative_to(ROOT).as_posix() for part in ("sonde", "tests", "docs", "benchmarks") for path in (ROOT / part).rglob("*")
        ]
    endings = (".py", ".md", ".c", ".h", ".toml", ".yaml", ".tsv", "Makefile")
    return [name for name in names if name.endswith(endings) and name not in EXCEPTIONS and name != "tests/sensitive.tsv"]


def words(text: str) -> list[str]:
    """Words that may not appear, as they stand in a text."""
    return [match.group() for pattern in (BRITISH, DIALECT) for match in pattern.finditer(text)]


def variables(source: str) -> set[str]:
    """Local variables and parameters of functions and lambdas that are named by a participle."""
    bound = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = function.args
            bound |= {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
            bound |= {one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None}
            bound |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return bound & VARIABLES


def functions(source: str) -> set[str]:
    """Functions, methods and classes with a name of the old dialect; a test may say what it likes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and node.name.strip("_").lower() in FUNCTIONS}


def participles(source: str) -> set[str]:
    """Functions and methods named by a participle (`noised`, `_moving`) instead of by what they do or return."""
    names = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    parts = {name: name.strip("_").lower().split("_") for name in names if not name.endswith("__")}
    allowed = {word for listed in NOT_PARTICIPLES.values() for word in listed.split()}
    return {
        name
        for name, (*before, last) in parts.items()
        if PARTICIPLE.search(last) and last not in allowed and not (before and before[0] in VERBS)
    }


def types(sources: dict[str, str]) -> dict[str, set[str]]:
    """Names of classes and types -> the meanings they have at the top of modules: each class one, equal aliases the same."""
    meanings: dict[str, set[str]] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                meanings.setdefault(node.name, set()).add(f"class in {path}")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name.lstrip("_")[:1].isupper() and any(letter.islower() for letter in name):
                    meanings.setdefault(name, set()).add(ast.unparse(node.value))
    return meanings


def test_spelling_and_dialect() -> None:
    wrong = []
    for name in texts():
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").split("\n"), 1):
            wrong += [f"{name}:{number}: {word}" for word in words(line)]
    assert wrong == []
    assert [f"{name}: {word}" for name in texts() for word in words(name)] == []


def test_variables_have_names_of_things() -> None:
    wrong = {
        (name, one) for name in texts() if name.endswith(".py") for one in variables((ROOT / name).read_text(encoding="utf-8"))
    } - VARIABLES_LEFT
    assert sorted(wrong) == []


def test_functions_and_classes_say_what_they_do() -> None:
    names = [name for name in texts() if name.endswith(".py")]
    assert [f"{name}: {one}" for name in names for one in sorted(functions((ROOT / name).read_text(encoding="utf-8")))] == []


def test_no_function_is_named_by_a_participle() -> None:
    package = [name for name in texts() if name.startswith("sonde/") and name.endswith(".py")]
    refused = {(name, one) for name in package for one in participles((ROOT / name).read_text(encoding="utf-8"))}
    assert PARTICIPLES_ALLOWED.keys() <= refused, "an exception that is not needed"
    assert sorted(refused - PARTICIPLES_ALLOWED.keys()) == []


def test_one_class_name_has_one_meaning() -> None:
    package = {name: (ROOT / name).read_text(encoding="utf-8") for name in texts() if name.startswith("sonde/") and name.endswith(".py")}
    shared = {name: sorted(meanings) for name, meanings in types(package).items() if len(meanings) > 1}
    assert {name: shared[name] for name in shared.keys() - SHARED.keys()} == {}
    assert SHARED.keys() <= shared.keys(), "an exception that is not needed"


def test_every_exception_is_needed() -> None:
    for name in EXCEPTIONS.keys() - {"LICENSE", "CHANGELOG.md", "benchmarks/identical.py"}:
        assert words((ROOT / name).read_text(encoding="utf-8")), f"{name} needs no exception"
    for name, one in VARIABLES_LEFT - {("benchmarks/estimators.py", "asked")}:
        assert one in variables((ROOT / name).read_text(encoding="utf-8")), f"{name} has no variable '{one}'"


@pytest.mark.parametrize(
    "text",
    ["an optimiser", "normalise()", "UNLABELLED", "the colour", "tokeniser.py", "a dial", "on the shelf", "Learnt", "penalises", "grey"],
)
def test_a_planted_word_is_seen(text: str) -> None:
    assert len(words(text)) == 1


@pytest.mark.parametrize(
    "text", ["an emphasis", "optimism", "dialogue", "radial", "realistic", "a promise", "greyhound"[4:], "parametrize", "meter"]
)
def test_other_words_are_not(text: str) -> None:
    assert words(text) == []


def test_a_planted_variable_is_seen() -> None:
    assert variables("def f(given):\n    found = 1\n    return found") == {"given", "found"}
    assert variables("def f(x):\n    return x.found(made=1)") == set()
    assert variables("g = lambda told: told") == {"told"}
    assert variables("g = lambda *given: given") == {"given"}


def test_a_planted_function_is_seen() -> None:
    assert functions("def found():\n    pass\nclass Together:\n    def _mistaken(self):\n        pass") == {
        "found",
        "Together",
        "_mistaken",
    }
    assert functions("def test_found():\n    pass\ndef find():\n    pass") == set()


@pytest.mark.parametrize(
    ("name", "seen"), [("noised", 1), ("_frozen", 1), ("by_moving", 1), ("is_frozen", 0), ("embedding", 0), ("__len__", 0)]
)
def test_a_planted_participle_is_seen(name: str, seen: int) -> None:
    assert len(participles(f"class Part:\n    def {name}(self):\n        pass")) == seen


def test_a_planted_class_name_is_seen() -> None:
    assert len(types({"a.py": "class Row: ...", "b.py": "class Row: ..."})["Row"]) == 2
    assert len(types({"a.py": "class Row: ...", "b.py": "Row = int | str"})["Row"]) == 2
    assert len(types({"a.py": "Count = int", "b.py": "Count = int"})["Count"]) == 1
