"""Many small runs at once: members that differ in seed and learning rate only, trained as one batched computation.

The parameters of M members are rows of one buffer; `torch.func` gives losses and gradients of all of them at once, one
optimizer call moves all weights.  A rule of the form  p <- p - lr * f(...)  is linear in its rate, so the common update
at rate 1 is scaled row by row to each member's own rate.  Every member has its own run directory and its own data
order; its metrics are those of the run made alone, up to rounding.

    M members, B batch, P parameters
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from ..core.batch import Batch, Source
from ..core.errors import NumericalStop, SondeError
from ..core.terms import Term, Terms
from ..gradients.flat import Flat
from ..gradients.replay import Recorder, Replay, Unrepeatable, repeatable
from ..optim.quick import quick_step
from .evaluate import evaluate, mean_metrics, record_outputs, sums
from .guard import Guard, bad_weights
from .job import Job
from .loop import Loop
from .progress import Progress
from .signals import StopRequest, stop_error
from .state import misfit_model, model_tensors


def why_not(jobs: list[Job]) -> str:
    """Why these jobs cannot be trained as one; '' where they can.

    First what is known not to work, for every member; then the proof: losses, gradients and metrics of all members at
    their first step, beside those each has alone.
    """
    for job in jobs:
        if reason := _reason(job):
            return reason
        if _settings(job) != _settings(jobs[0]):
            return "members differ in more than seed and learning rate"
        if not all(map(torch.equal, _constants(jobs[0]), _constants(job))):
            return "members differ in what their networks do not train"
    try:
        return _mismatch(jobs)
    except SondeError:
        raise
    except Exception as error:  # torch cannot vectorize every operation, and raises many kinds of errors
        return f"torch cannot do this for many members at once ({type(error).__name__}: {str(error).strip().splitlines()[0][:80]})"


def _reason(job: Job) -> str:
    recipe = job.recipe
    if not repeatable(job.model, recipe.objective):
        return "a network or objective of your own may do something else at every step"
    for module in job.model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return "dropout draws random numbers member by member"
        if isinstance(module, nn.modules.batchnorm._NormBase):
            return "batch statistics cannot be kept member by member"
    checks = {
        "augmentation": recipe.augment is not None,
        "early stopping": bool(recipe.patience) or bool(recipe.restore_best),
        "callbacks": bool(recipe.callbacks),
        "accumulation or shards": job.shards > 1,
        "bf16": recipe.precision != "float32",
        "the layout channels_last": recipe.channels_last,
        f"on_bad='{recipe.on_bad}'": recipe.on_bad != "stop",
        "a device other than the CPU": job.device.type != "cpu",
        f"optimizer {getattr(recipe.optimizer, 'name', 'of the user')}": not getattr(recipe.optimizer, "linear_in_lr", False),
    }
    return next((f"{what} is not done for many members at once" for what, present in checks.items() if present), "")


def _settings(job: Job) -> list[Any]:
    """All that must be the same for every member, as something that can be compared."""
    rule, recipe = job.recipe.optimizer, job.recipe
    plain = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return [
        [(name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in job.model.named_parameters()],
        [(name, type(module), _plain(vars(module))) for name, module in job.model.named_modules()],
        [(name, len(source)) for name, source in job.data.splits.items()],
        (rule.name, rule.weight_decay, rule.decay_all, repr(rule.options)),
        (job.steps, job.order.batch_size, job.log_every, job.evaluate_every),
        {name: value for name, value in _plain(plain).items() if name not in ("steps", "epochs")},
        (type(recipe.objective), _plain({**vars(recipe.objective)})),
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, words, tensors by value, and functions by identity; modules and what a module keeps for itself are left out."""
    plain_values: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            plain_values[name] = value.tolist()
        elif value is None or isinstance(value, (bool, int, float, str, tuple, list, torch.dtype)):
            plain_values[name] = repr(value)
        elif isinstance(value, FunctionType):
            plain_values[name] = value.__qualname__
    return plain_values


def _constants(job: Job) -> list[Tensor]:
    """Buffers and frozen parameters."""
    return [*job.model.buffers(), *(parameter for parameter in job.model.parameters() if not parameter.requires_grad)]


