"""What decides the bits of a run: other bits mean another fingerprint, and a resume under another one says so.

Another machine is played in two ways: by a child process under environment variables that change its arithmetic, and by
a fingerprint put in the place of this machine's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import sonde
import sonde.kernels
from sonde.core.errors import BadInput, DataUnusable, Preempted
from sonde.core.recipe import Callback
from sonde.engine import fingerprint as module
from tests.engine.small import line

ROOT = Path(__file__).parents[2]

# ---------------------------------------------------------------- what a resume says


class StopAt(Callback):
    """SIGTERM at a step, which saves; or an error, which does not."""

    def __init__(self, step: int, error: bool = False) -> None:
        self.at, self.error = step, error

    def step(self, run: Any, step: int, row: Mapping[str, float]) -> None:
        if step == self.at:
            if self.error:
                raise RuntimeError("lost")
            os.kill(os.getpid(), signal.SIGTERM)


Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Go on as another machine: this one, with some entries of its fingerprint changed; None takes an entry away."""
    here = module._this_process()

    def change(**entries: str | None) -> None:
        values = {name: value for name, value in {**here, **entries}.items() if value is not None}
        monkeypatch.setattr(module, "_this_process", lambda: values)

    return change


def go(path: Path, stop: int = 99, error: bool = False, **options: Any) -> sonde.Run:
    """Start or go on with a run, up to a step."""
    recipe = line().replace(callbacks=[StopAt(stop, error)])
    try:
        sonde.train(recipe, run=path, **{"threads": 1, **options})
    except (Preempted, RuntimeError):
        assert stop < 99
    return sonde.open_run(path, recipe)


def notices(run: sonde.Run) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] == "arithmetic"]


def test_a_resume_elsewhere_says_once_what_differs(tmp_path, machine, capsys):
    machine(kernels="avx512", processor="A")
    assert notices(go(tmp_path / "r", 5)) == [] and "bits may differ" not in capsys.readouterr().err
    machine(kernels="avx2", processor="B")
    run = go(tmp_path / "r", 8)
    text = "resuming with a different setup (processor A -> B; kernels avx512 -> avx2): bits may differ from step 5 on"
    lines = [line for line in capsys.readouterr().err.splitlines() if "bits may differ" in line]
    assert lines == [f"warning: {text}"]
    [event] = notices(run)
    changes = [{"name": "processor", "before": "A", "now": "B"}, {"name": "kernels", "before": "avx512", "now": "avx2"}]
    assert {name: event[name] for name in ("step", "differs", "text")} == {"step": 5, "differs": changes, "text": text}
    assert run.info["fingerprint"]["processor"] == "B"

    assert len(notices(go(tmp_path / "r", 11))) == 1 and "arithmetic" not in capsys.readouterr().err
    machine(kernels="avx512", processor="A")
    run = go(tmp_path / "r")
    assert "processor B -> A" in notices(run)[-1]["text"] and notices(run)[-1]["step"] == 11
    assert capsys.readouterr().err.count("bits may differ") == 1 and run.result["status"] == "done"


def test_the_report_shows_it(tmp_path, machine):
    machine(processor="A")
    go(tmp_path / "r", 5, quiet=True)
    machine(processor="B")
    page = go(tmp_path / "r", quiet=True).report().read_text()
    assert "bits may differ from step 5 on" in page


def test_quiet_keeps_the_event_and_says_nothing(tmp_path, machine, capsys):
    machine(onednn="avx2")
    go(tmp_path / "r", 5, quiet=True)
    machine(onednn="sse41")
    assert [event["step"] for event in notices(go(tmp_path / "r", quiet=True))] == [5]
    assert capsys.readouterr().err == ""


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "run.lock"}


