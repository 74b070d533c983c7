"""Show versions, processor, kernels, threads and data folders."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ... import __version__
from ...core.errors import BadInput, clean
from ...core.options import Option
from ...report.terminal import columns
from .._options import by_name, parse

POSITION = 10
USAGE = ""
EXAMPLES = ("sonde doctor",)


def options() -> list[Option]:
    return []


def run(words: list[str]) -> int:
    parse(words, by_name(options(), "sonde doctor"), "sonde doctor")
    facts = [("Sonde", f"{__version__}, in {Path(__file__).parents[2]}"), ("Python", f"{platform.python_version()}, {platform.platform()}")]
    print(columns([(name, clean(text)) for name, text in (*facts, *_torch(), *_data())]))
    return 0


def _torch() -> list[tuple[str, str]]:
    """What only torch can report."""
    try:
        import torch

    except (ImportError, OSError) as error:  # a broken installation is what this command is for
        message = " ".join(str(error).split())
        return [("torch", f"cannot be loaded: {message[:200]}; install it: pip install -c constraints.txt -e .")]
    cuda = f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ", no CUDA device"
    variable = os.environ.get("OMP_NUM_THREADS")
    hint = f" (OMP_NUM_THREADS={variable})" if variable else " (OMP_NUM_THREADS or --threads change it)"
    return [
        ("torch", torch.__version__ + cuda),
        ("processor", f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"),
        ("bf16 arithmetic", _bf16()),
        ("threads", f"{torch.get_num_threads()}{hint}"),
        ("kernels", _kernels()),
    ]


def _bf16() -> str:
    import torch

    from ...engine.precision import describe_bf16

    name, reason = describe_bf16(torch.device("cpu"))
    return f"{name}; --precision auto uses it where it is faster" if name else f"none: {reason}"


def _kernels() -> str:
    from ... import kernels

    try:
        if why := kernels.why_not():
            return why
    except BadInput as error:  # SONDE_KERNELS names a level that is not available
        return error.render()
    others = "|".join(kernels.runnable())
    return f"compiled, the {kernels.level()} build loaded and used; SONDE_KERNELS={others} selects another, SONDE_KERNELS=0 none"


def _data() -> list[tuple[str, str]]:
    """Folders of data sets, and which of the sets that need files are in them."""
    try:
        from ...data import archives, catalog, fetch
        from ...data.text import windows as text
    except (ImportError, OSError):
        return [("data", "not checked: reading data needs torch")]
    try:
        folders = fetch.roots()
    except BadInput as error:
        return [("data folders", error.render())]
    sources = {
        "tiny_shakespeare": text.SHAKESPEARE,
        "mnist": archives.MNIST.folders,
        "fashion_mnist": archives.FASHION.folders,
        "cifar10": archives.CIFAR.folders,
    }
    named = "" if os.environ.get("SONDE_DATA") else "; SONDE_DATA=FOLDER adds one in front"
    shown = [f"{folder}{'' if folder.is_dir() else ' (does not exist)'}" for folder in folders]
    return [
        ("data folders", ", ".join(shown) + named),
        *((name, str(fetch.find(*files) or "not found; downloaded when needed")) for name, files in sources.items()),
        ("always available", ", ".join(name for name in catalog.names() if name not in sources)),
    ]