def _mismatch(jobs: list[Job]) -> str:
    """Why vectorized training gives other results than separate training; '' where it does not.

    The jobs are as they were afterwards, but for their buffers of parameters.
    """
    alone = [_reference(job) for job in jobs]
    together = Vectorized(jobs)
    fields = together.batch(0)
    for _ in range(2):  # the second time it is a replay
        losses = together.gradient(fields)
    for row, (loss, gradients, split_metrics) in enumerate(alone):
        gaps = [float((home[row] - gradients[name]).abs().max()) for name, home in zip(together.weights, together.homes, strict=True)]
        scale = max(float(gradient.abs().max()) for gradient in gradients.values())
        if not math.isclose(float(losses[row]), loss, rel_tol=1e-3, abs_tol=1e-6) or not max(gaps) <= 1e-3 * scale + 1e-9:
            return "the first gradients would not be those of the runs alone"
        for split, wanted in split_metrics.items():
            actual = together.evaluate(row, jobs[row].data.splits[split])
            if actual.keys() != wanted.keys() or not all(math.isclose(actual[n], wanted[n], rel_tol=1e-3, abs_tol=1e-6) for n in actual):
                return "the first metrics would not be those of the runs alone"
    return ""


def _reference(job: Job) -> tuple[float, dict[str, Tensor], dict[str, dict[str, float]]]:
    """Loss and gradient of a job's first batch and its metrics, by the ordinary loop."""
    job.model.train()
    terms = job.objective(job.model, job.batch(0)[0])
    trained = {name: parameter for name, parameter in job.model.named_parameters() if parameter.requires_grad}
    gradients = dict(zip(trained, torch.autograd.grad(terms.loss(), list(trained.values())), strict=True))
    evaluate_job = partial(
        evaluate, job.model, job.objective, batch_size=job.recipe.evaluate_batch_size, prepare=job.ready, world=job.world
    )
    split_metrics = {name: evaluate_job(source=source) for name, source in job.data.splits.items() if name != "train" and len(source)}
    return float(terms.loss().detach()), gradients, split_metrics


class Member:
    """Stands in for a Replica: the row of one member in the common buffers."""

    def __init__(self, job: Job, together: Vectorized, row: int) -> None:
        self.job, self.together, self.row = job, together, row
        self.evaluation_world = job.world

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"model": model_tensors(self.job.model), "optim": self.together.moments(self.row)}

    def finite(self) -> bool:
        return not bad_weights(self.job.model)

    def fits(self, parts: Any) -> None:
        misfit_model(model_tensors(self.job.model), parts)


