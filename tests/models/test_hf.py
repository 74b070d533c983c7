"""Checkpoints in Hugging Face layout against the transformers package: logits, gradients, texts, and files that are wrong."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from sonde.core.errors import BadInput, DataUnusable, ResourceFault
from sonde.core.tensors import decode, encode
from sonde.data.text.tokenizer import train
from sonde.models import hf
from sonde.models.bert import Bert
from sonde.models.encoder_decoder import EncoderDecoder
from sonde.models.language_model import LanguageModel
from sonde.nn.block import Style

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

CONFIGS = {
    "gpt2": ("GPT2", dict(vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=19)),
    "gpt2 narrow": (
        "GPT2",
        dict(
            vocab_size=31, n_embd=20, n_layer=3, n_head=4, n_inner=28, n_positions=17, layer_norm_epsilon=1e-3,
            activation_function="relu",
        ),
    ),
    "gpt2 two ends": ("GPT2", dict(vocab_size=29, n_embd=16, n_layer=1, n_head=2, n_positions=18, tie_word_embeddings=False)),
    "llama": (
        "Llama",
        dict(
            vocab_size=41, hidden_size=24, intermediate_size=44, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        ),
    ),
    "llama wide heads": (
        "Llama",
        dict(
            vocab_size=43, hidden_size=20, intermediate_size=36, num_hidden_layers=3, num_attention_heads=4, head_dim=6, rms_norm_eps=1e-3,
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        ),
    ),
    "mamba2": (
        "Mamba2",
        dict(vocab_size=33, hidden_size=20, num_hidden_layers=2, num_heads=5, head_dim=8, state_size=6, n_groups=1, chunk_size=4),
    ),
    "mamba2 groups": (
        "Mamba2",
        dict(
            vocab_size=35, hidden_size=12, num_hidden_layers=3, num_heads=6, head_dim=6, state_size=7, n_groups=3, expand=3, conv_kernel=3,
            chunk_size=8, layer_norm_epsilon=1e-3, time_step_limit=(0.01, 0.5), tie_word_embeddings=True,
        ),
    ),
    "bert": (
        "Bert",
        dict(
            vocab_size=39, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=52, max_position_embeddings=21,
            type_vocab_size=3,
        ),
    ),
    "bert other": (
        "Bert",
        dict(
            vocab_size=34, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=28, max_position_embeddings=18,
            hidden_act="gelu_new", layer_norm_eps=1e-3,
        ),
    ),
    "t5": ("T5", dict(vocab_size=45, d_model=24, d_kv=5, d_ff=40, num_layers=2, num_heads=4)),
    "t5 v1.1": (
        "T5",
        dict(
            vocab_size=47, d_model=20, d_kv=6, d_ff=34, num_layers=3, num_heads=3, feed_forward_proj="gated-gelu",
            tie_word_embeddings=False, relative_attention_num_buckets=12, relative_attention_max_distance=15,
            layer_norm_epsilon=1e-3,
        ),
    ),
}  # fmt: skip
HEADS = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "Mamba2": "Mamba2ForCausalLM", "Bert": "BertForPreTraining"}
HEADS["T5"] = "T5ForConditionalGeneration"


def theirs_of(name: str) -> nn.Module:
    """A model of the transformers package with random numbers in every tensor."""
    kind, config = CONFIGS[name]
    quiet = {key: None for key in ("bos_token_id", "eos_token_id", "pad_token_id")} if kind != "T5" else {}
    model = getattr(transformers, HEADS[kind])(getattr(transformers, f"{kind}Config")(**config, **quiet)).eval()
    torch.manual_seed(len(name))
    if name == "t5 v1.1":  # the package ties these against the published files; they have a head of their own
        model.lm_head.weight = nn.Parameter(torch.zeros(47, 20))
    for key, p in model.named_parameters():
        with torch.no_grad():
            p.copy_(p.exp().log() if key.endswith("A_log") else torch.randn_like(p) * 0.3 + (1 if "norm" in key and p.dim() == 1 else 0))
    return model


def tokens(model: nn.Module, rows: int = 3, length: int = 15) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(4))


def their_logits(name: str, theirs: nn.Module) -> torch.Tensor:
    """The other package's logits."""
    x = tokens(theirs)
    if name.startswith("t5"):
        return theirs(input_ids=x, decoder_input_ids=x[:, 4:]).logits
    if name.startswith("bert"):
        outputs = theirs(input_ids=x, token_type_ids=x % 2)
        return torch.cat([outputs.prediction_logits.flatten(), outputs.seq_relationship_logits.flip(1).flatten()])
    return theirs(input_ids=x).logits