@pytest.mark.parametrize("processes", [1, 2])
def test_exact_refuses_with_the_same_list_and_changes_nothing(tmp_path, machine, processes):
    machine(mkl="2024.2", blas="Zen")
    go(tmp_path / "r", 5, quiet=True, processes=processes)
    before = contents(tmp_path / "r")
    machine(mkl="2024.2 COMPATIBLE", blas="Haswell")
    with pytest.raises(BadInput, match="mkl 2024.2 -> 2024.2 COMPATIBLE; blas Zen -> Haswell") as caught:
        go(tmp_path / "r", quiet=True, exact=True)
    assert caught.value.exit_code == 2 and contents(tmp_path / "r") == before
    machine(mkl="2024.2", blas="Zen")
    assert notices(go(tmp_path / "r", quiet=True, exact=True)) == []


def test_what_another_machine_never_saved_is_computed_again_and_no_difference(tmp_path, machine):
    machine(cpu="AVX2")
    go(tmp_path / "r", 5, quiet=True)
    machine(cpu="DEFAULT")
    run = go(tmp_path / "r", 7, error=True, quiet=True)
    assert len(notices(run)) == 1 and run.info["fingerprint"]["cpu"] == "DEFAULT"
    machine(cpu="AVX2")
    run = go(tmp_path / "r", quiet=True, exact=True)
    assert len(notices(run)) == 1 and run.info["fingerprint"]["cpu"] == "AVX2"


def test_a_run_with_no_checkpoint_yet_is_compared_with_where_it_began(tmp_path, machine):
    machine(cpu="AVX2")
    go(tmp_path / "r", 2, error=True, quiet=True)
    machine(cpu="DEFAULT")
    with pytest.raises(BadInput, match="cpu AVX2 -> DEFAULT"):
        go(tmp_path / "r", quiet=True, exact=True)
    assert [event["step"] for event in notices(go(tmp_path / "r", 2, error=True, quiet=True))] == [0]
    assert len(notices(go(tmp_path / "r", quiet=True))) == 1


def test_a_run_of_an_older_version_is_compared_by_what_it_recorded(tmp_path, machine):
    later = ("sonde", "processor", "kernels", "kernels_build", "onednn", "mkl", "libc", "blas", "numpy_simd")
    machine(**dict.fromkeys(later))
    run = go(tmp_path / "r", 5, quiet=True)
    assert not set(later) & set(run.info["fingerprint"])
    machine()
    run = go(tmp_path / "r", 8, quiet=True, exact=True)
    assert notices(run) == [] and set(later) & set(module._this_process()) <= set(run.info["fingerprint"])
    machine(processor="B")
    assert [event["differs"][0]["name"] for event in notices(go(tmp_path / "r", quiet=True))] == ["processor"]

    machine(**dict.fromkeys(later))
    go(tmp_path / "other", 5, quiet=True)
    machine(cpu="B")
    assert "cpu" in notices(go(tmp_path / "other", quiet=True))[0]["text"]


def run_apart(path: Path, arguments: str) -> None:
    """`go` in a new process: after two threads no test could fork here, and after a fork two threads may stand still."""
    code = f"from pathlib import Path; from tests.engine.test_fingerprint import go; go(Path({str(path)!r}), {arguments})"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=120, check=True)


def test_options_that_move_no_bit_are_no_difference_and_threads_are(tmp_path):
    go(tmp_path / "r", 5, quiet=True, shards=2)
    free = {"processes": 2, "checkpoint_every": 3, "hang_timeout": 100.0, "restarts": 1}
    assert notices(go(tmp_path / "r", 8, quiet=True, exact=True, **free)) == []
    run_apart(tmp_path / "r", "11, quiet=True, processes=1, threads=2")
    run = sonde.open_run(tmp_path / "r", line())
    assert ["threads 1 -> 2" in event["text"] for event in notices(run)] == [True]
    run_apart(tmp_path / "r", "quiet=True, exact=True, threads=None")  # takes up the two threads again
    assert len(notices(run)) == 1 and run.directory.is_done


def test_a_spread_model_depends_on_the_number_of_processes(tmp_path):
    go(tmp_path / "r", 5, quiet=True, shards=2, parallel="fsdp")
    assert "processes 1 -> 2" in notices(go(tmp_path / "r", quiet=True, processes=2))[0]["text"]


