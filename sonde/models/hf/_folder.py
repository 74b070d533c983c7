"""A folder in Hugging Face layout <-> a model and its tokenizer.  Everything is checked before the first tensor is read.

config.json                    what the model is
model.safetensors              its tensors, or model.safetensors.index.json and several files it names
tokenizer.json                 its tokenizer, if it has one
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ...core import files, registry
from ...core.errors import BadInput, DataUnusable, ResourceFault, nearest
from ...core.tensors import Stored, encode, encoded_size
from ...data.text import tokenizer as tokenizers
from ...data.text.tokenizer import Tokenizer
from ...nn.mixers import Mixer
from ._layout import Fields, TensorRow, owner

REGISTRY = "models.hf"
CONFIG, WEIGHTS, INDEX, WORDS = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
OWN = "sonde_tokenizer"
"""field of a config.json with a hash of the tokens the model was saved with"""
IDS = {"start": "bos_token_id", "end": "eos_token_id", "pad": "pad_token_id"}
MARKS = {"start": "bos", "end": "eos", "pad": "pad", "unknown": "unk", "mask": "mask", "sep": "sep", "cls": "cls"}


def load(folder: str | Path, fresh: Sequence[str] = (), dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tokenizer | None]:
    """The model of a folder, ready for use, and its tokenizer if there is one.

    Args:
        fresh: patterns of our tensors that may be missing and are then initialized at random, such as 'pair_head.*'
        dtype: of the tensors, whatever the file has
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput(f"there is no folder '{folder.name}'", where=str(folder.parent), fix="give one with a config.json")
    if not (folder / CONFIG).exists():
        lacks = " and no ".join([CONFIG, *([] if any((folder / name).exists() for name in (WEIGHTS, INDEX)) else [WEIGHTS])])
        message = f"'{folder.name}' is not a checkpoint in Hugging Face layout: it has no {lacks}"
        raise BadInput(message, where=str(folder.parent), fix="give a folder with both; `sonde hf save RUN FOLDER` writes one")
    config = read_config(folder / CONFIG)
    family = _family(config)
    stored = _Files(folder)
    config.tensors = len(stored.home)
    model = build(family, config, "cpu" if fresh else "meta")
    words = tokenizers.load(folder / WORDS) if (folder / WORDS).is_file() else None
    if words is not None:
        tokenizers.check_fits(words, model.vocabulary, str(folder / WORDS))  # type: ignore[arg-type]
        _belongs(words, config, folder / WORDS)
    rows = _match_rows(family, model, stored, fresh)
    for row in rows:
        module, leaf = owner(model, row.ours)
        values = row.take({name: stored.read(name) for name in row.theirs}, dtype)
        if not bool(values.isfinite().all()):
            raise _bad_numbers(stored, row, dtype)
        setattr(module, leaf, nn.Parameter(values))
    return model.to(dtype).eval(), words