def our_logits(name: str, theirs: nn.Module, ours: nn.Module) -> torch.Tensor:
    """Our logits."""
    x = tokens(theirs)
    if name.startswith("t5"):
        return ours(x, x[:, 4:])
    if name.startswith("bert"):
        outputs = ours(x, x % 2)
        return torch.cat([outputs["tokens"].flatten(), outputs["pair"].flatten()])
    return ours(x)


@pytest.fixture
def read_tensors(tmp_path: Path):
    def make(name: str) -> tuple[nn.Module, Path]:
        theirs, folder = theirs_of(name), tmp_path / "theirs"
        theirs.save_pretrained(folder)
        return theirs, folder

    return make


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_what_they_save_we_load_and_what_we_save_they_load(name, read_tensors, tmp_path):
    theirs, folder = read_tensors(name)
    ours, words = hf.load(folder)
    expected = their_logits(name, theirs)
    assert words is None and expected.std() > 0.05
    # Where weights went is the question, not how they are summed: ours in float64, so that only the roundings of theirs count.
    torch.testing.assert_close(our_logits(name, theirs, copy.deepcopy(ours).double()).float(), expected, rtol=1e-4, atol=1e-4)
    hf.save(ours, tmp_path / "ours")
    back, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(their_logits(name, back.eval()), expected, rtol=1e-5, atol=1e-5)
    again, _ = hf.load(tmp_path / "ours")
    assert all(torch.equal(value, ours.state_dict()[key]) for key, value in again.state_dict().items())
    for config in (json.loads((tmp_path / where / "config.json").read_text()) for where in ("theirs", "ours")):
        assert config["model_type"] == name.split()[0]


