"""Many small runs at once: members that differ in seed and learning rate only, trained as one batched computation.

The parameters of M members are rows of one buffer; `torch.func` gives losses and gradients of all of them at once, one
optimiser call moves all weights.  A rule of the form  p <- p - lr * f(...)  is
linear in its rate, so the common update at rate 1 is scaled row by row to each member's own rate.  Every member has
its own run directory and its own data order; its figures are those of the run made alone, up to rounding.

    M members, B batch, P parameters
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from ..core.batch import Batch
from ..core.errors import NumericalStop
from ..gradients.flat import Flat
from .guard import bad_weights
from .job import Job
from .loop import Loop
from .progress import Progress
from .signals import StopRequest
from .state import misfit_model, model_tensors

LINEAR = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam", "lion"}
"""rules whose step is proportional to the learning rate"""


def reason_against(jobs: list[Job]) -> str:
    """Why these jobs cannot be trained as one; '' where they can."""
    first = jobs[0]
    for module in first.model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return "dropout draws random numbers member by member"
        if isinstance(module, nn.modules.batchnorm._NormBase):
            return "batch statistics cannot be kept member by member"
    recipe = first.recipe
    checks = {
        "augmentation": recipe.augment is not None,
        "early stopping": bool(recipe.patience) or bool(recipe.restore_best),
        "callbacks": bool(recipe.callbacks),
        "accumulation or shards": first.shards > 1,
        "bf16": recipe.precision != "float32",
        "a device other than the CPU": first.device.type != "cpu",
        f"optimiser {getattr(recipe.optimiser, 'name', 'of the user')}": getattr(recipe.optimiser, "name", "") not in LINEAR,
    }
    for what, present in checks.items():
        if present:
            return f"{what} is not done for many members at once"
    shapes = _shapes(first)
    for job in jobs[1:]:
        if _shapes(job) != shapes:
            return "members differ in more than seed and learning rate"
    return ""


def _shapes(job: Job) -> tuple:
    rule = job.recipe.optimiser
    model = [(name, tuple(t.shape)) for name, t in model_tensors(job.model).items()]
    sizes = [(name, len(source)) for name, source in job.data.splits.items()]
    settings = (
        rule.name,
        rule.weight_decay,
        rule.decay_all,
        repr(rule.options),
        job.steps,
        job.order.batch,
        job.log_every,
        job.evaluate_every,
    )
    return (model, repr(job.model), sizes, settings, job.recipe.clip, job.recipe.drop_last, repr(job.recipe.objective.__class__))


class Member:
    """Stands in for a Replica: the row of one member in the common buffers."""

    def __init__(self, job: Job, together: Together, row: int) -> None:
        self.job, self.together, self.row = job, together, row
        self.judges = job.world

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"model": model_tensors(self.job.model), "optim": self.together.moments(self.row)}

    def finite(self) -> bool:
        return not bad_weights(self.job.model)

    def fits(self, parts: Any) -> None:
        misfit_model(model_tensors(self.job.model), parts)


class Together:
    """Members laid side by side: for each group of parameters one (M, P) buffer of values and one of gradients."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        rule = jobs[0].recipe.optimiser
        layouts = [Flat(job.model, rule.decays) for job in jobs]
        self.layout = layouts[0]
        self.values: list[nn.Parameter] = []
        self.weights: dict[str, Tensor] = {}
        """every parameter as (M, *shape), a view of the buffers"""
        self.homes: list[Tensor] = []
        """where the gradient of each goes, in the same order"""
        self.traces: dict[tuple, Any] = {}
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
        for row, job in enumerate(jobs):  # each model's parameters become a row, so evaluating it needs no copy
            for name, parameter in job.model.named_parameters():
                if parameter.requires_grad:
                    parameter.data, parameter.grad = self.weights[name][row], None
        self.optimiser = rule.build(groups)
        self.rates = torch.tensor([job.recipe.optimiser.lr for job in jobs])
        self.equal = len(set(self.rates.tolist())) == 1
        self.buffers = dict(jobs[0].model.named_buffers())
        self.objective: Any = jobs[0].recipe.objective
        self._feed()

    def _feed(self) -> None:
        """One source for all where the data are the same, else the members' data end to end."""
        sources = [job.data.train for job in self.jobs]
        prints = {source.fingerprint() for source in sources}
        self.whole = sources[0][torch.arange(len(sources[0]))] if len(prints) == 1 else None
        if self.whole is None:
            parts = [source[torch.arange(len(source))] for source in sources]
            self.whole = Batch(**{name: torch.cat([part.fields[name] for part in parts]) for name in parts[0].fields})
        self.offsets = torch.zeros(len(sources), 1, dtype=torch.int64)
        if len(prints) > 1:
            self.offsets = torch.arange(len(sources)).unsqueeze(1) * len(sources[0])
        self.epoch, self.orders = -1, torch.empty(0)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Fields (M, B, ...) of all members' batches of a step."""
        order = self.jobs[0].order
        epoch, position = order.epoch(step)
        if epoch != self.epoch:
            per_epoch = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
            rows = [torch.cat([job.order.at(t) for t in per_epoch]) for job in self.jobs]
            self.epoch, self.orders = epoch, torch.stack(rows) + self.offsets
        chosen = self.orders[:, position * order.batch : (position + 1) * order.batch]
        assert self.whole is not None
        return {
            name: field.index_select(0, chosen.reshape(-1)).view(*chosen.shape, *field.shape[1:])
            for name, field in self.whole.fields.items()
        }

    def gradient(self, fields: dict[str, Tensor]) -> Tensor:
        """Fill the gradient buffers; returns the M losses.

        For each batch shape, forward and backward pass of all members are traced once into a straight list of tensor
        operations; replaying it builds no graph and asks no module.
        """
        shapes = tuple(tuple(field.shape) for field in fields.values())
        if shapes not in self.traces:
            from torch.fx.experimental.proxy_tensor import make_fx

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                every = vmap(grad_and_value(self._loss))
                self.traces[shapes] = make_fx(lambda weights, fields: every(weights, fields))(self.weights, fields)
        with torch.no_grad():
            grads, losses = self.traces[shapes](self.weights, fields)
            torch._foreach_copy_(self.homes, [grads[name] for name in self.weights])
        return losses

    def _loss(self, parameters: dict[str, Tensor], fields: dict[str, Tensor]) -> Tensor:
        model = self.jobs[0].model
        return self.objective(lambda *inputs: functional_call(model, (parameters, self.buffers), inputs), Batch(**fields)).loss()

    def norms(self) -> Tensor:
        return torch.stack([values.grad.square().sum(1) for values in self.values if values.grad is not None]).sum(0).sqrt()

    def clip(self, norms: Tensor, largest: float) -> None:
        factor = torch.clamp(largest / (norms + 1e-12), max=1.0).unsqueeze(1)
        for values in self.values:
            assert values.grad is not None
            values.grad.mul_(factor)

    def update(self, factors: list[float]) -> list[float]:
        """One step of every member at its own rate."""
        rates = self.rates * torch.tensor(factors)
        one_rate = self.equal and len(set(factors)) == 1
        before = [] if one_rate else [values.detach().clone() for values in self.values]
        for group in self.optimiser.param_groups:
            group["lr"] = float(rates[0]) if one_rate else 1.0
        self.optimiser.step()
        with torch.no_grad():
            for values, old in zip(self.values, before, strict=False):
                values.copy_(torch.lerp(old, values, rates.unsqueeze(1)))
        return rates.tolist()

    def moments(self, row: int) -> dict[str, Tensor]:
        """Optimiser state of one member by `<parameter>.<moment>`."""
        found: dict[str, Tensor] = {}
        for group in self.optimiser.param_groups:
            values = group["params"][0]
            for moment, value in self.optimiser.state.get(values, {}).items():
                if isinstance(value, Tensor) and value.shape == values.shape:
                    found.update({f"{name}.{moment}": part for name, part in self.layout.split(group["group"], value[row])})
                elif isinstance(value, Tensor):
                    found.update({f"{slot.name}.{moment}": value for slot in self.layout.slots if slot.group == group["group"]})
        return found