def save(model: nn.Module, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder that `load` and the transformers package read; atomically."""
    family = next((one for one in families().values() if one.owns(model)), None)
    if family is None:
        mixer = next((part for part in model.modules() if isinstance(part, Mixer)), None)
        detail = type(model).__name__ + (f" with mixer '{type(mixer).__module__.rpartition('.')[2]}'" if mixer is not None else "")
        raise BadInput(f"no Hugging Face family has models like {detail}", where="save", fix=f"there are {', '.join(families())}")
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"'{folder.name}' is already there", where=str(folder.parent), fix="choose a new folder")
    kind = family.__name__.rpartition(".")[2]
    config = {"model_type": kind, "architectures": [family.ARCHITECTURE], **family.describe(model)}
    written = {CONFIG: config | _numbers(config, tokenizer)}
    if tokenizer is not None:
        tokenizers.check_fits(tokenizer, config["vocab_size"], "save")
        written[CONFIG][OWN] = _hash(tokenizer)
        marks = {f"{MARKS[name]}_token": tokenizer.tokens[n] for name, n in tokenizer.specials.items() if name in MARKS}
        written["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    own = dict(model.named_parameters())
    rows: list[TensorRow] = family.table(model)
    extra = own.keys() - {row.ours for row in rows}
    if extra:
        detail = f"a {kind} checkpoint cannot represent '{sorted(extra)[0]}'"
        raise BadInput(detail, where="save", fix="merge or remove adapters before saving")
    tensors = {name: part for row in rows for name, part in row.give(own[row.ours].detach()).items()}
    texts = {name: files.dump_json(value) for name, value in written.items()}
    if tokenizer is not None:
        texts[WORDS] = tokenizer.to_json().encode()
    aside = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    files.remove_quietly(aside)
    try:
        files.make_folder(folder.parent)
        if files.disk.free_bytes(folder.parent) < (need := encoded_size(tensors) + (1 << 16)):
            raise OSError(28, f"{need:,} bytes do not fit")
        files.disk.mkdir(aside)
        files.write_file(aside / WEIGHTS, encode(tensors, {"format": "pt"}))
        for name, text in texts.items():
            files.write_file(aside / name, [text])
        files.disk.fsync_directory(aside)
        files.disk.rename(aside, folder)
        files.disk.fsync_directory(folder.parent)
    except OSError as error:
        files.remove_quietly(aside)
        raise ResourceFault(
            f"the model could not be written: {error.strerror or error}", where=str(folder), fix="free disk space"
        ) from error
    except BaseException:
        files.remove_quietly(aside)
        raise


def families() -> dict[str, ModuleType]:
    """The families by name: the files beside this one."""
    return {name: registry.load(REGISTRY, name) for name in registry.names(REGISTRY)}


def build(family: ModuleType, config: Fields, device: str = "meta") -> nn.Module:
    """The model that a config.json describes, by default on the meta device."""
    try:
        with torch.device(device):
            return family.build(config)
    except BadInput as error:  # sizes that do not fit each other
        raise error if error.where == config.where else BadInput(error.what, where=config.where, fix=error.fix) from error
    except (RuntimeError, OverflowError) as error:
        message = f"config.json describes no model: {str(error).splitlines()[0][:120]}"
        raise DataUnusable(message, where=config.where, fix="restore the file") from error


def read_config(path: Path) -> Fields:
    """The fields of a config.json.  Some contain Infinity, which is not JSON, so the strict reader is not used."""
    try:
        config = json.loads(files.read_file(path, files.JSON_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise DataUnusable(message, where=str(path), fix="give a folder in Hugging Face layout") from error
    if not isinstance(config, dict):
        raise DataUnusable(f"{path.name} is not a table of fields", where=str(path), fix="restore the file")
    return Fields(config, str(path))


def _family(config: Fields) -> ModuleType:
    kind = config.values.get("model_type")
    if not isinstance(kind, str):
        raise DataUnusable("config.json has no 'model_type'", where=config.where, fix="restore the file")
    known = registry.names(REGISTRY)
    if kind not in known:
        raise BadInput(f"models of type '{kind[:60]}' are not supported", where=config.where, fix=nearest(kind, known))
    return registry.load(REGISTRY, kind)


class _Files:
    """The tensors of a folder, by name, each in its file until it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: dict[str, Stored] = {}
        self.home: dict[str, str] = {}
        for name in self._read_index():
            self.parts[name] = self._open(folder / name)
            for tensor in self.parts[name]:
                if tensor in self.home:
                    raise DataUnusable(f"tensor '{tensor}' is in two files", where=str(folder / name), fix="restore the files")
                self.home[tensor] = name
        self.alias = {name: name for name in self.home}

    def rename(self, full: dict[str, str]) -> None:
        """Rename tensors: full name -> the name in the file."""
        self.alias = full

    def where(self, name: str) -> str:
        return str(self.folder / self.home[self.alias[name]])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.parts[self.home[self.alias[name]]].shape(self.alias[name])

    def dtype(self, name: str) -> torch.dtype:
        return self.parts[self.home[self.alias[name]]].dtype(self.alias[name])

    def read(self, name: str) -> torch.Tensor:
        return self.parts[self.home[self.alias[name]]][self.alias[name]]

    def _read_index(self) -> list[str]:
        if (self.folder / WEIGHTS).exists():
            return [WEIGHTS]
        if not (self.folder / INDEX).exists():
            other = next(iter(sorted(path.name for path in self.folder.glob("*.bin"))), "")
            fix = f"'{other}' can run code when it is read; save it as safetensors" if other else "give a folder in Hugging Face layout"
            raise DataUnusable(f"there is no {WEIGHTS}", where=str(self.folder), fix=fix)
        table = files.read_json(self.folder / INDEX)
        shards = table.get("weight_map") if isinstance(table, dict) else None
        names = sorted(set(shards.values())) if isinstance(shards, dict) and all(isinstance(x, str) for x in shards.values()) else []
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise DataUnusable(f"{INDEX} is not a list of files", where=str(self.folder / INDEX), fix="restore the file")
        return names

    @staticmethod
    def _open(path: Path) -> Stored:
        try:
            with open(path, "rb") as file:
                return Stored(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError) as error:
            message = f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise DataUnusable(message, where=str(path), fix="fetch the file again") from error


def _match_rows(family: ModuleType, model: nn.Module, stored: _Files, fresh: Sequence[str]) -> list[TensorRow]:
    """Rows whose tensors are in the file; an error names the first that is missing, unknown, of the wrong shape or a wrong copy."""
    own = dict(model.named_parameters())
    rows: list[TensorRow] = family.table(model)
    wanted = {name: part for row in rows for name, part in row.give(own[row.ours].detach().to("meta")).items()}
    _rename(family, stored)
    repeated = family.copies(model)
    for name in stored.alias:
        if name not in wanted and name not in repeated and not any(re.fullmatch(pattern, name) for pattern in family.SILENT):
            raise _unfit(f"holds '{stored.alias[name]}', which this model does not have", stored.where(name))
    for name, origin in getattr(family, "INSTEAD", {}).items():
        if name in wanted and origin in stored.alias:
            stored.alias.setdefault(name, stored.alias[origin])
    present_rows = [row for row in rows if all(name in stored.alias for name in row.theirs)]
    for row in rows:
        missing = next((name for name in row.theirs if name not in stored.alias), None)
        if missing is not None and not any(fnmatchcase(row.ours, pattern) for pattern in fresh):
            raise _unfit(f"lacks '{missing}'", str(stored.folder), f"; or let it begin at random with fresh=['{row.ours}']")
    for name in (name for row in present_rows for name in row.theirs):
        if stored.shape(name) != tuple(wanted[name].shape):
            message = f"has '{stored.alias[name]}' as {list(stored.shape(name))}, config.json says {list(wanted[name].shape)}"
            raise _unfit(message, stored.where(name))
        if not (kind := stored.dtype(name)).is_floating_point:
            raise _unfit(f"has '{stored.alias[name]}' as {str(kind).removeprefix('torch.')}, not as real numbers", stored.where(name))
    for name, origin in repeated.items():
        if name in stored.alias and origin in stored.alias and not torch.equal(stored.read(name), stored.read(origin)):
            raise _unfit(f"has two different tensors, '{name}' and '{origin}', which are one in this model", stored.where(name))
    return present_rows


def _rename(family: ModuleType, stored: _Files) -> None:
    """Full names as in the model with a head: files of the body alone leave out the prefix."""
    bare = not any(name.startswith(family.PREFIX) for name in stored.home)
    full = {}
    for name in stored.home:
        new = family.PREFIX + name if bare else name
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", new))
        full[new] = name
    stored.rename(full)


def _unfit(what: str, where: str, more: str = "") -> DataUnusable:
    return DataUnusable(f"the checkpoint {what}", where=where, fix="use the config.json and the tensors of one model" + more)


def _bad_numbers(stored: _Files, row: TensorRow, dtype: torch.dtype) -> DataUnusable:
    """Refuse values that are not finite in this dtype."""
    name = next((name for name in row.theirs if not stored.read(name).to(dtype).isfinite().all()), row.theirs[0])
    message = f"the checkpoint has numbers in '{stored.alias[name]}' that are not finite as {str(dtype).removeprefix('torch.')}"
    return DataUnusable(message, where=stored.where(name), fix="fetch the file again, or save a model that has not diverged")


def _hash(tokenizer: Tokenizer) -> str:
    """A hash of the tokens in order, which other programs keep when they write a tokenizer.json in their own way."""
    return hashlib.sha256("\0".join(tokenizer.tokens).encode()).hexdigest()


def _belongs(words: Tokenizer, config: Fields, path: Path) -> None:
    """Refuse a tokenizer of another model: other tokens than at saving, or plain ones where config.json has special ones."""
    if config.has(OWN) and config.values[OWN] != _hash(words):
        fix = f"restore its own, or remove '{OWN}' from config.json where you changed it on purpose"
        raise DataUnusable("tokenizer.json has other tokens than the model was saved with", where=str(path), fix=fix)
    for name, field in IDS.items():
        number, own = config.values.get(field), words.specials.get(name)
        if type(number) is not int or own is None or not 0 <= number < config.integer("vocab_size"):
            continue  # neither program uses these fields, so files hold any value
        # A model may end with another of its special tokens, such as that of a turn in a dialogue, but not with plain text.
        if number >= words.size or not re.fullmatch(r"<.+>|\[.+\]", words.tokens[number]):
            text = (
                f"config.json has {field} = {number}, which is not a special token of tokenizer.json, where '{words.tokens[own]}' is {own}"
            )
            raise DataUnusable(text, where=str(path), fix=f"use the files of one model, or set {field} to {own}")


def _numbers(config: dict[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Ids of special tokens, which generation needs."""
    specials = {} if tokenizer is None else tokenizer.specials
    token_ids: dict[str, Any] = {field: specials.get(name) for name, field in IDS.items()}
    if config.get("is_encoder_decoder"):
        token_ids["pad_token_id"] = specials.get("pad", 0)
        token_ids["decoder_start_token_id"] = specials.get("start", token_ids["pad_token_id"])
    return token_ids