class Vectorized:
    """The stacked members: for each group of parameters one (M, P) buffer of values and one of gradients."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        rule = jobs[0].recipe.optimizer
        layouts = [Flat(job.model, rule.decays) if rule.weight_decay else Flat(job.model) for job in jobs]
        self.layout = layouts[0]
        self.values: list[nn.Parameter] = []
        self.weights: dict[str, Tensor] = {}
        """every parameter as (M, *shape), a view of the buffers"""
        self.homes: list[Tensor] = []
        """where the gradient of each goes, in the same order"""
        self.replays: dict[Any, Replay | None] = {}
        groups = []
        for group, (begin, end) in enumerate(self.layout.bounds):
            if end == begin:
                continue
            values = nn.Parameter(torch.stack([flat.values[begin:end] for flat in layouts]))
            values.grad = torch.zeros_like(values)
            self.values.append(values)
            groups.append({"params": [values], "weight_decay": rule.weight_decay if group == 0 else 0.0, "names": [], "group": group})
            for slot in (slot for slot in self.layout.slots if slot.group == group):
                part = slice(slot.start - begin, slot.stop - begin)
                shape = (len(jobs), *slot.parameter.shape)
                self.weights[slot.name] = values.data[:, part].view(shape)
                self.homes.append(values.grad[:, part].view(shape))
        for row, job in enumerate(jobs):  # each model's parameters become a row, so saving it needs no copy
            for name, parameter in job.model.named_parameters():
                if parameter.requires_grad:
                    parameter.data, parameter.grad = self.weights[name][row], None
        self.optimizer = rule.build(groups)
        self.quick: Any = None
        self.before = [torch.empty_like(values) for values in self.values]
        self.rates = torch.tensor([job.recipe.optimizer.lr for job in jobs], dtype=self.values[0].dtype)
        self.model, self.objective = jobs[0].model, jobs[0].recipe.objective
        self.buffers = dict(self.model.named_buffers())
        self.step = 0
        self.metrics: dict[tuple[int, str], list[dict[str, float]]] = {}
        self.about: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
        """count and weight of each sum, by part of the data and number of examples"""
        self._feed()

    # ------------------------------------------------------------------------------------------------ data

    def _feed(self) -> None:
        """One source for all where the data are the same, else the members' data end to end."""
        sources = [job.data.train for job in self.jobs]
        self.same = {name: self._shared_source(name) for name in self.jobs[0].data.splits}
        parts = [source[torch.arange(len(source))] for source in (sources[:1] if self.same["train"] else sources)]
        # `ids` identify examples in reports; no objective of ours reads them.
        self.whole = {name: torch.cat([part.fields[name] for part in parts]) for name in parts[0].fields if name != "ids"}
        self.offsets = torch.arange(len(sources)).unsqueeze(1) * (0 if self.same["train"] else len(sources[0]))
        self.epoch, self.laid_out = -1, self.whole

    def _shared_source(self, split: str) -> bool:
        return len({job.data.splits[split].fingerprint() for job in self.jobs}) == 1

    def batch(self, step: int) -> dict[str, Tensor]:
        """Fields (M, B, ...) of all members' batches of a step: an epoch is laid out in order once, and cut into views."""
        order = self.jobs[0].order
        epoch, position = order.epoch(step)
        if epoch != self.epoch:
            rows = (torch.stack([job.order.permutation(epoch) for job in self.jobs]) + self.offsets).view(-1)
            laid_out = {name: field.index_select(0, rows) for name, field in self.whole.items()}
            self.laid_out = {name: field.view(len(self.jobs), -1, *field.shape[1:]) for name, field in laid_out.items()}
            self.epoch = epoch
        part = slice(position * order.batch_size, (position + 1) * order.batch_size)
        return {name: field[:, part] for name, field in self.laid_out.items()}

    # ------------------------------------------------------------------------------------------------ a step

    def gradient(self, fields: dict[str, Tensor]) -> Tensor:
        """Fill the gradient buffers; returns the M losses."""
        with torch.no_grad():
            losses, *grads = self._replay("gradient", self._losses_and_gradients, fields)
            torch._foreach_copy_(self.homes, grads)
        return losses

    def _losses_and_gradients(self, fields: dict[str, Tensor]) -> list[Tensor]:
        grads, losses = vmap(grad_and_value(self._loss))(self.weights, fields)
        return [losses, *(grads[name] for name in self.weights)]

    def _loss(self, parameters: dict[str, Tensor], fields: dict[str, Tensor]) -> Tensor:
        return self.objective(self._with(parameters), Batch(**fields)).loss()

    def _with(self, parameters: dict[str, Tensor]) -> Any:
        """The model at these parameters."""
        return lambda *inputs: functional_call(self.model, (parameters, self.buffers), inputs)

    def _replay(self, what: Any, function: Any, fields: dict[str, Tensor]) -> list[Tensor]:
        """The result of the function for the fields, by replaying the operations recorded for fields of the same shape."""
        kind = (what, *((field.shape, field.stride(), field.dtype) for field in fields.values()))
        if kind not in self.replays:
            recorder = Recorder(list(fields.values()), [*self.weights.values(), *self.buffers.values()])
            try:
                with recorder:
                    outputs = function(fields)
                self.replays[kind] = recorder.finish(outputs)
                return outputs
            except Unrepeatable:
                self.replays[kind] = None
        replay = self.replays[kind]
        return function(fields) if replay is None else replay(*fields.values())

    def norms(self) -> Tensor:
        parts = [torch.linalg.vector_norm(values.grad, dim=1) for values in self.values if values.grad is not None]
        return parts[0] if len(parts) == 1 else torch.stack(parts).norm(dim=0)

    def clip(self, norms: Tensor, largest: float) -> None:
        factor = torch.clamp(largest / (norms + 1e-12), max=1.0).unsqueeze(1)
        for values in self.values:
            assert values.grad is not None
            values.grad.mul_(factor)

    @torch.no_grad()
    def update(self, factors: list[float]) -> Tensor:
        """One step of every member at its own rate; returns the M rates."""
        rates = self.rates * torch.tensor(factors, dtype=self.rates.dtype)
        one_rate = bool((rates == rates[0]).all())
        for group in self.optimizer.param_groups:
            group["lr"] = float(rates[0]) if one_rate else 1.0
        if not one_rate:
            torch._foreach_copy_(self.before, [values.data for values in self.values])
        if self.quick is not None:
            self.quick()
        else:
            self.optimizer.step()
            self.quick = quick_step(self.optimizer)
        if not one_rate:
            for values, old in zip(self.values, self.before, strict=True):
                torch.lerp(old, values, rates.unsqueeze(1), out=values)
        self.step += 1
        return rates

    def moments(self, row: int) -> dict[str, Tensor]:
        """Optimizer state of one member by `<parameter>.<moment>`."""
        moments: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            values = group["params"][0]
            for moment, value in self.optimizer.state.get(values, {}).items():
                if isinstance(value, Tensor) and value.shape == values.shape:
                    moments.update({f"{name}.{moment}": part for name, part in self.layout.split(group["group"], value[row])})
                elif isinstance(value, Tensor):
                    moments.update({f"{slot.name}.{moment}": value for slot in self.layout.slots if slot.group == group["group"]})
        return moments

    # ------------------------------------------------------------------------------------------------ metrics

    def evaluate(self, row: int, source: Source) -> dict[str, float]:
        """Metrics of one member; the first that is requested at a step computes those of all."""
        job = self.jobs[row]
        split = next(name for name, part in job.data.splits.items() if part is source)
        if (self.step, split) not in self.metrics:
            self.metrics = {(self.step, split): self._metrics(split)}
        return self.metrics[self.step, split][row]

    @torch.no_grad()
    def _metrics(self, split: str) -> list[dict[str, float]]:
        """Every member's metrics on its data: sums over its batches, in float64, as `evaluate` has them."""
        totals = [Terms()] * len(self.jobs)
        source, size = self.jobs[0].data.splits[split], self.jobs[0].recipe.evaluate_batch_size
        self.model.eval()
        for start in range(0, len(source), size):
            chosen = torch.arange(start, min(start + size, len(source)))
            parts = [job.data.splits[split][chosen] for job in (self.jobs[:1] if self.same[split] else self.jobs)]
            fields = {name: torch.stack([part.fields[name] for part in parts]) for name in parts[0].fields if name != "ids"}
            raw_sums = torch.stack(self._replay(split, partial(self._sums, split), fields)).double()
            about = self.about[split, len(chosen)]
            for row in range(len(self.jobs)):
                terms = {name: Term(value, *about) for value, (name, about) in zip(raw_sums[:, row], about.items(), strict=True)}
                totals[row] = totals[row] + Terms(**terms)
        self.model.train()
        return [mean_metrics(total) for total in totals]

    def _sums(self, split: str, fields: dict[str, Tensor]) -> list[Tensor]:
        """Sums of all terms and measures, each (M,); their counts and weights, which are the same for all, are kept aside."""
        with record_outputs(self.model) as outputs:

            def one(parameters: dict[str, Tensor], batch: dict[str, Tensor]) -> list[Tensor]:
                terms = sums(self._with(parameters), self.objective, Batch(**batch), outputs)
                self.about[split, next(iter(fields.values())).shape[1]] = {
                    name: (float(term.count), term.weight) for name, term in terms.items()
                }
                return [term.sum for term in terms.values()]

            if not self.same[split]:
                return vmap(one)(self.weights, fields)
            return vmap(one, in_dims=(0, None))(self.weights, {name: field[0] for name, field in fields.items()})