def train_together(loops: list[Loop], title: str) -> list[str]:
    """Train all members from step 0 to the end; returns '' or what went wrong for each.

    Rows, evaluations and the final checkpoint are written by each member's own loop, as if it ran alone.
    """
    jobs = [loop.job for loop in loops]
    together = Together(jobs)
    failed = [""] * len(loops)
    for row, job in enumerate(jobs):
        job.replica = Member(job, together, row)
        job.model.train()
    first = jobs[0]
    with StopRequest() as stop, Progress(title, first.steps, unit=f"{len(jobs)} members, step") as progress:
        for step in range(first.steps):
            losses = together.gradient(together.batch(step))
            norms = together.norms()
            for row, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True)):
                if not failed[row] and (fault := loops[row].guard.fault(loss, norm)):
                    failed[row] = str(NumericalStop(fault.what, where=f"step {step}"))
            if first.recipe.clip:
                together.clip(norms, first.recipe.clip)
            rates = together.update([job.factor(step) for job in jobs])
            for loop in loops:
                loop.step += 1
            progress.tick(step + 1)
            if (step + 1) % first.log_every == 0 or (step + 1) % first.evaluate_every == 0 or step + 1 == first.steps:
                for row, (loop, loss, rate, norm) in enumerate(zip(loops, losses.tolist(), rates, norms.tolist(), strict=True)):
                    if failed[row]:
                        continue
                    if (step + 1) % first.log_every == 0 or step + 1 == first.steps:
                        loop.log(loss, rate, norm)
                    try:
                        loop.boundary(stop)
                    except NumericalStop as error:
                        failed[row] = str(error)
            if all(failed):
                break
    return failed