def test_data_that_are_computed_and_change_with_the_arithmetic_are_told_so(tmp_path, machine):
    machine(cpu="AVX2")
    go(tmp_path / "r", 5, quiet=True)
    other = line().replace(callbacks=[StopAt(99)])
    other.data.train.fields["x"][3] += 1
    with pytest.raises(DataUnusable) as caught:
        sonde.train(other, run=tmp_path / "r", quiet=True, threads=1)
    assert "arithmetic" not in caught.value.fix
    machine(cpu="DEFAULT")
    with pytest.raises(DataUnusable) as caught:
        sonde.train(other, run=tmp_path / "r", quiet=True, threads=1)
    assert "data that are computed also change with the arithmetic (cpu AVX2 -> DEFAULT)" in caught.value.fix
    run = sonde.train(other, run=tmp_path / "r", quiet=True, threads=1, accept_data_change=True)
    assert len(notices(run)) == 1 and any("as accepted" in event.get("text", "") for event in run.events)


@pytest.mark.parametrize("before", [{}, {"cpu": None, "threads": "1", "processor": "\x1b[2J\nB"}, {"processor": {"A": [1]}}])
def test_whatever_stands_in_a_record_the_answer_is_a_line(before):
    changes = module.differences(before, {"cpu": "AVX2", "threads": 1, "processor": "A"})
    assert [change["name"] for change in changes] == list(before)
    assert module.list_changes(changes).isprintable()


# ---------------------------------------------------------------- what the entries say


