"""Real data that come with scikit-learn, without a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from ..core.batch import Data
from ..core.errors import BadInput
from .arrays import Arrays, array_data
from .split import SplitSize
from .table import Rules, table_data


def digits(seed: int = 0, valid: SplitSize = 0.1, test: SplitSize = 0.2, standardize: bool = True) -> Annotated[Data, "images"]:
    """1,797 handwritten digits as 8 x 8 images, 10 classes.

    Args:
        valid: fraction or count of examples held out for validation
        test: fraction or count of examples held out for the test
        standardize: mean 0 and deviation 1 over the training images
    """
    bunch = _load("digits")
    arrays = Arrays(bunch.images.astype(np.uint8), bunch.target, tuple(map(str, range(10))), top=16.0)
    return array_data(arrays, Rules(standardize=standardize), "digits", seed, (valid, test))


def class_set(name: str, summary: str, part: float = 0.2) -> Callable[..., Data]:
    """A table with classes; `part` is the default fraction for validation."""

    def load(seed: int = 0, valid: SplitSize = part, test: SplitSize = 0.2, standardize: bool = True) -> Data:
        return _table(name, seed, (valid, test), Rules("classes", standardize=standardize))

    load.__name__ = load.__qualname__ = name
    load.__doc__ = f"""{summary}

    Args:
        valid: fraction or count of rows held out for validation
        test: fraction or count of rows held out for the test
        standardize: mean 0 and deviation 1 over the training rows
    """
    return load


iris = class_set("iris", "150 iris flowers, 4 measurements, 3 species.")
wine = class_set("wine", "178 wines, 13 chemical measurements, 3 growers.")
breast_cancer = class_set("breast_cancer", "569 breast tumors, 30 measurements of cell nuclei, malignant or benign.", part=0.15)


def diabetes(
    seed: int = 0, valid: SplitSize = 0.15, test: SplitSize = 0.2, standardize: bool = True, standardize_target: bool = False
) -> Data:
    """442 diabetes patients, 10 measurements, progression of the disease after a year.

    Args:
        valid: fraction or count of rows held out for validation
        test: fraction or count of rows held out for the test
        standardize: mean 0 and deviation 1 over the training rows
        standardize_target: the same for the target
    """
    rules = Rules("values", standardize=standardize, standardize_target=standardize_target)
    return _table("diabetes", seed, (valid, test), rules)


def _table(name: str, seed: int, parts: tuple[SplitSize, SplitSize], rules: Rules) -> Data:
    bunch = _load(name)
    columns = {str(column): bunch.data[:, i] for i, column in enumerate(bunch.feature_names)}
    if rules.task == "classes":
        rules = replace(rules, classes=tuple(map(str, bunch.target_names)))
        target = np.empty(len(bunch.target), object)
        target[:] = [str(bunch.target_names[label]) for label in bunch.target]
    else:
        target = bunch.target.astype(np.float64)
    return table_data({**columns, "target": target}, "target", rules, name, seed, parts)


def _load(name: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise BadInput(f"data set '{name}' comes with scikit-learn, which is not installed", fix="pip install scikit-learn") from error
    return getattr(datasets, f"load_{name}")()
