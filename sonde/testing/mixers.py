"""What every mixer promises.  The definition is the slowest way: one token after the other through the state.  All else must equal it.

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
from ..nn.recurrence import State
from ..nn.spans import Spans
from ._contract import Plugin, agree, draw, function, load, require, run, smooth, stem

B = 2
SIZES = (5, 0, 33, 1, 18)
"""lengths of sequences that share a batch"""
LENGTHS = (1, 2, 63, 64, 65, 100)
"""around the sizes of blocks"""
PIECES = ((1, 37, 62), (64, 36), (99, 1), (30, 2, 1, 67))
MakeMixer = Callable[..., Mixer]
"""makes the tiny mixer of a dtype, float64 where none is given"""


def check_mixer(plugin: Plugin) -> None:
    """Check a mixer, given by name, by the path of its file or as a module; `tiny()` in it returns a small mixer."""
    module = load("nn.mixers", plugin)
    run(stem(module), [declares_what_it_is, the_rule_is_what_runs], module)
    run(stem(module), CHECKS, fresh(module))


def fresh(module: ModuleType) -> MakeMixer:
    """Makes the tiny mixer, with no parameter left at a special value such as zero."""

    def make(dtype: torch.dtype = torch.float64) -> Mixer:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            mix: Mixer = function(module, "tiny")()
            with torch.no_grad():
                for parameter in mix.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return mix.to(dtype)

    return make


def declares_what_it_is(module: ModuleType) -> None:
    """Its file holds one final class named like the file, with docstrings, and what it declares is there."""
    mix, name = function(module, "tiny")(), stem(module)
    kind = type(mix)
    require(isinstance(mix, Mixer), f"tiny() returns {kind.__name__}, which does not derive from Mixer")
    require(kind in registry.classes_in(module, Mixer), f"tiny() returns {kind.__name__}, which the file does not define")
    require(getattr(kind, "__final__", False), f"{kind.__name__} is not marked @final")
    require(kind.__name__.lower() == name.replace("_", "").lower(), f"{kind.__name__} is not named like its file")
    require(bool(kind.__doc__) and bool(module.__doc__), "the file or the class has no docstring")
    require(bool(mix.forms()) and isinstance(mix.causal, bool), "it has no forms, or does not say whether it is causal")
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


def fed(mix: Mixer, x: Tensor, state: State | None, pieces: Sequence[int], forms: Sequence[str]) -> tuple[Tensor, State]:
    """x in pieces, the forms taking turns."""
    outs = []
    for part, form in zip(x.split(list(pieces), 1), cycle(forms)):
        y, state = mix.use(form)(part, state)
        outs.append(y)
    assert state is not None
    return torch.cat(outs, 1), state


def warm(mix: Mixer, n: int = B) -> State | None:
    """A state that has seen something; None where there is none to be had."""
    if not mix.causal:
        return None
    with torch.no_grad():
        return mix.use("auto")(draw(n, 3, mix.width, seed=5).to(next(mix.parameters())))[1]


def kept(mix: Mixer, state: State) -> dict[str, Tensor]:
    """What a state holds: its numbers, or, where it may have spare room, what the mixer makes of it next."""
    if isinstance(mix, Recurrent) or not state:
        return {f"state {name}": s for name, s in state.items()}
    return {"state": mix(draw(len(next(iter(state.values()))), 3, mix.width, seed=6).to(next(mix.parameters())), state)[0]}


def results(mix: Mixer, x: Tensor, state: State | None, call: Callable[..., tuple[Tensor, State]]) -> dict[str, Tensor]:
    """Output, final state, and gradients of the input, every parameter and the initial state by a fixed mix of both."""
    x = x.clone().requires_grad_()
    state = None if state is None else {name: s.clone().requires_grad_(smooth(s)) for name, s in state.items()}
    y, end = call(x, state)
    ends = kept(mix, end)
    loss = torch.zeros((), dtype=torch.float64)
    for out in [y, *(s for s in ends.values() if smooth(s) and s.requires_grad)]:
        out = torch.view_as_real(out) if out.is_complex() else out
        loss = loss + (out * draw(*out.shape, seed=out.dim()).to(out)).sum()
    leaves = {"x": x, **dict(mix.named_parameters()), **{f"first {name}": s for name, s in (state or {}).items() if smooth(s)}}
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    of = {f"d {name}": torch.zeros_like(leaf) if g is None else g for (name, leaf), g in zip(leaves.items(), grads)}
    return {name: tensor.detach() for name, tensor in {"y": y, **ends, **of}.items()}


def at_once(mix: Mixer, form: str) -> Callable[..., tuple[Tensor, State]]:
    """A call of the mixer in one form."""
    return lambda x, state: mix.use(form)(x, state)


# Forms --------------------------------------------------------------------------------------------------------------


def forms_are_equal(make: MakeMixer, lengths: Sequence[int] = LENGTHS) -> None:
    """All its forms give the same outputs, final state and gradients, from a state that has seen something."""
    for length in lengths:
        mix, narrow = make(), make(torch.float32)
        x, state = draw(B, length, mix.width), warm(mix)
        first, *others = available_forms(mix)
        wanted = results(mix, x, state, at_once(mix, first))
        bad = [name for name, right in wanted.items() if not right.isfinite().all()]
        require(not bad, f"form '{first}' at {length} tokens: '{', '.join(bad)}' is not finite")
        for form in others:
            agree(results(mix, x, state, at_once(mix, form)), wanted, 1e-9, f"form '{form}' at {length} tokens")
        # The wide mixer on the very numbers that float32 holds: the error is that of the arithmetic alone.
        mix.load_state_dict(narrow.state_dict())
        x, state = x.float(), warm(narrow)
        wanted = results(mix, x.double(), None if state is None else _widened(state), at_once(mix, others[0] if others else first))
        for form in [first, *others] if length < 100 else others:
            agree(results(narrow, x, state, at_once(narrow, form)), wanted, 1e-4, f"form '{form}' at {length} tokens in float32")


def _widened(state: State) -> State:
    return {name: s.to(torch.complex128 if s.is_complex() else torch.float64) if smooth(s) else s for name, s in state.items()}


def one_pass_equals_token_by_token(make: MakeMixer) -> None:
    """One pass equals token by token through the state, gradients included."""
    mix = make()
    if not mix.causal:
        return
    x, first = draw(B, 33, mix.width), available_forms(mix)[0]
    for state in (None, warm(mix)):
        wanted = results(mix, x, state, lambda x, state: fed(mix, x, state, [1] * 33, [first]))
        agree(results(mix, x, state, at_once(mix, first)), wanted, 1e-9, f"form '{first}' in one pass")


def pieces_equal_one_pass(make: MakeMixer, pieces: Sequence[Sequence[int]] = PIECES) -> None:
    """A sequence in pieces, the state carried on, equals one pass, whatever form each piece takes."""
    mix = make()
    if not mix.causal:
        return
    x, forms = draw(B, 100, mix.width), available_forms(mix)
    with torch.no_grad():
        y, state = mix.use(forms[0])(x)
        for sizes in pieces:
            for i in range(len(forms)):
                turns = forms[i:] + forms[:i]
                out, end = fed(mix, x, None, sizes, turns)
                label = f"pieces of {', '.join(map(str, sizes))} tokens by {', '.join(turns)}"
                agree({"y": out, **kept(mix, end)}, {"y": y, **kept(mix, state)}, 1e-9, label)


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


# Sequences of their own length --------------------------------------------------------------------------------------


def _laid_out() -> Iterator[tuple[str, Spans, tuple[int, int], list[tuple[int, int]]]]:
    """Ways to lay sequences of SIZES into a batch: name, spans, (rows, time), and (row, start) of each."""
    L, n = max(SIZES), torch.tensor(SIZES)
    yield "padded right", Spans.of_lengths(n), (len(n), L), [(row, 0) for row in range(len(n))]
    left = Spans.of_mask(torch.arange(L) >= L - n.unsqueeze(1))
    yield "padded left", left, (len(n), L), [(row, L - size) for row, size in enumerate(SIZES)]
    bounds = [0, *n.cumsum(0).tolist()]
    yield "packed", Spans.packed(torch.tensor(bounds)), (1, bounds[-1]), [(0, start) for start in bounds[:-1]]


def padding_changes_nothing(make: MakeMixer) -> None:
    """Padded and packed sequences give what each gives alone: outputs, states that go on, gradients; padding gets no gradient."""
    mix = make()
    alone = [draw(1, size, mix.width, seed=20 + i) for i, size in enumerate(SIZES)]
    more = [draw(1, size, mix.width, seed=40 + i) for i, size in enumerate(SIZES)]
    wanted = [_one_by_one(mix.use(available_forms(mix)[0]), first, second) for first, second in zip(alone, more)]
    for form in available_forms(mix):
        mix.use(form)
        for name, spans, shape, places in _laid_out():
            x = _laid(alone, shape, places).requires_grad_()
            y, state = mix(x, spans=spans)
            ys = [y]
            if mix.causal:
                ys.append(mix(_laid(more, shape, places), state, spans=spans)[0])
            (dx,) = torch.autograd.grad(sum(((out * out).sum() for out in ys), torch.zeros(())), x)
            for i, (size, (row, start)) in enumerate(zip(SIZES, places)):
                cut = (slice(row, row + 1), slice(start, start + size))
                actual = {"y": y[cut], "dx": dx[cut]} | ({"more": ys[1][cut]} if mix.causal else {})
                agree(actual, wanted[i], 1e-9, f"form '{form}', {name}, sequence {i} of {size} tokens")
                dx[cut] = 0
            require(float(dx.abs().max()) < 1e-12, f"form '{form}', {name}: padding has a gradient")  # an FFT rounds


def _laid(parts: list[Tensor], shape: tuple[int, int], places: list[tuple[int, int]]) -> Tensor:
    """The sequences at their places, with numbers everywhere else that would spoil all they touch."""
    whole = torch.full((*shape, parts[0].shape[-1]), torch.nan, dtype=torch.float64)
    for part, (row, start) in zip(parts, places):
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
        wanted, _ = mix(x[1:2], {name: s[1:2] for name, s in state.items()})
    agree({"y": alone}, {"y": wanted}, 1e-9, "a sequence that waited")
    require(not y[1].any() and not y[2, 4:].any(), "outputs beyond the end of a sequence are not 0")


# Numbers ------------------------------------------------------------------------------------------------------------


def gradients_are_right(make: MakeMixer) -> None:
    """Its gradients equal finite differences in float64."""
    # Of one long vector of input, state and parameters, so that one random direction tests them all.
    mix = make()
    state, params = warm(mix), dict(mix.named_parameters())
    initial = {name: s for name, s in (state or {}).items() if smooth(s)}
    x = draw(B, 4, mix.width)
    parts = [_flat(value.detach()) for value in (x, *initial.values(), *params.values())]

    def call(vector: Tensor) -> Tensor:
        rest = iter(vector.split([len(part) for part in parts]))
        inputs = next(rest).view_as(x)
        first = {name: _shaped(next(rest), s) for name, s in initial.items()}
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


def _shaped(vector: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(vector.view(*like.shape, 2)) if like.is_complex() else vector.view_as(like)


def half_precision_is_summed_in_float32(make: MakeMixer) -> None:
    """bfloat16 in and out, the state in float32, and the error that of the inputs: it does not grow with the length."""
    narrow, wide = make(torch.bfloat16), make(torch.float32)
    wide.load_state_dict({name: value.to(wide.state_dict()[name].dtype) for name, value in narrow.state_dict().items()})
    x = draw(1, 200, wide.width).bfloat16()
    with torch.no_grad():
        wanted, _ = wide(x.float())
        for form in [form for form in available_forms(narrow) if form != "step"] or available_forms(narrow):
            y, state = narrow.use(form)(x)
            require(
                y.dtype == torch.bfloat16 and bool(y.isfinite().all()), f"form '{form}' gives {y.dtype}, or numbers that are not finite"
            )
            if isinstance(narrow, Recurrent):
                sums = {name: s.dtype for name, s in state.items() if name.startswith("S")}
                require(all(dtype in (torch.float32, torch.complex64) for dtype in sums.values()), f"form '{form}' keeps {sums}")
            error = float((y.float() - wanted)[:, 100:].norm() / wanted[:, 100:].norm())
            require(error < 0.05, f"form '{form}' differs by {error:.2g} from float32")


def autocast_changes_little(make: MakeMixer) -> None:
    """Under autocast outputs stay close and gradients finite."""
    mix = make(torch.float32)
    x = draw(1, 65, mix.width).float()
    wanted, _ = mix(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = mix(x)
    y.float().square().sum().backward()
    error = float(((y.float() - wanted).norm() / wanted.norm()).detach())
    require(error < 0.05, f"outputs differ by {error:.2g}")
    require(all(p.grad is None or bool(p.grad.isfinite().all()) for p in mix.parameters()), "a gradient is not finite")


def a_state_goes_in_and_out_of_autocast(make: MakeMixer) -> None:
    """A state made under autocast goes on without it, and the other way round."""
    mix = make(torch.float32)
    if not mix.causal:
        return
    x = draw(B, 9, mix.width).float()
    with torch.no_grad():
        wanted, _ = mix(x)
        for inside in ((True, False), (False, True)):
            state, ys = None, []
            for part, on in zip(x.split([5, 4], 1), inside):
                with torch.autocast("cpu", torch.bfloat16, enabled=on):
                    y, state = mix(part, state)
                ys.append(y.float())
            error = float((torch.cat(ys, 1) - wanted).norm() / wanted.norm())
            require(
                error < 0.05, f"outputs differ by {error:.2g} where autocast is {' and then '.join('on' if on else 'off' for on in inside)}"
            )


def long_and_loud_inputs_stay_finite(make: MakeMixer) -> None:
    """Inputs thirty times too large drive every gate to its ends; nothing overflows over 4096 steps."""
    mix = make(torch.float32).use("auto")
    with torch.no_grad():
        y, state = mix(30 * draw(1, 4096, mix.width).float())
    require(bool(y.isfinite().all()), "an output is not finite")
    require(all(bool(s.isfinite().all()) for s in state.values()), "a state is not finite")


def loud_gradients_stay_finite(make: MakeMixer) -> None:
    """Inputs thirty times too large have finite gradients."""
    mix = make(torch.float32).use("auto")
    x = (30 * draw(1, 130, mix.width)).float().requires_grad_()
    mix(x)[0].sum().backward()
    named = {"x": x, **dict(mix.named_parameters())}
    bad = [name for name, leaf in named.items() if leaf.grad is not None and not leaf.grad.isfinite().all()]
    require(not bad, f"the gradient of {', '.join(bad)} is not finite")


def saved_and_loaded_it_gives_the_same_bits(make: MakeMixer) -> None:
    """Saved and loaded it gives the same bits, and so does its state."""
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
    """Where it has `decode`, a program of the decoding kernel gives its logits and states."""
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
        if program is None:  # it may refuse some of its settings
            return
        wanted, _ = model.advance(tokens)
        logits, state = program.advance(tokens[:, :5])
        outs = [logits]
        for t in range(5, 12):
            logits, state = program.advance(tokens[:, t : t + 1], state)
            outs.append(logits)
    agree({"logits": torch.cat(outs, 1)}, {"logits": wanted}, 1e-5, "token by token")


def the_rule_is_what_runs(module: ModuleType) -> None:
    """A linear recurrence takes its steps through the engine, in the form asked for."""
    from ..nn.recurrence import watching

    mix = fresh(module)()
    if not isinstance(mix, Recurrent):
        return
    require(inspect.isgeneratorfunction(getattr(module, "rule", None)), "its file has no generator function 'rule'")
    for form in available_forms(mix):
        mix.use(form)
        with watching() as watch, torch.no_grad():
            mix(draw(B, 4, mix.width))
        seen = [(taken, steps.v.shape[2]) for steps, taken in watch.seen]
        require(
            bool(seen) and all(one == (form, 4) for one in seen), f"asked for form '{form}' over 4 tokens, what ran was {seen or 'nothing'}"
        )


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
    long_and_loud_inputs_stay_finite,
    loud_gradients_stay_finite,
    saved_and_loaded_it_gives_the_same_bits,
    decoding_equals_forward,
)
