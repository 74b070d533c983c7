"""Two update rules behind one optimizer: Muon for matrices, AdamW for everything Muon cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch


@final
class MuonAdamW(torch.optim.Optimizer):
    """Muon on parameters with two axes, AdamW on the rest; one learning rate fits both (Muon's is scaled to match)."""

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float, betas: tuple[float, float] = (0.9, 0.999), **options: Any) -> None:
        options.setdefault("adjust_lr_fn", "match_rms_adamw")
        split_groups = [self._split_group(group, matrices) for matrices in (True, False) for group in groups]
        groups = [group for group in split_groups if group["params"]]
        # The inner optimizers hold no state of their own: they borrow groups and state of this one at each step, so
        # saving, loading and changing the learning rate work as for any other optimizer.
        self.inner = {}
        for rule in ("muon", "adamw"):
            mine = [group for group in groups if group["rule"] == rule]
            if mine:
                self.inner[rule] = torch.optim.Muon(mine, lr, **options) if rule == "muon" else torch.optim.AdamW(mine, lr, betas=betas)
        super().__init__([group for rule in self.inner.values() for group in rule.param_groups], {"lr": lr})

    @staticmethod
    def _split_group(group: dict[str, Any], matrices: bool) -> dict[str, Any]:
        params = list(group["params"])
        indices = [i for i, p in enumerate(params) if (p.ndim == 2) == matrices]
        names = {"names": [group["names"][i] for i in indices]} if "names" in group else {}
        return {**group, **names, "params": [params[i] for i in indices], "rule": "muon" if matrices else "adamw"}

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for rule, inner in self.inner.items():
            inner.param_groups = [group for group in self.param_groups if group["rule"] == rule]
            inner.state = self.state
            inner.step()
        return loss