def test_gradients_are_theirs(read_tensors):
    theirs, folder = read_tensors("llama")
    ours, _ = hf.load(folder)
    slope = torch.randn(3, 15, 41, generator=torch.Generator().manual_seed(1))
    theirs(input_ids=tokens(theirs)).logits.backward(slope)
    ours(tokens(theirs)).backward(slope)
    block, other = ours.stack.blocks[1], theirs.model.layers[1]
    qkv = torch.cat([getattr(other.self_attn, f"{x}_proj").weight.grad for x in "qkv"])
    torch.testing.assert_close(block.mixer.qkv.weight.grad, qkv, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(block.ffn.gate.weight.grad, other.mlp.gate_proj.weight.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.embedding.weight.grad, theirs.model.embed_tokens.weight.grad, rtol=1e-3, atol=1e-3)


LAYERED = Style("layer", activation="gelu_tanh", bias=True)
OURS = {
    "modern": lambda n: LanguageModel(n, 24, 2, "attention heads=3 groups=1"),
    "modern tied": lambda n: LanguageModel(n, 24, 2, "attention heads=3", tied=True),
    "gpt2": lambda n: LanguageModel(
        n, 20, 2, "attention heads=2 positions=none bias=true", positions="learned", max_positions=40, tied=True, style=LAYERED
    ),
    "mamba2": lambda n: LanguageModel(n, 16, 2, "mamba2 heads=4 states=5", ffn=0, tied=True),
    "divided": lambda n: LanguageModel(n, 24, 2, "attention heads=3", tied=True, style=Style(shrunk=True)),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", OURS)
def test_our_own_models_go_on_with_a_text_alike(name, tmp_path):
    """Scaled embeddings, which the others do not have, are folded into the tensors; the tokenizer goes along."""
    words = train("bpe", ["to be or not to be, that is the question"] * 3, 280)
    torch.manual_seed(3)
    ours = OURS[name](words.size + 5).eval()
    for p in ours.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.25)
    hf.save(ours, tmp_path / "ours", words)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    prompt = words.encode("to be or").long().unsqueeze(0)
    assert other("to be or")["input_ids"] == prompt[0].tolist() and other.eos_token == "</s>"
    torch.testing.assert_close(theirs(input_ids=prompt).logits, ours(prompt), rtol=1e-4, atol=1e-4)
    theirs.generation_config.eos_token_id = None
    generated = theirs.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert generated[0, prompt.shape[1] :].tolist() == greedy(ours, prompt, 20)
    model, back = hf.load(tmp_path / "ours")
    assert back.tokens == words.tokens and greedy(model, prompt, 20) == greedy(ours, prompt, 20)


def greedy(model: LanguageModel, prompt: torch.Tensor, new: int, state=None) -> list[int]:
    generated = []
    for _ in range(new):
        logits, state = model.advance(prompt, state)
        prompt = logits[:, -1:].argmax(-1)
        generated.append(int(prompt))
    return generated


@torch.no_grad()
def test_t5_writes_the_same_greedy_text(read_tensors, tmp_path):
    ours, _ = hf.load(read_tensors("t5")[1])
    hf.save(ours, tmp_path / "ours")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours")
    source = tokens(theirs, 1, 9)
    theirs.generation_config.eos_token_id = None
    generated = theirs.generate(source, max_new_tokens=12, do_sample=False)
    assert generated[0, 1:].tolist() == greedy(ours, torch.zeros(1, 1, dtype=torch.long), 12, ours.begin(source))


def test_files_in_parts_bare_bodies_and_old_names(read_tensors, tmp_path):
    theirs, folder = read_tensors("gpt2")
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 3
    whole = hf.load(folder)[0].state_dict()
    for other in (tmp_path / "parts", bare(theirs, tmp_path / "bare")):
        assert all(torch.equal(value, whole[key]) for key, value in hf.load(other)[0].state_dict().items())
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in theirs_of("bert").state_dict().items()}
    theirs_of("bert").save_pretrained(tmp_path / "bert")
    rewrite(tmp_path / "bert", lambda tensors: {name: old[name].clone() for name in old if "decoder" not in name})
    assert isinstance(hf.load(tmp_path / "bert")[0], Bert)


def bare(theirs: nn.Module, folder: Path) -> Path:
    """The body alone, with a table of the mask beside it as in the published file."""
    theirs.transformer.save_pretrained(folder)
    rewrite(folder, lambda tensors: {**tensors, "h.0.attn.bias": torch.ones(1, 1, 19, 19)})
    return folder


def rewrite(folder: Path, change, name: str = "model.safetensors") -> None:
    path = folder / name
    path.write_bytes(b"".join(encode(change(decode(path.read_bytes())), {"format": "pt"})))


def test_half_precision_and_heads_that_begin_fresh(read_tensors, tmp_path):
    theirs, folder = read_tensors("bert")
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    ours, _ = hf.load(tmp_path / "half")
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    assert hf.load(tmp_path / "half", dtype=torch.bfloat16)[0].pooler.weight.dtype == torch.bfloat16
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if "seq_relationship" not in name})
    with pytest.raises(DataUnusable, match=r"lacks 'cls.seq_relationship.weight'.*fresh=\['pair_head.weight'\]|lacks"):
        hf.load(folder)
    model, _ = hf.load(folder, fresh=["pair_head.*"])
    assert model.pair_head.weight.std() > 0 and all(p.device.type == "cpu" for p in model.parameters())


