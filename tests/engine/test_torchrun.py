"""Started by torchrun, on one machine or on two, a run ends with the bits of the local run with as many processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.api.run import open_run
from sonde.api.training import train
from sonde.runs import checkpoints

ROOT = Path(__file__).resolve().parents[2]
STEPS = 300  # long enough to be killed between the first checkpoint and the last
COMMAND = ["-m", "sonde", "train", "tiny_mlp", "--steps", str(STEPS), "--shards", "4", "--checkpoint-every", "20", "--quiet"]


def torchrun(*options: str, cwd: Path, inside: str | None = None, log: str = "log") -> subprocess.Popen:
    """An agent of torchrun, perhaps inside a network namespace; what it prints goes to a file."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    cwd.mkdir(exist_ok=True)
    with (cwd / log).open("w") as out:
        return subprocess.Popen(
            [*(["ip", "netns", "exec", inside] if inside else []), sys.executable, "-m", "torch.distributed.run", *options],
            cwd=cwd,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def finish(*agents: subprocess.Popen) -> list[int]:
    """Exit codes; an agent that does not end is ended."""
    try:
        return [agent.wait(timeout=200) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with two local processes that all others must equal."""
    path = tmp_path_factory.mktemp("local") / "run"
    train("tiny_mlp", steps=STEPS, shards=4, checkpoint_every=20, processes=2, run=path, quiet=True)
    return path


def assert_same_bits(run: Path, local: Path) -> None:
    assert (run / "metrics.jsonl").read_bytes() == (local / "metrics.jsonl").read_bytes()
    mine, theirs = (checkpoints.path_of(path / "checkpoints", STEPS) for path in (run, local))
    for name in ("model", "optim", "rng"):
        assert (mine / f"{name}.safetensors").read_bytes() == (theirs / f"{name}.safetensors").read_bytes(), name


def test_one_machine(tmp_path: Path, local: Path) -> None:
    here = tmp_path / "here"
    assert finish(torchrun("--nnodes", "1", "--nproc-per-node", "2", *COMMAND, cwd=here)) == [0], (here / "log").read_text()
    (run,) = (here / "runs").iterdir()  # one directory for the job, not one for each process
    assert_same_bits(run, local)


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, str]]]:
    """Two hosts, each (name, address): network namespaces joined by a cable."""
    if shutil.which("ip") is None:
        pytest.skip("the command 'ip' is not installed")
    number = os.getpid() % 250
    namespaces = [(f"sonde-{os.getpid()}-{side}", f"10.231.{number}.{side}") for side in (1, 2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)

    try:
        try:
            for name, _ in namespaces:
                ip("netns", "add", name)
            (first, _), (second, _) = namespaces
            ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
            for name, address in namespaces:
                ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield namespaces
    finally:
        for name, _ in namespaces:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_two_machines(tmp_path: Path, local: Path, hosts: list[tuple[str, str]]) -> None:
    """Each host sees its own disk only; the run is on that of rank 0."""
    folders = [tmp_path / name for name, _ in hosts]
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", hosts[0][1], "--master-port", "29500")
    agents = [
        torchrun(*meet, "--node-rank", str(rank), *COMMAND, cwd=folder, inside=name)
        for rank, ((name, _), folder) in enumerate(zip(hosts, folders, strict=True))
    ]
    assert finish(*agents) == [0, 0], "\n".join((folder / "log").read_text() for folder in folders)
    (run,) = (folders[0] / "runs").iterdir()
    assert_same_bits(run, local)
    assert not (folders[1] / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_two_machines_and_a_killed_worker(tmp_path: Path, local: Path, hosts: list[tuple[str, str]], victim: int) -> None:
    """torchrun starts again from the last checkpoint, in a directory both hosts see."""
    shared = tmp_path / "shared"
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "job")
    meet += ("--rdzv-endpoint", f"{hosts[0][1]}:29400")
    command = [*COMMAND[:1], "--", *COMMAND[1:], "--run", str(shared)]  # the two dashes: torchrun has options that begin with --run
    agents = [
        torchrun(*meet, "--rdzv-conf", f"is_host={rank == 0}", "--local-addr", address, *command, cwd=tmp_path / name, inside=name)
        for rank, (name, address) in enumerate(hosts)
    ]
    try:
        wait_for_checkpoint(shared)
        children = Path(f"/proc/{agents[victim].pid}/task/{agents[victim].pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
    finally:
        codes = finish(*agents)
    assert codes == [0, 0], "\n".join((tmp_path / name / "log").read_text() for name, _ in hosts)
    assert_same_bits(shared, local)
    assert "resume" in [event["event"] for event in open_run(shared).events]


def wait_for_checkpoint(run: Path) -> None:
    end = time.monotonic() + 120
    while not checkpoints.steps(run / "checkpoints"):
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.01)