class Guards:
    """The guards of all members.  Normal steps are recorded in bulk; at any other, each member's own guard decides."""

    def __init__(self, guards: list[Guard]) -> None:
        self.guards = guards
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []
        self.limits = np.full((2, len(guards)), np.inf)

    def faults(self, losses: np.ndarray, norms: np.ndarray) -> dict[int, str]:
        """Members for which this step is bad, and what is wrong."""
        self.pending.append((losses, norms))
        with np.errstate(invalid="ignore"):
            calm = bool((losses <= self.limits[0]).all() and (norms <= self.limits[1]).all() and np.isfinite(losses + norms).all())
        if calm and len(self.pending) < Guard.EVERY:
            return {}
        faults = {} if calm else self._one_by_one(*self.pending.pop())
        self.settle()
        return faults

    def _one_by_one(self, losses: np.ndarray, norms: np.ndarray) -> dict[int, str]:
        faults = ((row, guard.fault(float(losses[row]), float(norms[row]))) for row, guard in enumerate(self.guards))
        return {row: fault.what for row, fault in faults if fault}

    def settle(self) -> None:
        """Pass the steps since the last call to every guard, and compute the new limits."""
        if self.pending:
            losses, norms = (np.stack(numbers).astype(float) for numbers in zip(*self.pending, strict=True))
            for guard, some_losses, some_norms in zip(self.guards, losses.T.tolist(), norms.T.tolist(), strict=True):
                guard.accept(some_losses, some_norms)
                guard.pause(len(some_losses))
            self.pending = []
        if len({len(guard.losses) for guard in self.guards}) == 1 and self.guards[0].seen >= Guard.LEAST:
            windows = (np.array([getattr(guard, name) for guard in self.guards]).T for name in ("losses", "norms"))
            losses, norms = Guard.limits_of(*windows)
            self.limits = np.array([np.maximum(losses, [guard.first for guard in self.guards]), norms])
            for guard, (loss, norm) in zip(self.guards, self.limits.T.tolist(), strict=True):
                guard.limits = (loss, norm)