def first(tensors: dict, change) -> dict:
    name = "transformer.h.1.mlp.c_fc.weight"
    return {**tensors, name: change(tensors[name])}


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: {k: v for k, v in t.items() if "h.1.ln_2.bias" not in k}, "lacks 'transformer.h.1.ln_2.bias'"),
        (lambda t: {**t, "transformer.h.2.ln_1.bias": torch.zeros(24)}, "holds 'transformer.h.2.ln_1.bias', which this model"),
        (lambda t: first(t, lambda x: x.mT.contiguous()), r"'transformer.h.1.mlp.c_fc.weight' as \[96, 24\], config.json says \[24, 96\]"),
        (lambda t: first(t, lambda x: x.to(torch.int8)), "'transformer.h.1.mlp.c_fc.weight' as int8"),
        (lambda t: first(t, lambda x: x.index_fill(0, torch.tensor([3]), torch.nan)), "numbers in 'transformer.h.1.mlp.c_fc.weight'"),
        (lambda t: first(t, lambda x: x.index_fill(1, torch.tensor([0]), -torch.inf)), "not finite as float32"),
        (lambda t: {**t, "lm_head.weight": torch.zeros(37, 24)}, "two different tensors, 'lm_head.weight'"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(change, words, read_tensors):
    _, folder = read_tensors("gpt2")
    rewrite(folder, change)
    with pytest.raises(DataUnusable, match=words) as caught:
        hf.load(folder)
    assert str(folder) in caught.value.where and caught.value.exit_code == 3


@pytest.mark.parametrize(
    "change, kind, words",
    [
        ({"n_embd": None}, DataUnusable, "config.json has no 'n_embd'"),
        ({"n_embd": "wide"}, DataUnusable, "'n_embd' of config.json must be a whole number above 0, not 'wide'"),
        ({"n_layer": 10**12}, DataUnusable, "'n_layer' of config.json must be a whole number"),
        ({"n_layer": 10**8}, DataUnusable, "n_layer = 100,000,000, the checkpoint holds 28 tensors"),
        ({"resid_pdrop": 1.5}, DataUnusable, "'resid_pdrop' of config.json must be a number from 0 to 1, not '1.5'"),
        ({"resid_pdrop": -1}, DataUnusable, "'resid_pdrop' of config.json must be a number from 0 to 1, not '-1'"),
        ({"layer_norm_epsilon": -5}, DataUnusable, "'layer_norm_epsilon' of config.json must be a number of at least 0, not '-5'"),
        ({"n_head": 5}, BadInput, "cannot be divided into 5 heads"),
        ({"model_type": "gpt3"}, BadInput, "models of type 'gpt3' are not supported.*did you mean 'gpt2'"),
        ({"model_type": None}, DataUnusable, "config.json has no 'model_type'"),
        ({"activation_function": "gelu_fast"}, BadInput, "activation_function = 'gelu_fast', which is not supported"),
        ({"scale_attn_by_inverse_layer_idx": True}, BadInput, "scale_attn_by_inverse_layer_idx = True, which is not supported"),
    ],
)
def test_configs_that_do_not_fit(change, kind, words, read_tensors):
    _, folder = read_tensors("gpt2")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(kind, match=words) as caught:
        hf.load(folder)
    assert str(path) in caught.value.where


def test_files_that_are_cut_missing_or_strange(read_tensors, tmp_path):
    _, folder = read_tensors("gpt2")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for cut in (0, 5, 600, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(DataUnusable, match="model.safetensors cannot be read"):
            hf.load(folder)
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(DataUnusable, match="no model.safetensors") as caught:
        hf.load(folder)
    assert "can run code" in caught.value.fix
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(DataUnusable, match="is not a list of files"):
        hf.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataUnusable, match="config.json cannot be read"):
        hf.load(folder)
    with pytest.raises(BadInput, match="no folder 'nowhere'"):
        hf.load(tmp_path / "nowhere")


def test_a_tokenizer_must_fit(read_tensors):
    _, folder = read_tensors("gpt2")
    words = train("bpe", ["abc"], 300)
    (folder / "tokenizer.json").write_text(words.to_json())
    with pytest.raises(BadInput, match=f"the tokenizer has {words.size} tokens, the model knows 37"):
        hf.load(folder)
    (folder / "tokenizer.json").write_text("[1, 2]")
    with pytest.raises(DataUnusable, match="is not a tokenizer.json"):
        hf.load(folder)


def test_a_tokenizer_must_be_the_one_of_the_model(read_tensors, tmp_path):
    own, other = train("char", ["some text"]), train("char", ["zyx"])
    model = LanguageModel(20, 16, 1, "attention heads=2", style="llama")
    hf.save(model, tmp_path / "ours", own)
    assert hf.load(tmp_path / "ours")[1].tokens == own.tokens
    (tmp_path / "ours/tokenizer.json").write_text(other.to_json())
    with pytest.raises(DataUnusable, match="tokenizer.json has other tokens than the model was saved with"):
        hf.load(tmp_path / "ours")
    _, folder = read_tensors("gpt2")  # made by others, who leave no hash
    path = folder / "config.json"
    (folder / "tokenizer.json").write_text(own.to_json())
    for number, fits in ((own.specials["end"], True), (own.specials["pad"], True), (50256, True), (3, False), (own.size, False)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": number}))
        if fits:
            assert hf.load(folder)[1].tokens == own.tokens
        else:
            with pytest.raises(
                DataUnusable, match=f"eos_token_id = {number}, which is not a special token of tokenizer.json, where '</s>' is"
            ):
                hf.load(folder)


def test_numbers_too_large_for_the_precision_asked_for(read_tensors):
    _, folder = read_tensors("gpt2")
    rewrite(folder, lambda t: first(t, lambda x: x + 1e6))
    assert hf.load(folder)[0].training is False
    with pytest.raises(DataUnusable, match="not finite as float16"):
        hf.load(folder, dtype=torch.float16)


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: nn.Linear(2, 2), "no Hugging Face family has models like Linear"),
        (lambda: LanguageModel(9, 8, 1, "gla heads=2"), "no Hugging Face family has models like LanguageModel with mixer 'gla'"),
        (lambda: LanguageModel(9, 8, 1, "attention heads=2 positions=alibi"), "llama checkpoint cannot represent 'alibi' positions"),
        (lambda: LanguageModel(9, 8, 1, "attention heads=2", style="gpt2"), "gpt2 checkpoint cannot represent linear maps without bias"),
        (lambda: EncoderDecoder(9, 8, 1, 2), "t5 checkpoint cannot represent embeddings that are multiplied"),
        (lambda: EncoderDecoder(9, 8, 1, 2, style="t5"), "t5 checkpoint cannot represent attention without"),
        (lambda: Bert(9, 8, 1, "attention heads=2 groups=1", max_positions=4), "bert checkpoint cannot represent grouped keys"),
    ],
)
def test_models_no_checkpoint_can_hold(model, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        hf.save(model(), tmp_path / "folder")
    assert not any(tmp_path.iterdir())


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    from sonde.core import files

    model = OURS["modern"](9)
    model.extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(BadInput, match="cannot represent 'extra'"):
        hf.save(model, tmp_path / "a")
    del model.extra
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    with pytest.raises(BadInput, match="'full' is already there"):
        hf.save(model, tmp_path / "full")

    class Full(files.Disk):
        def fsync(self, fd: int) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "disk", Full())
    with pytest.raises(ResourceFault, match="could not be written"):
        hf.save(model, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    shutil.rmtree(tmp_path / "full")