def test_every_entry_is_a_name_and_a_short_line():
    entries = module.fingerprint()
    assert json.loads(json.dumps(entries)) == entries and all(re.fullmatch(r"[a-z_]+", name) for name in entries)
    assert all(isinstance(value, str) and 0 < len(value) < 80 and value.isprintable() for value in entries.values()), entries


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux says there what processor it runs on")
def test_the_processor_is_the_one_the_system_names():
    facts = dict(re.findall(r"^([^:\n]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    if "cpu family" in facts:
        assert f"(family {facts['cpu family']}, model {facts['model']})" in module._processor()


FLAGS = ("sse4_1", "avx", "avx2", "fma3", "avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_vnni")


@pytest.mark.parametrize(
    ("limit", "isa"),
    [({}, "avx512_core_vnni"), ({"ONEDNN_MAX_CPU_ISA": "avx2"}, "avx2"), ({"DNNL_MAX_CPU_ISA": "AVX"}, "avx")]
    + [({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "avx512_core_vnni"), ({"ONEDNN_MAX_CPU_ISA": "WRONG"}, "avx512_core_vnni")]
    + [({"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "SSE41"}, "avx2"), ({"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}, "avx2")],
)
def test_onednn_computes_with_the_best_that_is_there_and_allowed(limit, isa):
    assert module._onednn(dict.fromkeys(FLAGS, True), limit) == isa
    assert module._onednn({"neon": True}, limit) == "default"


def test_libraries_that_a_variable_holds_back_say_so():
    build = "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64"
    assert module._mkl(build, {}) == "2024.2" and module._mkl(build, {"MKL_CBWR": "avx2,strict"}) == "2024.2 AVX2,STRICT"
    assert module._mkl(build, {"MKL_CBWR": "AUTO"}) == "2024.2"
    assert module._mkl(build, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}) == "2024.2 AVX2"
    assert module._mkl("BLAS_INFO=open", {"MKL_CBWR": "AVX2"}) == "none"
    highest = module._simd({})
    assert module._simd({"NPY_DISABLE_CPU_FEATURES": " X86_V4,AVX512_ICL "}) == f"{highest} -AVX512_ICL -X86_V4"
    plain = module._libc({})
    assert module._libc({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}) == plain
    assert module._libc({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.cpu.hwcaps=-AVX2"}) == f"{plain} -AVX2"


def test_kernels_are_known_by_their_level_and_by_what_they_are_built_from(monkeypatch, tmp_path):
    monkeypatch.setattr(sonde.kernels, "level", lambda: "none")
    assert module._kernels() == {"kernels": "none"}
    monkeypatch.setattr(sonde.kernels, "level", lambda: "avx2")
    monkeypatch.setattr(sonde.kernels, "__file__", str(tmp_path / "__init__.py"))
    for name, content in {"a.c": b"int a;", "b.h": b"int b;", "_kernels_avx2.so": b"GCC: (x) 1.2\0", "_kernels_base.so": b""}.items():
        (tmp_path / name).write_bytes(content)
    mark = hashlib.sha256(b"int a;int b;").hexdigest()[:8]
    assert module._kernels() == {"kernels": "avx2", "kernels_build": f"{mark} GCC 1.2"}


def test_the_compiler_is_read_from_the_library():
    gcc = b"\x7fELF..\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0.."
    assert module._compiler(gcc) == "GCC 12.2.0" and module._compiler(gcc + b"Debian clang version 17.0.6 (1)\0") == "clang 17.0.6"
    assert module._compiler(b"\x7fELF") == ""


# ---------------------------------------------------------------- other arithmetic, for real


class Child(NamedTuple):
    """What a process computed, its fingerprint, and what oneDNN and OpenBLAS themselves say they compute with."""

    bits: str
    fingerprint: dict[str, Any]
    isa: str
    core: str


def child(folder: Path, environment: Mapping[str, str], threads: int = 1) -> Child | None:
    """Train in a process of its own; None where the machine cannot have such a one."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.arithmetic", str(folder / "run"), str(threads)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_VERBOSE": "1", "OPENBLAS_VERBOSE": "2", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode and "SONDE_KERNELS" in environment and "BadInput: SONDE_KERNELS" in ran.stderr:
        return None
    assert ran.returncode == 0, ran.stderr[-3000:]
    isa, core = re.search(r"info,cpu,isa:(.*)", ran.stdout), re.search(r"^Core: (\w+)", ran.stderr, re.MULTILINE)
    return Child(**json.loads(ran.stdout.rpartition("report ")[2]), isa=isa[1] if isa else "", core=core[1] if core else "")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """This machine as it is."""
    result = child(tmp_path_factory.mktemp("own"), {})
    assert result is not None
    return result


ISA = {
    "sse41": "Intel SSE4.1",
    "avx": "Intel AVX",
    "avx2": "Intel AVX2",
    "avx2_vnni": "Intel AVX2 with Intel DL Boost",
    "avx512_core": "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions",
    "avx512_core_vnni": "Intel AVX-512 with Intel DL Boost",
    "avx512_core_bf16": "Intel AVX-512 with Intel DL Boost and bfloat16 support",
}
"""how oneDNN says what it computes with"""

OTHERS: dict[str, set[str]] = {
    "ATEN_CPU_CAPABILITY=default": {"cpu", "kernels"},
    "ATEN_CPU_CAPABILITY=avx2": {"cpu", "kernels"},
    "SONDE_KERNELS=0": {"kernels"},
    "SONDE_KERNELS=base": {"kernels"},
    "SONDE_KERNELS=avx2": {"kernels"},
    "ONEDNN_MAX_CPU_ISA=SSE41": {"onednn"},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"onednn"},
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE": {"onednn"},
    "MKL_CBWR=COMPATIBLE": {"mkl"},
    "MKL_CBWR=AVX2": {"mkl"},
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2": {"mkl"},
    "OPENBLAS_CORETYPE=Haswell": {"blas"},
    "OPENBLAS_CORETYPE=Zen": {"blas"},
    "OPENBLAS_CORETYPE=SkylakeX": {"blas"},
    "NPY_DISABLE_CPU_FEATURES=X86_V4 AVX512_ICL": {"numpy_simd"},
    "NPY_DISABLE_CPU_FEATURES=X86_V3": {"numpy_simd"},
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA": {"libc"},
}
"""variables that may change the bits, and the entries that must show it"""
QUICK = "ATEN_CPU_CAPABILITY=default"


@pytest.mark.parametrize("setting", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS])
def test_other_bits_mean_another_fingerprint(tmp_path, own, setting):
    there = child(tmp_path, dict([setting.split("=", 1)]))
    if there is None:
        pytest.skip("this processor does not have it")
    changed = {change["name"] for change in module.differences(own.fingerprint, there.fingerprint)}
    assert changed <= OTHERS[setting]
    if there.bits != own.bits:
        assert changed, "the weights differ and the fingerprint does not"
    for one in (own, there):
        assert one.isa == ISA.get(one.fingerprint["onednn"], one.isa) and one.fingerprint["blas"] == (one.core or one.fingerprint["blas"])


@pytest.mark.slow
def test_other_threads_mean_another_fingerprint(tmp_path, own):
    there = child(tmp_path, {}, threads=2)
    assert there is not None
    assert [change["name"] for change in module.differences(own.fingerprint, there.fingerprint)] == ["threads"]


FREE = {
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
    "PYTHONHASHSEED": "5",
}
"""may be set as anyone likes: the threads of a run are its own"""


@pytest.mark.slow
def test_what_moves_no_bit_is_not_in_the_fingerprint(tmp_path, own):
    there = child(tmp_path, FREE)
    assert there is not None and there.bits == own.bits
    assert module.differences(own.fingerprint, there.fingerprint) == []


MINE = """
import os, signal
import torch
from sonde import Recipe
from sonde.core.batch import Data
from sonde.core.recipe import Callback
from sonde.data.tensors import TensorSource
from sonde.objectives.categorical import Categorical
from sonde.optim.build import optimizer


class Stop(Callback):
    def step(self, run, step, row):
        if str(step) == os.environ.get("STOP_AT"):
            os.kill(os.getpid(), signal.SIGTERM)


def recipe() -> Recipe:
    x = torch.arange(64).reshape(32, 2) / 64
    return Recipe(
        model=lambda: torch.nn.Linear(2, 2),
        data=Data(TensorSource(x, torch.arange(32) % 2), name="grid", task="classes"),
        objective=Categorical(classes=2),
        optimizer=optimizer("sgd", lr=0.1),
        steps=9,
        batch_size=8,
        callbacks=[Stop()],
    )
"""
FOREIGN = {"SONDE_KERNELS": "0", "ATEN_CPU_CAPABILITY": "default"}


def command(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "sonde", "train", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stderr


def test_the_command_line_resumes_under_other_arithmetic(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    own = {*(["kernels"] if sonde.kernels.level() != "none" else []), *(["cpu"] if module._this_process()["cpu"] != "DEFAULT" else [])}
    assert command(tmp_path, "./mine.py", "--run", "r", STOP_AT="4")[0] == 75
    if own:
        code, stderr = command(tmp_path, "--resume", "r", "--exact", **FOREIGN)
        assert code == 2 and all(f"{name} {module._this_process()[name]} -> " in stderr for name in own)
    code, stderr = command(tmp_path, "--resume", "r", STOP_AT="6", **FOREIGN)
    run = sonde.open_run(tmp_path / "r")
    assert code == 75 and {change["name"] for event in notices(run) for change in event["differs"]} == own
    assert stderr.count("warning:") == stderr.count("bits may differ from step 4 on") == len(notices(run)) == bool(own)


def test_switches_of_torch_are_part_of_it():
    before = module.fingerprint()
    precision, enabled = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled
    try:
        torch.set_float32_matmul_precision("medium")
        torch.backends.mkldnn.enabled = False
        changed = {change["name"] for change in module.differences(before, module.fingerprint())}
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.mkldnn.enabled = enabled
    assert changed == {"matmul_precision", "mkldnn"} and module.differences(before, module.fingerprint()) == []


def test_a_precision_of_one_library_is_seen():
    """Once torch's newer settings were used, it refuses to say the older one."""
    program = (
        "import torch; torch.backends.mkldnn.matmul.fp32_precision = 'bf16';"
        " from sonde.engine.fingerprint import fingerprint; print(fingerprint()['matmul_precision'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "matmul bf16" in done.stdout
