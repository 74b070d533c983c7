"""The contract of a mixer.  Its definition is one token at a time through the state; all other forms must equal it.

B batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..core import registry
from ..core.options import options_of
from ..core.tensors import decode, encode
from ..nn.mixers import Mixer, Recurrent
from ..nn.recurrence import State, record_recurrences
from ..nn.spans import Spans
from ._contract import Plugin, agree, agrees_in_bf16, draw, load, plugin_name, require, required_function, run, smooth

B = 2
SIZES = (5, 0, 33, 1, 18)
"""lengths of sequences in one batch"""
LENGTHS = (1, 2, 63, 64, 65, 100)
"""around the sizes of chunks"""
PIECES = ((1, 37, 62), (64, 36), (99, 1), (30, 2, 1, 67))
MakeMixer = Callable[..., Mixer]
"""makes the tiny mixer of a dtype, float64 where none is given"""


def check_mixer(plugin: Plugin) -> None:
    """Check a mixer, given by name, by the path of its file or as a module; `tiny()` in it returns a small mixer."""
    module = load("nn.mixers", plugin)
    run(plugin_name(module), [declares_what_it_is, the_rule_is_what_runs], module)
    run(plugin_name(module), CHECKS, fresh(module))


def fresh(module: ModuleType) -> MakeMixer:
    """A function that makes the tiny mixer, with noise on all parameters so that none is at a special value such as zero."""

    def make(dtype: torch.dtype = torch.float64) -> Mixer:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            mix: Mixer = required_function(module, "tiny")()
            with torch.no_grad():
                for parameter in mix.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return mix.to(dtype)

    return make


def declares_what_it_is(module: ModuleType) -> None:
    """Its file holds one final class named like the file, with docstrings, and what it declares is there."""
    mix, name = required_function(module, "tiny")(), plugin_name(module)
    kind = type(mix)
    require(isinstance(mix, Mixer), f"tiny() returns {kind.__name__}, which does not derive from Mixer")
    require(kind in registry.classes_in(module, Mixer), f"tiny() returns {kind.__name__}, which the file does not define")
    require(getattr(kind, "__final__", False), f"{kind.__name__} is not marked @final")
    require(kind.__name__.lower() == name.replace("_", "").lower(), f"{kind.__name__} is not named like its file")
    require(bool(kind.__doc__) and bool(module.__doc__), "the file or the class has no docstring")
    require(bool(mix.forms()) and isinstance(mix.causal, bool), "it has no forms, or `causal` is not a bool")
    require(isinstance(kind.no_decay, tuple), f"no_decay must be a tuple of names, not {kind.no_decay!r}")
    known = options_of(kind)
    require("width" in known, "its constructor has no option 'width'")
    require(not kind.length_option or kind.length_option in known, f"length_option '{kind.length_option}' is not an option of it")
    state = warm(mix)
    missing = [tensor for tensor in kind.grows if state is not None and tensor not in state]
    require(not missing, f"grows names {', '.join(missing)}, which its state does not hold")


def available_forms(mix: Mixer) -> list[str]:
    """Forms that can run here, the definition first."""
    forms = [form for form in mix.forms() if form != "fused" or kernels.available()]
    return sorted(forms, key=lambda form: form != "step")


def run_pieces(mix: Mixer, x: Tensor, state: State | None, pieces: Sequence[int], forms: Sequence[str]) -> tuple[Tensor, State]:
    """Output and final state of x in pieces, cycling through the forms."""
    outs = []
    for part, form in zip(x.split(list(pieces), 1), cycle(forms)):
        y, state = mix.use(form)(part, state)
        outs.append(y)
    assert state is not None
    return torch.cat(outs, 1), state


def warm(mix: Mixer, n: int = B) -> State | None:
    """A state after some inputs; None for a mixer without state."""
    if not mix.causal:
        return None
    with torch.no_grad():
        return mix.use("auto")(draw(n, 3, mix.width, seed=5).to(next(mix.parameters())))[1]


def state_contents(mix: Mixer, state: State) -> dict[str, Tensor]:
    """The contents of a state: its tensors, or, where these may have unused space, the next outputs from it."""
    if isinstance(mix, Recurrent) or not state:
        return {f"state {name}": s for name, s in state.items()}
    return {"state": mix(draw(len(next(iter(state.values()))), 3, mix.width, seed=6).to(next(mix.parameters())), state)[0]}


def results(mix: Mixer, x: Tensor, state: State | None, call: Callable[..., tuple[Tensor, State]]) -> dict[str, Tensor]:
    """Output, final state, and gradients of the input, every parameter and the initial state for a fixed loss of both."""
    x = x.clone().requires_grad_()
    state = None if state is None else {name: s.clone().requires_grad_(smooth(s)) for name, s in state.items()}
    y, end = call(x, state)
    ends = state_contents(mix, end)
    loss = torch.zeros((), dtype=torch.float64)
    for out in [y, *(s for s in ends.values() if smooth(s) and s.requires_grad)]:
        out = torch.view_as_real(out) if out.is_complex() else out
        loss = loss + (out * draw(*out.shape, seed=out.dim()).to(out)).sum()
    leaves = {"x": x, **dict(mix.named_parameters()), **{f"first {name}": s for name, s in (state or {}).items() if smooth(s)}}
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    gradients = {f"d {name}": torch.zeros_like(leaf) if g is None else g for (name, leaf), g in zip(leaves.items(), grads)}
    return {name: tensor.detach() for name, tensor in {"y": y, **ends, **gradients}.items()}


def one_pass(mix: Mixer, form: str) -> Callable[..., tuple[Tensor, State]]:
    """A call of the mixer in one form."""
    return lambda x, state: mix.use(form)(x, state)


# Forms --------------------------------------------------------------------------------------------------------------


def forms_are_equal(make: MakeMixer, lengths: Sequence[int] = LENGTHS) -> None:
    """All its forms give the same outputs, final state and gradients, from a state after some inputs."""
    for length in lengths:
        mix, narrow = make(), make(torch.float32)
        x, state = draw(B, length, mix.width), warm(mix)
        first, *others = available_forms(mix)
        expected = results(mix, x, state, one_pass(mix, first))
        bad = [name for name, right in expected.items() if not right.isfinite().all()]
        require(not bad, f"form '{first}' at {length} tokens: '{', '.join(bad)}' is not finite")
        for form in others:
            agree(results(mix, x, state, one_pass(mix, form)), expected, 1e-9, f"form '{form}' at {length} tokens")
        # The float64 mixer on float32 values: the difference is the error of float32 arithmetic alone.
        mix.load_state_dict(narrow.state_dict())
        x, state = x.float(), warm(narrow)
        expected = results(mix, x.double(), None if state is None else _to_float64(state), one_pass(mix, others[0] if others else first))
        for form in [first, *others] if length < 100 else others:
            agree(results(narrow, x, state, one_pass(narrow, form)), expected, 1e-4, f"form '{form}' at {length} tokens in float32")


def _to_float64(state: State) -> State:
    return {name: s.to(torch.complex128 if s.is_complex() else torch.float64) if smooth(s) else s for name, s in state.items()}


def one_pass_equals_token_by_token(make: MakeMixer) -> None:
    """One pass equals token by token through the state, gradients included."""
    mix = make()
    if not mix.causal:
        return
    x, first = draw(B, 33, mix.width), available_forms(mix)[0]
    for state in (None, warm(mix)):
        expected = results(mix, x, state, lambda x, state: run_pieces(mix, x, state, [1] * 33, [first]))
        agree(results(mix, x, state, one_pass(mix, first)), expected, 1e-9, f"form '{first}' in one pass")


def pieces_equal_one_pass(make: MakeMixer, pieces: Sequence[Sequence[int]] = PIECES) -> None:
    """A sequence in pieces, with the state passed on, equals one pass, whatever the form of each piece."""
    mix = make()
    if not mix.causal:
        return
    x, forms = draw(B, 100, mix.width), available_forms(mix)
    with torch.no_grad():
        y, state = mix.use(forms[0])(x)
        for sizes in pieces:
            for i in range(len(forms)):
                turns = forms[i:] + forms[:i]
                out, end = run_pieces(mix, x, None, sizes, turns)
                label = f"pieces of {', '.join(map(str, sizes))} tokens by {', '.join(turns)}"
                agree({"y": out, **state_contents(mix, end)}, {"y": y, **state_contents(mix, state)}, 1e-9, label)


def the_future_does_not_leak(make: MakeMixer) -> None:
    """No output depends on a later input, and every one on its own."""
    for dtype in (torch.float64, torch.float32):
        mix = make(dtype)
        if not mix.causal:
            return
        x = draw(1, 70, mix.width).to(dtype)
        with torch.no_grad():
            for form in available_forms(mix):
                y, _ = mix.use(form)(x)
                for t in (1, 16, 33, 64, 69):
                    other, _ = mix(torch.cat([x[:, :t], 3 * draw(1, 70 - t, mix.width, seed=8).to(dtype)], 1))
                    few = torch.finfo(dtype).eps * (100 if form != "convolution" else 1e4)  # an FFT rounds
                    agree({"y": other[:, :t]}, {"y": y[:, :t]}, few, f"form '{form}', inputs changed from token {t} on")
                    require(not torch.equal(other[:, t], y[:, t]), f"form '{form}': output {t} does not depend on input {t}")


# Sequences of different lengths --------------------------------------------------------------------------------------


def _layouts() -> Iterator[tuple[str, Spans, tuple[int, int], list[tuple[int, int]]]]:
    """Layouts of sequences of SIZES in a batch: name, spans, (rows, time), and (row, start) of each."""
    L, n = max(SIZES), torch.tensor(SIZES)
    yield "padded right", Spans.of_lengths(n), (len(n), L), [(row, 0) for row in range(len(n))]
    left = Spans.of_mask(torch.arange(L) >= L - n.unsqueeze(1))
    yield "padded left", left, (len(n), L), [(row, L - size) for row, size in enumerate(SIZES)]
    bounds = [0, *n.cumsum(0).tolist()]
    yield "packed", Spans.of_bounds(torch.tensor(bounds)), (1, bounds[-1]), [(0, start) for start in bounds[:-1]]


def padding_changes_nothing(make: MakeMixer) -> None:
    """Padded and packed sequences have the outputs, states and gradients of each alone; padding gets no gradient."""
    mix = make()
    alone = [draw(1, size, mix.width, seed=20 + i) for i, size in enumerate(SIZES)]
    more = [draw(1, size, mix.width, seed=40 + i) for i, size in enumerate(SIZES)]
    expected = [_one_by_one(mix.use(available_forms(mix)[0]), first, second) for first, second in zip(alone, more)]
    for form in available_forms(mix):
        mix.use(form)
        for name, spans, shape, positions in _layouts():
            x = _place(alone, shape, positions).requires_grad_()
            y, state = mix(x, spans=spans)
            ys = [y]
            if mix.causal:
                ys.append(mix(_place(more, shape, positions), state, spans=spans)[0])
            (dx,) = torch.autograd.grad(sum(((out * out).sum() for out in ys), torch.zeros(())), x)
            for i, (size, (row, start)) in enumerate(zip(SIZES, positions)):
                cut = (slice(row, row + 1), slice(start, start + size))
                actual = {"y": y[cut], "dx": dx[cut]} | ({"more": ys[1][cut]} if mix.causal else {})
                agree(actual, expected[i], 1e-9, f"form '{form}', {name}, sequence {i} of {size} tokens")
                dx[cut] = 0
            require(float(dx.abs().max()) < 1e-12, f"form '{form}', {name}: padding has a gradient")  # an FFT rounds


def _place(parts: list[Tensor], shape: tuple[int, int], positions: list[tuple[int, int]]) -> Tensor:
    """The sequences at their positions, with NaN everywhere else, which would spread if it were read."""
    whole = torch.full((*shape, parts[0].shape[-1]), torch.nan, dtype=torch.float64)
    for part, (row, start) in zip(parts, positions):
        whole[row, start : start + part.shape[1]] = part[0]
    return whole


def _one_by_one(mix: Mixer, x: Tensor, more: Tensor) -> dict[str, Tensor]:
    if not x.shape[1]:
        return {"y": x, "dx": x} | ({"more": more} if mix.causal else {})
    x = x.clone().requires_grad_()
    y, state = mix(x)
    outs = {"y": y} | ({"more": mix(more, state)[0]} if mix.causal else {})
    (dx,) = torch.autograd.grad(sum(((out * out).sum() for out in outs.values()), torch.zeros(())), x)
    return {name: out.detach() for name, out in outs.items()} | {"dx": dx}


def an_empty_sequence_keeps_its_state(make: MakeMixer) -> None:
    """A sequence without tokens keeps its state, and its outputs are 0."""
    mix = make()
    state, x = warm(mix, 3), draw(3, 7, mix.width)
    if state is None:
        return
    with torch.no_grad():
        y, end = mix(x, state, spans=Spans.of_lengths(torch.tensor([7, 0, 4])))
        alone, _ = mix(x[1:2], {name: s[1:2] for name, s in end.items()})
        expected, _ = mix(x[1:2], {name: s[1:2] for name, s in state.items()})
    agree({"y": alone}, {"y": expected}, 1e-9, "an empty sequence, continued")
    require(not y[1].any() and not y[2, 4:].any(), "outputs beyond the end of a sequence are not 0")


# Numbers ------------------------------------------------------------------------------------------------------------


def gradients_are_right(make: MakeMixer) -> None:
    """Its gradients equal finite differences in float64."""
    # Of one vector of input, state and parameters, so that one random direction tests them all.
    mix = make()
    state, params = warm(mix), dict(mix.named_parameters())
    initial = {name: s for name, s in (state or {}).items() if smooth(s)}
    x = draw(B, 4, mix.width)
    parts = [_flat(value.detach()) for value in (x, *initial.values(), *params.values())]

    def call(vector: Tensor) -> Tensor:
        rest = iter(vector.split([len(part) for part in parts]))
        inputs = next(rest).view_as(x)
        first = {name: _reshape(next(rest), s) for name, s in initial.items()}
        now = {name: next(rest).view_as(p) for name, p in params.items()}
        y, end = torch.func.functional_call(mix, now, (inputs, None if state is None else {**state, **first}))
        return torch.cat([_flat(out) for out in (y, *end.values()) if smooth(out)])

    for form in available_forms(mix):
        mix.use(form)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            right = torch.autograd.gradcheck(call, torch.cat(parts).requires_grad_(), fast_mode=True, raise_exception=False)
        require(right, f"the gradient of form '{form}' is wrong")


def _flat(x: Tensor) -> Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).flatten()


def _reshape(vector: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(vector.view(*like.shape, 2)) if like.is_complex() else vector.view_as(like)


def half_precision_is_summed_in_float32(make: MakeMixer) -> None:
    """With bfloat16 inputs and outputs the state is float32, and the error does not grow with the length."""
    narrow, wide = make(torch.bfloat16), make(torch.float32)
    wide.load_state_dict({name: value.to(wide.state_dict()[name].dtype) for name, value in narrow.state_dict().items()})
    x = draw(1, 200, wide.width).bfloat16()
    with torch.no_grad():
        expected, _ = wide(x.float())
        for form in [form for form in available_forms(narrow) if form != "step"] or available_forms(narrow):
            y, state = narrow.use(form)(x)
            require(
                y.dtype == torch.bfloat16 and bool(y.isfinite().all()), f"form '{form}' gives {y.dtype}, or numbers that are not finite"
            )
            if isinstance(narrow, Recurrent):
                sums = {name: s.dtype for name, s in state.items() if name.startswith("S")}
                require(all(dtype in (torch.float32, torch.complex64) for dtype in sums.values()), f"form '{form}' keeps {sums}")
            error = float((y.float() - expected)[:, 100:].norm() / expected[:, 100:].norm())
            require(error < 0.05, f"form '{form}' differs by {error:.2g} from float32")


def autocast_changes_little(make: MakeMixer) -> None:
    """Under autocast outputs and gradients stay close; sums over the sequence and logarithms of decays are float32."""
    mix = make(torch.float32)
    x = draw(B, 65, mix.width).float()
    for form in available_forms(mix):
        mix.use(form)
        agrees_in_bf16(mix, {"x": x}, lambda mix, inputs: {"y": mix(inputs["x"])[0]})
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), record_recurrences() as watch:
            _, state = mix(x)
        decays = [decay.dtype for steps, _ in watch.seen for decay in (steps.log_head, steps.log_key, steps.log_value) if decay is not None]
        require(torch.bfloat16 not in decays, f"form '{form}' rounds its decays to bfloat16")
        sums = {name: s.dtype for name, s in state.items() if name in getattr(mix, "keeps", ()) or name.startswith("S")}
        require(torch.bfloat16 not in sums.values(), f"form '{form}' keeps {sums}")


def a_state_goes_in_and_out_of_autocast(make: MakeMixer) -> None:
    """A state computed under autocast can be continued without it, and vice versa."""
    mix = make(torch.float32)
    if not mix.causal:
        return
    x = draw(B, 9, mix.width).float()
    with torch.no_grad():
        expected, _ = mix(x)
        for inside in ((True, False), (False, True)):
            state, ys = None, []
            for part, on in zip(x.split([5, 4], 1), inside):
                with torch.autocast("cpu", torch.bfloat16, enabled=on):
                    y, state = mix(part, state)
                ys.append(y.float())
            error = float((torch.cat(ys, 1) - expected).norm() / expected.norm())
            require(
                error < 0.05, f"outputs differ by {error:.2g} where autocast is {' and then '.join('on' if on else 'off' for on in inside)}"
            )


def large_inputs_stay_finite(make: MakeMixer) -> None:
    """Inputs thirty times too large, which saturate every gate, do not overflow over 4096 steps."""
    mix = make(torch.float32).use("auto")
    with torch.no_grad():
        y, state = mix(30 * draw(1, 4096, mix.width).float())
    require(bool(y.isfinite().all()), "an output is not finite")
    require(all(bool(s.isfinite().all()) for s in state.values()), "a state is not finite")


def gradients_of_large_inputs_stay_finite(make: MakeMixer) -> None:
    """Inputs thirty times too large have finite gradients."""
    mix = make(torch.float32).use("auto")
    x = (30 * draw(1, 130, mix.width)).float().requires_grad_()
    mix(x)[0].sum().backward()
    named = {"x": x, **dict(mix.named_parameters())}
    bad = [name for name, leaf in named.items() if leaf.grad is not None and not leaf.grad.isfinite().all()]
    require(not bad, f"the gradient of {', '.join(bad)} is not finite")


def saving_and_loading_keeps_the_bits(make: MakeMixer) -> None:
    """After saving and loading, its outputs and states are the same bits."""
    mix, again = make(torch.float32), make(torch.float32)
    with torch.no_grad():
        for value in again.state_dict().values():
            if smooth(value):
                value.zero_()
    again.load_state_dict(decode(b"".join(encode(mix.state_dict()))))
    x = draw(B, 20, mix.width).float()
    with torch.no_grad():
        y, state = mix(x)
        other, end = again(x)
        require(torch.equal(y, other), "outputs differ")
        if mix.causal:
            loaded = decode(b"".join(encode(state)))
            require(loaded.keys() == end.keys() and all(torch.equal(loaded[name], end[name]) for name in end), "states differ")
            require(torch.equal(mix(x, state)[0], again(x, loaded)[0]), "outputs after a loaded state differ")


def decoding_equals_forward(make: MakeMixer) -> None:
    """If it has `decode`, the decoding kernel gives the same logits and states."""
    from ..generate.fused import prepare
    from ..models.language_model import LanguageModel

    mix = make(torch.float32)
    if not hasattr(mix, "decode") or not kernels.available():
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = LanguageModel(11, mix.width, 1, "rnn").eval()
        model.stack.blocks[0].mixer = mix
        tokens = torch.randint(11, (B, 12))
        program = prepare(model, B)
        if program is None:  # it may not support these options
            return
        expected, _ = model.advance(tokens)
        logits, state = program.advance(tokens[:, :5])
        outs = [logits]
        for t in range(5, 12):
            logits, state = program.advance(tokens[:, t : t + 1], state)
            outs.append(logits)
    agree({"logits": torch.cat(outs, 1)}, {"logits": expected}, 1e-5, "token by token")


def the_rule_is_what_runs(module: ModuleType) -> None:
    """A linear recurrence runs its `rule`, in the selected form."""
    mix = fresh(module)()
    if not isinstance(mix, Recurrent):
        return
    require(inspect.isgeneratorfunction(getattr(module, "rule", None)), "its file has no generator function 'rule'")
    for form in available_forms(mix):
        mix.use(form)
        with record_recurrences() as watch, torch.no_grad():
            mix(draw(B, 4, mix.width))
        seen = [(ran, steps.v.shape[2]) for steps, ran in watch.seen]
        require(bool(seen) and all(one == (form, 4) for one in seen), f"selected form '{form}' over 4 tokens, but {seen or 'nothing'} ran")


CHECKS: tuple[Callable[[MakeMixer], None], ...] = (
    forms_are_equal,
    one_pass_equals_token_by_token,
    pieces_equal_one_pass,
    the_future_does_not_leak,
    padding_changes_nothing,
    an_empty_sequence_keeps_its_state,
    gradients_are_right,
    half_precision_is_summed_in_float32,
    autocast_changes_little,
    a_state_goes_in_and_out_of_autocast,
    large_inputs_stay_finite,
    gradients_of_large_inputs_stay_finite,
    saving_and_loading_keeps_the_bits,
    decoding_equals_forward,
)
