"""Token shards: text files of any size -> a folder of token files that are memory-mapped.

    DIR/plan.json             the request: files, tokenizer, options; continuing needs the same
    DIR/tokenizer.json        the tokenizer
    DIR/00000.tokens          concatenated tokens, in the smallest integer type that holds them
    DIR/00000.documents       for each document that ends here: its end (in tokens) and a hash of its tokens, 8 bytes each
    DIR/00000.json            written last: sizes and checksums of the two
    DIR/manifest.json         all of these together, written when every shard is complete

A shard is a range of one file, and its bytes depend on the text, the tokenizer and the options alone.  So shards are made in
parallel, a run that was killed keeps the complete ones, and the result equals that of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ...core.errors import BadInput, DataUnusable, ResourceFault
from ...core.files import Lock, disk, dump_json, make_folder, read_json, remove_quietly, replace_file, sha256_file, write_file
from ..formats import PACKED, report_errors
from .tokenizer import KINDS, Tokenizer, TokenKind, load, save, train

FORMAT = 1
BLOCK = 1 << 20
"""bytes of text read and encoded at a time"""
LONGEST = 1 << 30
"""bytes a single line or paragraph may have"""

Documents = Literal["file", "line", "paragraph"]
CUTS = {"file": re.compile(rb"[^\s](?= [^\s])"), "line": re.compile(rb"\n"), "paragraph": re.compile(rb"\n[ \t\r]*\n")}
"""where a text may be split: between two words, after a line, after an empty line"""


@dataclass(frozen=True)
class ShardOptions:
    """How text becomes shards; the same for every shard."""

    tokenizer: str = "bpe"
    """byte, char, words, bpe, wordpiece, unigram, or the path of a tokenizer.json"""
    size: int = 8000
    """largest vocabulary of a tokenizer that is trained"""
    documents: Documents = "file"
    """unit of a document: a file, a line or a paragraph (up to an empty line)"""
    shard: int = 16 << 20
    """bytes of text per shard; a compressed file makes one"""
    specials: tuple[str, ...] = ("pad", "unknown", "end")


@dataclass(frozen=True)
class FileRange:
    """The part of a file for one shard; `stop` 0 means its end."""

    name: str
    path: str
    start: int
    stop: int
    last: bool
    """the file ends here, and so does a document"""


def prepare(
    files: Sequence[Path], out: Path, options: ShardOptions, processes: int = 1, progress: Callable[[int, int], None] | None = None
) -> dict:
    """Make the missing shards and return the manifest; `progress(done, total)` is called with bytes of text."""
    plan = _plan(files, options)
    lock = _lock_folder(out, plan)
    try:
        tokenizer = _tokenizer(files, out, options)
        jobs = [job for file in files for job in _file_ranges(file, options)]
        sizes = [_bytes(job) for job in jobs]
        records: list[Any] = [_complete_record(out, number) for number in range(len(jobs))]
        done = sum(size for size, record in zip(sizes, records) if record)
        if progress:
            progress(done, sum(sizes))
        missing = [number for number, record in enumerate(records) if record is None]
        for number, record in _make_shards(missing, jobs, out, options, processes):
            records[number], done = record, done + sizes[number]
            if progress:
                progress(done, sum(sizes))
        return _finish(out, records, tokenizer)
    except OSError as error:
        raise ResourceFault(
            f"the shards cannot be written: {error.strerror or error}",
            where=str(out),
            last_good="finished shards are kept",
            fix="free some disk space and give the same command again",
        ) from error
    finally:
        lock.release()


def texts(files: Iterable[Path]) -> Iterator[str]:
    """All text in blocks that end between words, to train a tokenizer."""
    for file in files:
        for text, _ in _blocks(FileRange(file.name, str(file), 0, 0, True), "file"):
            yield text


def _plan(files: Sequence[Path], options: ShardOptions) -> dict:
    if not files:
        raise BadInput("there is no file to tokenize", fix="give one or more text files")
    entries = []
    for file in files:
        if not file.is_file():
            raise BadInput(f"no file '{file}'", fix="give text files, plain or compressed as .gz, .xz or .bz2")
        about = file.stat()
        entries.append({"name": file.name, "bytes": about.st_size, "changed": about.st_mtime_ns})
    plan = {"format": FORMAT, "files": entries, **asdict(options)}
    return {**plan, "specials": list(options.specials)}


def _lock_folder(out: Path, plan: dict) -> Lock:
    """Lock the folder for this process and write its plan, or check that it has the same plan."""
    there = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if there and not (out / "plan.json").is_file() and (not out.is_dir() or {one.name for one in out.iterdir()} - {".lock"}):
        raise BadInput(f"'{out}' is not empty and not a token folder", fix="choose a new or empty folder")
    make_folder(out)
    lock = Lock(out / ".lock", "sonde data tokens")
    try:
        if not (out / "plan.json").is_file():
            replace_file(out / "plan.json", dump_json(plan))
        elif (old := read_json(out / "plan.json")) != plan:
            differs = next((name for name in plan if not isinstance(old, dict) or old.get(name) != plan[name]), "plan")
            reason = "the text files are different, or changed" if differs == "files" else f"it was started with another '{differs}'"
            raise BadInput(f"'{out}' cannot be continued: {reason}", fix="choose another --out, or remove this folder to start over")
    except BaseException:
        lock.release()
        raise
    return lock


def _tokenizer(files: Sequence[Path], out: Path, options: ShardOptions) -> Tokenizer:
    """The tokenizer of the folder: the saved one, else the one given, else one trained on the text."""
    path = out / "tokenizer.json"
    if not path.is_file():
        tokenizer = (
            train(cast(TokenKind, options.tokenizer), texts(files), options.size, options.specials)
            if options.tokenizer in KINDS
            else load(options.tokenizer)
        )
        save(tokenizer, path)
    return load(path)


def _file_ranges(file: Path, options: ShardOptions) -> Iterator[FileRange]:
    """The parts of a file for one shard each; a start depends on the text around it alone."""
    size = file.stat().st_size
    if file.suffix.lower() in PACKED or size <= options.shard:
        yield FileRange(file.name, str(file), 0, 0, True)
        return
    start = 0
    with open(file, "rb") as text:
        for near in range(options.shard, size, options.shard):
            stop = _cut_after(text, near, CUTS[options.documents], size)
            if start < stop < size:
                yield FileRange(file.name, str(file), start, stop, options.documents != "file")
                start = stop
    yield FileRange(file.name, str(file), start, size, True)


def _cut_after(text: Any, near: int, cut: re.Pattern[bytes], size: int) -> int:
    text.seek(near)
    seen = b""
    while block := text.read(1 << 16):
        seen += block
        match = cut.search(seen)
        if match:
            return near + match.end()
    return size


def _bytes(job: FileRange) -> int:
    return (job.stop or Path(job.path).stat().st_size) - job.start


def _make_shards(
    numbers: Sequence[int], jobs: Sequence[FileRange], out: Path, options: ShardOptions, processes: int
) -> Iterator[tuple[int, dict]]:
    make = partial(_shard, out=out, how=options.documents)
    if processes < 2 or len(numbers) < 2:
        tokenizer = load(out / "tokenizer.json")
        for number in numbers:
            yield number, make(number, jobs[number], tokenizer=tokenizer)
        return
    context = get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(min(processes, len(numbers)), context, _load_worker_tokenizer, (str(out / "tokenizer.json"),)) as pool:
        futures = {pool.submit(make, number, jobs[number]): number for number in numbers}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_WORKER_TOKENIZER: list[Tokenizer] = []
"""the tokenizer of a worker process"""


def _load_worker_tokenizer(path: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per process
    _WORKER_TOKENIZER.append(load(path))


def _shard(number: int, job: FileRange, *, out: Path, how: Documents, tokenizer: Tokenizer | None = None) -> dict:
    """Write one shard: both files under temporary names, renamed, then the record that completes it."""
    tokenizer = tokenizer or _WORKER_TOKENIZER[0]
    end, kind = tokenizer.specials.get("end"), np.dtype(dtype(tokenizer.size)).newbyteorder("<")
    ends: list[tuple[int, int]] = []
    tokens = 0

    def chunks() -> Iterator[bytes]:
        nonlocal tokens
        digest = hashlib.blake2b(digest_size=8)
        has_tokens = False
        for text, parts in _blocks(job, how):
            values, bounds = tokenizer.encode_all(parts if how != "file" else [text])
            row = values.numpy().astype(kind)
            for i in range(len(bounds) - 1):
                part = row[int(bounds[i]) : int(bounds[i + 1])].tobytes()
                digest.update(part)
                tokens += len(part) // kind.itemsize
                has_tokens = has_tokens or bool(part)
                yield part
                if how != "file" and has_tokens:
                    yield from finish(digest)
                    digest, has_tokens = hashlib.blake2b(digest_size=8), False
        if how == "file" and job.last and (has_tokens or job.start):
            yield from finish(digest)

    def finish(digest: Any) -> Iterator[bytes]:
        nonlocal tokens
        if end is not None:
            tokens += 1
            yield np.array([end], kind).tobytes()
        ends.append((tokens, int.from_bytes(digest.digest(), "little")))

    record: dict[str, Any] = {"file": job.name, "start": job.start, "stop": job.stop}
    record["tokens.sha256"] = _write_atomically(out / f"{number:05d}.tokens", _gather(chunks()))
    record["documents.sha256"] = _write_atomically(out / f"{number:05d}.documents", [np.array(ends, "<u8").reshape(-1, 2).tobytes()])
    record |= {"tokens": tokens, "documents": len(ends)}
    replace_file(out / f"{number:05d}.json", dump_json(record))
    return record


def _gather(chunks: Iterable[bytes], minimum: int = 1 << 20) -> Iterator[bytes]:
    """Join small chunks, so that a short line does not cost a write."""
    pending, size = [], 0
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size >= minimum:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)


def _write_atomically(path: Path, chunks: Iterable[bytes]) -> str:
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    remove_quietly(temporary)
    try:
        _, sha256 = write_file(temporary, chunks)
        disk.rename(temporary, path)
        disk.fsync_directory(path.parent)
    except BaseException:
        remove_quietly(temporary)
        raise
    return sha256


def _complete_record(out: Path, number: int) -> dict | None:
    """The record of a shard if it exists and both files have its checksums."""
    name = f"{number:05d}"
    try:
        record = read_json(out / f"{name}.json")
        same = all(sha256_file(out / f"{name}.{part}") == record[f"{part}.sha256"] for part in ("tokens", "documents"))
    except (DataUnusable, OSError, KeyError, TypeError):
        return None
    return record if same else None


def _finish(out: Path, records: list[dict], tokenizer: Tokenizer) -> dict:
    for left_over in out.glob(".tmp-*"):  # from a run that was killed
        remove_quietly(left_over)
    manifest = {
        "format": FORMAT,
        "tokenizer.sha256": sha256_file(out / "tokenizer.json"),
        "dtype": dtype(tokenizer.size),
        "tokens": sum(record["tokens"] for record in records),
        "documents": sum(record["documents"] for record in records),
        "shards": records,
    }
    if not manifest["tokens"]:
        raise DataUnusable("the files hold no text", where=str(out), fix="give files that are not empty")
    replace_file(out / "manifest.json", dump_json(manifest))
    return manifest


def dtype(size: int) -> str:
    """The smallest integer type that holds every token."""
    return "uint16" if size <= 1 << 16 else "uint32"


def _blocks(job: FileRange, how: Documents) -> Iterator[tuple[str, list[str]]]:
    """The text of a job in blocks that end where a document may end, each with its documents (none if a document is a file)."""
    rest, offset = b"", job.start
    for block in _read(job):
        rest += block
        cut = _last(CUTS[how], rest, len(rest) - len(block))
        if cut is None:
            if len(rest) > LONGEST:
                raise BadInput(
                    f"'{job.name}' has a {how} of more than {LONGEST >> 30} GiB at byte {offset}", fix="cut it into smaller ones"
                )
            continue
        yield _decode_documents(rest[:cut], how, job, offset)
        offset, rest = offset + cut, rest[cut:]
    if rest:
        yield _decode_documents(rest, how, job, offset)


def _last(cut: re.Pattern[bytes], text: bytes, near: int) -> int | None:
    """End of the last separator in a text; text before `near` was searched before."""
    for start in (max(len(text) - 4096, 0), max(near - 2, 0)):
        if ends := [match.end() for match in cut.finditer(text, start)]:
            return ends[-1]
    return None


def _decode_documents(data: bytes, how: Documents, job: FileRange, offset: int) -> tuple[str, list[str]]:
    try:
        text = data.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"'{job.name}' is not UTF-8 text: byte {offset + error.start} is 0x{data[error.start]:02x}", fix="save it as UTF-8"
        ) from error
    if how == "file":
        return text, []
    parts = text.split("\n") if how == "line" else re.split(r"\n[ \t\r]*\n", text)
    stripped = (part.rstrip("\r") if how == "line" else part.strip("\r\n") for part in parts)
    return text, [part for part in stripped if part.strip()]


def _read(job: FileRange) -> Iterator[bytes]:
    """Blocks of a job, decompressed if the file is compressed."""
    path = Path(job.path)
    unpack = PACKED.get(path.suffix.lower())
    with report_errors(path, "cannot be read"), (unpack or open)(path, "rb") as file:
        if job.start:
            file.seek(job.start)
        left = (job.stop or (1 << 62)) - job.start
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield block
