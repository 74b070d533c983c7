"""The compiled library is found, says why when it cannot serve, and a build without a compiler still installs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.flop_counter

from sonde import kernels
from sonde.core.errors import BadInput, ResourceFault
from sonde.kernels import activate, library

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fresh():
    """Forget what was loaded, before and after."""
    for cached in (library._load, library.function):
        cached.cache_clear()
    yield
    for cached in (library._load, library.function):
        cached.cache_clear()


def test_available_and_why_not_agree():
    assert kernels.available() == (kernels.why_not() == "")


def test_environment_turns_the_kernels_off(fresh, monkeypatch):
    monkeypatch.setenv("SONDE_KERNELS", "0")
    assert not kernels.available()
    assert "SONDE_KERNELS" in kernels.why_not()
    assert kernels.level() == "none"
    with pytest.raises(ResourceFault, match="SONDE_KERNELS"):
        library.function("separable_forward", torch.float32)


def test_missing_library_says_what_to_do(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("SONDE_KERNELS", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "_library.py"))
    assert not kernels.available()
    assert "install a C compiler" in kernels.why_not()


def test_damaged_library_says_what_to_do(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("SONDE_KERNELS", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "_library.py"))
    (tmp_path / "_kernels_base.so").write_bytes(b"not a library")
    assert not kernels.available()
    assert "install Sonde again" in kernels.why_not()


@pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")
def test_a_library_of_other_sources_is_refused(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("SONDE_KERNELS", raising=False)
    for path in Path(library.__file__).parent.glob("*.[chs]*"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "_library.py"))
    assert kernels.available()
    with open(tmp_path / "_real.h", "a") as header:
        header.write("/* changed */")
    library._load.cache_clear()
    assert not kernels.available()
    assert "rebuild: pip install -e ." in kernels.why_not()


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs a C compiler")
def test_a_build_replaces_the_library_and_leaves_the_old_one_whole(tmp_path):
    folder = tmp_path / "sonde" / "kernels"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    source = "#if REAL_BITS == 32\nconst char mark[] = MARK;\n#endif\n"
    (folder / "one.c").write_text(source)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    with open(folder / "_kernels_base.so", "rb") as old:
        before = old.read()
        (folder / "one.c").write_text(source + "/* changed */\n")
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
        old.seek(0)
        assert old.read() == before
    assert (folder / "_kernels_base.so").read_bytes() != before
    assert not list(folder.glob("*.new"))


AVX512 = {"avx2", "fma3", "avx512_f", "avx512_vl", "avx512_bw", "avx512_dq"}
PROCESSORS = {"zen4": AVX512, "zen3": {"avx2", "fma3"}, "nehalem": set(), "knights": {"avx2", "fma3", "avx512_f"}}


def pretend(monkeypatch, processor: str, capability: str) -> None:
    """A processor with these flags, on which torch uses this capability (its own choice, or that of ATEN_CPU_CAPABILITY)."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(PROCESSORS[processor], True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@pytest.mark.parametrize(
    "processor, capability, expected",
    [
        ("zen4", "AVX512", ["avx512", "avx2", "base"]),
        ("zen4", "AVX2", ["avx2", "base"]),
        ("zen4", "DEFAULT", ["base"]),
        ("zen4", "SVE256", ["base"]),
        ("zen3", "AVX512", ["avx2", "base"]),  # ATEN_CPU_CAPABILITY=avx512: torch itself takes its word
        ("knights", "AVX512", ["avx2", "base"]),  # the first processors with avx512f had no vl, bw and dq
        ("nehalem", "AVX2", ["base"]),
    ],
)
def test_never_a_level_above_torch_or_the_processor(monkeypatch, processor, capability, expected):
    pretend(monkeypatch, processor, capability)
    assert library._levels() == expected


@pytest.fixture
def loaded(fresh, monkeypatch):
    """The names of the libraries opened, in place of opening them."""
    names: list[str] = []

    def refuse(path):
        names.append(Path(path).name)
        raise OSError("not opened")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    return names


@pytest.mark.parametrize("name", ["base", "avx2", "avx512"])
@pytest.mark.parametrize("capability", ["AVX512", "DEFAULT"])
def test_a_named_level_is_the_one_opened_whatever_torch_uses(loaded, monkeypatch, name, capability):
    pretend(monkeypatch, "zen4", capability)
    monkeypatch.setenv("SONDE_KERNELS", name)
    with pytest.raises(BadInput, match=f"SONDE_KERNELS={name} cannot be used: .*not opened"):
        kernels.available()
    assert loaded == [f"_kernels_{name}.so"]