def train_together(loops: list[Loop], title: str) -> list[str]:
    """Train all members from step 0 to the end; returns '' or what went wrong for each.

    Rows, evaluations and the final checkpoint are written by each member's own loop, as if it ran alone.
    """
    jobs = [loop.job for loop in loops]
    together = Vectorized(jobs)
    guards = Guards([loop.guard for loop in loops])
    failed = [""] * len(loops)
    for row, job in enumerate(jobs):
        job.replica = Member(job, together, row)
        job.evaluator = partial(together.evaluate, row)
        job.model.train()
    first = jobs[0]
    with StopRequest() as stop, Progress(title, first.steps, unit=f"{len(jobs)} members, step") as progress:
        for step in range(1, first.steps + 1):
            losses = together.gradient(together.batch(step - 1))
            norms = together.norms()
            for row, what in guards.faults(losses.numpy(), norms.numpy()).items():
                failed[row] = failed[row] or str(NumericalStop(what, where=f"step {step - 1}"))
            if all(failed):
                break
            if first.recipe.clip_norm:
                together.clip(norms, first.recipe.clip_norm)
            rates = together.update([job.factor(step - 1) for job in jobs])
            progress.tick(step)
            logs = step % first.log_every == 0 or step == first.steps
            if stop.signal and step < first.steps:
                folder = str(loops[0].record.path.parent)
                when = f"after step {step} of {first.steps} of {len(jobs)} members together"
                raise stop_error(
                    stop.signal, when, folder, "members that are finished", "the same command trains the others from their start"
                )
            ends = step % first.evaluate_every == 0 or step == first.steps
            if not (logs or ends):
                continue
            if ends:
                guards.settle()
            members = zip(loops, losses.tolist(), rates.tolist(), norms.tolist(), strict=True)
            for row, (loop, loss, rate, norm) in enumerate(members):
                if failed[row]:
                    continue
                loop.step = step
                if logs:
                    loop.log(loss, rate, norm)
                try:
                    if ends:
                        loop.boundary(stop)
                except NumericalStop as error:
                    failed[row] = str(error)
    return failed