@pytest.mark.parametrize(
    "processor, name, words",
    [
        ("zen3", "avx512", "needs a processor with avx512f, avx512vl, avx512bw, avx512dq, .*; use base, avx2, or 0 for none; or unset it"),
        ("knights", "avx512", "needs a processor with avx512vl, avx512bw, avx512dq, and this one has none"),
        ("nehalem", "avx2", "needs a processor with avx2, fma3, .*; use base, or 0"),
        ("zen4", "avx", "SONDE_KERNELS=avx is not a level of the kernels; use base, avx2, avx512, or 0 for none; or unset it"),
        ("zen4", "AVX2", "is not a level"),
        ("zen4", "1", "is not a level"),
    ],
)
def test_a_level_that_cannot_be_had_is_refused_and_nothing_opened(loaded, monkeypatch, processor, name, words):
    pretend(monkeypatch, processor, "AVX512")
    monkeypatch.setenv("SONDE_KERNELS", name)
    for ask in (kernels.available, kernels.why_not, kernels.level, lambda: library.function("separable_forward", torch.float32)):
        with pytest.raises(BadInput, match=words) as refusal:
            ask()
        assert "\n" not in str(refusal.value)
    assert loaded == []


def test_a_named_level_that_was_not_built_is_an_error(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("SONDE_KERNELS", "base")
    monkeypatch.setattr(library, "__file__", str(tmp_path / "_library.py"))
    with pytest.raises(BadInput, match="SONDE_KERNELS=base cannot be used: .* install a C compiler"):
        kernels.available()


@pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")
def test_each_level_of_this_processor_serves(fresh, monkeypatch):
    x = torch.linspace(-3, 3, activate.LEAST)  # fewer would be computed by torch
    for name in kernels.runnable():
        if not (Path(library.__file__).parent / f"_kernels_{name}.so").exists():
            continue  # a compiler too old for the level
        monkeypatch.setenv("SONDE_KERNELS", name)
        for cached in (library._load, library.function):
            cached.cache_clear()
        assert kernels.level() == name
        assert torch.allclose(activate.activate(x, "silu"), x.double().sigmoid().mul(x).float(), atol=1e-6)


@pytest.mark.skipif(not kernels.available(), reason="no compiled kernels here")
def test_unknown_function_names_itself():
    with pytest.raises(ResourceFault, match="no 'nothing_f32'"):
        library.function("nothing", torch.float32)


def test_view_counts_elements_and_absent_is_null():
    x = torch.zeros(2, 3, 5, 7).transpose(1, 2)
    seen = library.view(x)
    assert (seen.data, seen.row, seen.head, seen.time) == (x.data_ptr(), 105, 7, 35)
    assert library.view(None).data is None
    assert ctypes.sizeof(library.View) == 32


def test_a_call_is_unobserved_only_when_nobody_could_watch_it():
    x = torch.ones(3)
    assert library.is_unobserved([x, None, torch.nn.Parameter(x, requires_grad=False)])
    seen = [x.clone().requires_grad_(), x.to("meta"), x.as_subclass(Marked)]
    assert not any(library.is_unobserved([x, y]) for y in seen)
    with torch.no_grad():
        assert library.is_unobserved([seen[0]])
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert not library.is_unobserved([x])
    with torch.autograd.forward_ad.dual_level():
        assert not library.is_unobserved([x])
    inside = []
    torch.func.vmap(lambda y: (inside.append(library.is_unobserved([y])), y)[1])(x)
    torch.jit.trace(lambda y: (inside.append(library.is_unobserved([y])), y + 1)[1], x, check_trace=False)
    assert inside and not any(inside)


class Marked(torch.Tensor):
    """A tensor that may have ideas of its own."""


@pytest.mark.skipif(sys.platform != "linux", reason="uses /bin/false as the compiler")
def test_build_without_a_compiler_succeeds_with_one_notice(tmp_path):
    (tmp_path / "sonde" / "kernels").mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    for path in (ROOT / "sonde" / "kernels").glob("*.[ch]"):
        shutil.copy(path, tmp_path / "sonde" / "kernels")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={**os.environ, "CC": "/bin/false"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("notice:") == 1
    assert "install a C compiler" in done.stderr
    assert not list(tmp_path.rglob("*.so"))
