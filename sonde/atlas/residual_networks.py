"""Chapter 12, residual networks, U-Nets and normalization."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.batch import Data
from ..core.reading import Bars, Images, Lines, Table
from ..core.recipe import Recipe
from ..data.catalog import load
from ..data.tensors import TensorSource
from ..lenses.cost import cost
from ..models import resnet
from ..models.published import published_model
from ..models.unet import UNet
from ..nn.adapters import freeze, trainable_names
from ..nn.residual import Residual
from ..objectives.categorical import Categorical
from ..optim.build import optimizer
from .exhibit import Exhibit, spread

# RES-01, RES-02: one block


def res_01(exhibit: Exhibit) -> str:
    """H(x) = F(x) + x: a branch of zeros leaves x alone, a ReLU after the sum what is positive of it."""
    torch.manual_seed(exhibit.seed)
    x = torch.randn(2, 5, 9, 7)
    silent = resnet.ResNet((1,), 3, channels=5, width=5, large=False, activation="pre", zero=True).get_submodule("layer1.0")
    exhibit.expect("F = 0, nothing after the sum: H(x) - x", (silent(x) - x).abs().max(), 0.0)
    after = resnet.ResNet((1,), 3, channels=5, width=5, large=False, zero=True).get_submodule("layer1.0")
    exhibit.expect("F = 0, ReLU after the sum", after(x.clone()), x.clamp_min(0), within=0.0)
    block = Residual(nn.Conv2d(5, 5, 3, padding=1))
    exhibit.expect("H(x) - F(x)", block(x) - block.branch(x), x, within=1e-5)
    net = resnet.ResNet((1, 1), 3, channels=5, width=6, large=False)
    kinds = [type(net.get_submodule(f"layer{i}.0").downsample).__name__ for i in (1, 2)]
    exhibit.expect("shortcut where shapes agree, and where they do not", kinds, ["NoneType", "Sequential"])
    exhibit.expect("output after 6 channels became 12", list(net.get_submodule("layer2")(torch.zeros(1, 6, 8, 8)).shape), [1, 12, 4, 4])
    exhibit.refuses("a sum of shapes that differ", lambda: Residual(nn.Linear(3, 5))(torch.zeros(2, 3)))
    return "F = 0 is the identity exactly; a projection where shapes differ"


def res_02(exhibit: Exhibit) -> str:
    """dL/dx = dL/dH (dF/dx + lambda): by hand for one block, and through fifty of them."""
    rng = exhibit.generator("res-02")
    worst = 0.0
    for skip in (1.0, 0.5, -0.3):
        branch = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        x, g = (torch.randn(4, dtype=torch.float64, generator=rng) for _ in range(2))
        w1, b1, w2 = (branch.get_parameter(name) for name in ("0.weight", "0.bias", "2.weight"))
        jacobian = w2 @ torch.diag(1 - torch.tanh(w1 @ x + b1).square()) @ w1
        expected = (jacobian + skip * torch.eye(4, dtype=torch.float64)).T @ g
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(Residual(branch, skip=skip)(leaf), leaf, g)
        worst = max(worst, exhibit.expect(f"lambda {skip:g}: gradient", gradient, expected.detach(), within=1e-10))
    factors = {}
    for skip in (0.9, 1.0, 1.1):
        deep = nn.Sequential(*(Residual(_zero(nn.Linear(4, 4)), skip=skip) for _ in range(50))).double()
        leaf = torch.randn(4, dtype=torch.float64, generator=rng).requires_grad_()
        (gradient,) = torch.autograd.grad(deep(leaf).sum(), leaf)
        factors[skip] = float(gradient[0])
        exhibit.expect(f"50 blocks with F = 0, lambda {skip:g}", gradient, [skip**50] * 4, within=1e-9)
    return ", ".join(f"lambda {skip:g}: gradient x {value:.3g}" for skip, value in factors.items()) + " after 50 blocks"


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


# RES-03, RES-04: depth


def res_03(exhibit: Exhibit) -> str:
    """Identity layers change nothing, yet a plain net of forty layers learns worse than a shallow one; a residual one does not."""
    data = load("spirals", seed=exhibit.seed, n=600)
    losses: dict[str, list[float]] = {"plain, 4 layers": [], "plain, 40 layers": [], "residual, 40 layers": []}
    for seed in exhibit.seeds(3):
        for name, net in zip(losses, (partial(tower, 4, 16), partial(tower, 40, 16), partial(tower, 40, 16, residual=True)), strict=True):
            recipe = _recipe(net, data, steps=200)
            losses[name].append(_loss(exhibit.train(recipe, f"{name}-{seed}", seed=seed).model(), data))
    shallow, plain, residual = losses.values()
    exhibit.above("training loss: plain 40 layers less plain 4", [p - s for p, s in zip(plain, shallow)], 0.3)
    exhibit.exceeds("training loss: plain 4 layers over residual 40", shallow, residual)
    small = tower(4, 16)
    deeper = nn.Sequential(*list(small)[:-1], *(Residual(_zero(nn.Linear(16, 16))) for _ in range(36)), small[-1])
    exhibit.expect("a copy with 36 identity layers: loss", _loss(deeper, data), _loss(small, data))
    table = {"network": list(losses), "training loss": [spread(values, ".3f") for values in losses.values()]}
    exhibit.show(Table("The same 200 steps", table, note=f"Spirals, 16 wide, {len(plain)} seeds."))
    return "; ".join(f"{name} {spread(values, '.2f')}" for name, values in losses.items())


def tower(depth: int, width: int, residual: bool = False) -> nn.Sequential:
    """Two numbers in, two scores out, `depth` layers in all; of residual ones two make a block that begins as the identity."""
    if residual:
        middle: list[nn.Module] = [_corrects(width) for _ in range((depth - 2) // 2)]
    else:
        middle = [part for _ in range(depth - 2) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), *middle, nn.Linear(width, 2))


def _loss(net: nn.Module, data: Data) -> float:
    """Mean training loss."""
    batch = data.train[:]
    with torch.no_grad():
        return float(F.cross_entropy(net(batch.x), batch.y))


def _recipe(model: Callable[[], nn.Module], data: Data, steps: int, lr: float = 3e-3, batch_size: int = 64) -> Recipe:
    return Recipe(
        model=model,
        data=data,
        objective=Categorical(len(data.classes)),
        optimizer=optimizer("adam", lr=lr),
        steps=steps,
        batch_size=batch_size,
    )


def res_04(exhibit: Exhibit) -> str:
    """Training with nothing but a penalty on the weights: a residual block decays to the identity, a plain layer to zero."""
    distances: dict[str, list[tuple[float, float]]] = {}
    for seed in exhibit.seeds(3):
        torch.manual_seed(seed)
        x = torch.randn(50, 8)
        for name, net in {"residual": Residual(nn.Linear(8, 8)), "plain": nn.Linear(8, 8)}.items():
            steps = torch.optim.SGD(net.parameters(), lr=0.5)
            for _ in range(60):
                steps.zero_grad()
                (0.5 * torch.cat([p.flatten() for p in net.parameters()]).square().sum()).backward()
                steps.step()
            with torch.no_grad():
                distances.setdefault(name, []).append((float((net(x) - x).norm() / x.norm()), float(net(x).norm() / x.norm())))
    exhibit.below("residual: distance of H(x) from x", [row[0] for row in distances["residual"]], 1e-6)
    exhibit.below("plain: size of the output", [row[1] for row in distances["plain"]], 1e-6)
    exhibit.above("plain: distance of the output from x", [row[0] for row in distances["plain"]], 0.99)
    return f"after 60 steps of decay |H(x) - x| / |x| is {max(row[0] for row in distances['residual']):.0e}, of a plain layer 1"


# RES-05 to RES-07: sizes of signals


def res_05(exhibit: Exhibit) -> str:
    """Each block of He's weights doubles the variance; normalized branches add one each, so late blocks change less."""
    # One draw of the weights deviates by up to 15 % from the doubling and 1.5 % from the other law, the mean of twelve by 5 and 0.3 %.
    width, blocks, draws, rng = 512, 8, 12, exhibit.generator("res-05")
    k = torch.arange(1, blocks + 1)
    (free, halves), (normal, fractions) = (
        torch.stack([_sizes(_states(width, blocks, norm, rng)) for _ in range(draws)]).mean(0) for norm in (False, True)
    )
    exhibit.expect("variance after 1 to 4 blocks, over 2, 4, 8, 16", (free / 2.0**k)[:4], [1.0] * 4, within=0.1)
    exhibit.expect("with normalized branches, over 2, 3, 4, 5", (normal / (k + 1))[:4], [1.0] * 4, within=0.01)
    exhibit.expect("what block k changes, as a share of the sum after it, over 1/2", halves * 2, [1.0] * blocks, within=0.1)
    exhibit.expect("the same with normalized branches, over 1/(k + 1)", fractions * (k + 1), [1.0] * blocks, within=0.01)
    start = torch.ones(1)
    lines = {"He's weights": torch.cat([start, free]), "normalized branches": torch.cat([start, normal])}
    note = f"Width {width}, mean of {draws} draws of the weights."
    exhibit.show(Lines("Variance after each block", lines, axes=["block"], log=["y"], note=note))
    rows = [" ".join(f"{v:.1f}" for v in values[:4]) for values in (free, normal)]
    return (
        f"{rows[0]} without normalization, {rows[1]} with it; the last of {blocks} blocks changes {halves[-1]:.0%} and {fractions[-1]:.0%}"
    )


def _states(width: int, blocks: int, norm: bool, rng: torch.Generator) -> Tensor:
    """h after 0, 1, ... blocks h + W relu(h), whose branch is normalized on request."""
    states = [torch.randn(256, width, generator=rng)]
    for _ in range(blocks):
        branch = torch.relu(states[-1]) @ (torch.randn(width, width, generator=rng) * (2 / width) ** 0.5)
        states.append(states[-1] + (_normalize(branch, (0,))[0] if norm else branch))
    return torch.stack(states)


def _sizes(states: Tensor) -> Tensor:
    """Of each block the mean square after it over that of the input, and the fraction of it that is what the block changed."""
    size, change = (each.square().mean((1, 2)) for each in (states, states.diff(dim=0)))
    return torch.stack([size[1:] / size[0], change / size[1:]])


def _normalize(x: Tensor, axes: tuple[int, ...], eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps) over some axes, with the mean and the variance (divided by n)."""
    mean = x.mean(axes, keepdim=True)
    variance = (x - mean).square().mean(axes, keepdim=True)
    return (x - mean) / (variance + eps).sqrt(), mean, variance


def res_06(exhibit: Exhibit) -> str:
    """Each channel to mean 0 and variance 1 over the batch, frozen statistics at test time; noisy where the batch is small."""
    rng = exhibit.generator("res-06")
    x = torch.randn(6, 3, 5, 4, dtype=torch.float64, generator=rng) * 3 + 2
    layer = nn.BatchNorm2d(3).double()
    layer.weight.data, layer.bias.data = torch.tensor([1.5, 0.5, 2.0]).double(), torch.tensor([0.1, -1.0, 3.0]).double()
    axes = (0, 2, 3)
    plain, mean, variance = _normalize(x, axes)
    scale, shift = layer.weight.detach()[:, None, None], layer.bias.detach()[:, None, None]
    exhibit.expect("mean over the batch", plain.mean(axes), [0.0] * 3, within=1e-12)
    exhibit.expect("variance over the batch", plain.var(axes, correction=0), [1.0] * 3, within=1e-5)
    exhibit.expect("scaled and shifted, with torch's layer", scale * plain + shift, layer(x).detach(), within=1e-10)
    n = x.numel() // 3
    kept = 0.1 * mean.flatten(), 0.9 + 0.1 * variance.flatten() * n / (n - 1)
    exhibit.expect("running mean", kept[0], layer.running_mean, within=1e-12)
    exhibit.expect("running variance (its estimate divides by n - 1)", kept[1], layer.running_var, within=1e-12)
    layer.eval()
    frozen = (x - kept[0][:, None, None]) / (kept[1][:, None, None] + 1e-5).sqrt() * scale + shift
    exhibit.expect("at test time: frozen statistics", frozen, layer(x).detach(), within=1e-10)
    exhibit.expect("at test time: one example alone", frozen[:1], layer(x[:1]).detach(), within=1e-10)
    spreads = {size: _jumpiness(size, exhibit.generator("res-06", size)) for size in (2, 8, 32, 128)}
    exhibit.above("spread of one example's output: batches of 2, over batches of 128", spreads[2] / spreads[128], 4)
    exhibit.show(
        Bars(
            "Spread of an output over random batches",
            {"deviation": list(spreads.values())},
            axes=["batch"],
            labels=list(spreads),
        )
    )
    return "mean 0, variance 1; spread of one output by batch size: " + ", ".join(f"{n}: {v:.3f}" for n, v in spreads.items())


def _jumpiness(size: int, rng: torch.Generator) -> float:
    """Deviation of the normalized value of one example over 400 batches of others."""
    others = torch.randn(400, size - 1, generator=rng)
    batch = torch.cat([torch.full((400, 1), 0.5), others], 1)
    return float(_normalize(batch, (1,))[0][:, 0].std())


def res_07(exhibit: Exhibit) -> str:
    """The same over the features of one example: other examples do not matter; both choices of axes."""
    rng = exhibit.generator("res-07")
    image, tokens = torch.randn(4, 3, 5, 6, dtype=torch.float64, generator=rng), torch.randn(4, 7, 8, dtype=torch.float64, generator=rng)
    whole, each = nn.LayerNorm((3, 5, 6)).double(), nn.LayerNorm(8).double()
    exhibit.expect("channels, height and width of an image", _normalize(image, (1, 2, 3))[0], whole(image).detach(), within=1e-10)
    exhibit.expect("the numbers of one token", _normalize(tokens, (2,))[0], each(tokens).detach(), within=1e-10)
    changed = image.clone()
    changed[1:] = changed[1:] * 50 - 3
    exhibit.expect("another batch around the first image", whole(changed)[0], whole(image)[0].detach(), within=0.0)
    batch = nn.BatchNorm2d(3).double()
    exhibit.above("the same for batch normalization: it moves by", (batch(changed)[0] - batch(image)[0]).abs().max().detach(), 0.5)
    exhibit.expect("mean of each token", _normalize(tokens, (2,))[0].mean(-1), np.zeros((4, 7)), within=1e-12)
    return "over (C, H, W) of an image or the D of a token; other examples change nothing"


# RES-08 to RES-10: networks


def res_08(exhibit: Exhibit) -> str:
    """Down and up again with shortcuts across: 572 pixels give 388 answers, padded as many as there are; shapes outlined."""
    exhibit.expect("unpadded: 572 x 572", list(UNet().output_size((572, 572))), [388, 388])
    with torch.no_grad():
        small = UNet(1, 2, width=2, depth=4)(torch.zeros(1, 1, 188, 188))
    exhibit.expect("unpadded, really computed: 188 x 188", list(small.shape), [1, 4, 4, 2])
    padded = UNet(1, 2, width=8, depth=2, padded=True, norm=True)
    exhibit.expect("padded: as many answers as pixels", list(padded(torch.zeros(2, 1, 24, 32)).shape), [2, 24, 32, 2])
    data = _outlines(exhibit.seed)
    test = data.splits["test"][:]
    bright = max(overlap((test.x[:, 0] > level).long(), test.y, 2) for level in np.linspace(0, 1, 21))
    scores, predictions = [], test.y
    for seed in exhibit.seeds(3):
        recipe = _recipe(lambda: UNet(1, 2, width=8, depth=2, padded=True, norm=True), data, steps=100, lr=1e-2, batch_size=16)
        run = exhibit.train(recipe, f"unet-{seed}", seed=seed)
        with torch.no_grad():
            predictions = run.model()(test.x).argmax(-1)
        scores.append(overlap(predictions, test.y, 2))
    exhibit.above("noisy shapes outlined: IoU on held-out pictures", scores, 0.9)
    exhibit.below("the best threshold on brightness: IoU", bright, 0.8)
    images = [image for row in (test.x[:4, 0], test.y[:4], predictions[:4]) for image in row.clamp(0, 1)]
    labels = [name for name in ("picture", "outline", "found") for _ in range(4)]
    exhibit.show(Images("Held-out images, their outlines and what was found", {"images": images}, labels=labels, across=4))
    return f"572 -> 388; padded keeps the size; IoU {spread(scores, '.3f')}, by brightness alone {bright:.3f}"


def _outlines(seed: int) -> Data:
    """Two shapes in noise, and where they are."""
    data = load("shapes", seed=seed, n=400, size=32, many=2, target="mask", noise=0.35)
    train, valid, test = (TensorSource(part.x, (part.y > 0).long()) for part in (source[:] for source in data.splits.values()))
    return Data(train, valid, test, name="outlines", task="classes", classes=("ground", "shape"))


def overlap(predictions: Tensor, true: Tensor, classes: int) -> float:
    """Mean over classes but the ground (0) of pixels in both over pixels in either."""
    return float(
        np.mean([float(((predictions == k) & (true == k)).sum() / ((predictions == k) | (true == k)).sum()) for k in range(1, classes)])
    )


def res_09(exhibit: Exhibit) -> str:
    """Where the numbers are: VGG-19 holds most of them in dense layers, ResNet-34 almost none (E-32)."""
    goals = {"vgg19": 143667240, "resnet34": 21797672, "resnet18": 11689512, "resnet50": 25557032}
    nets = {name: published_model(name) for name in goals}
    nets["resnet20 (CIFAR)"] = resnet.cifar(20)
    goals["resnet20 (CIFAR)"] = 269722
    counts = {name: sum(p.numel() for p in net.parameters()) for name, net in nets.items()}
    for name, count in counts.items():
        exhibit.expect(f"{name}: numbers", count, goals[name])
    dense = {
        name: sum(p.numel() for m in net.modules() if isinstance(m, nn.Linear) for p in m.parameters()) / counts[name]
        for name, net in nets.items()
    }
    exhibit.expect("dense share of VGG-19", dense["vgg19"], 0.86, within=0.005)
    exhibit.expect("dense share of ResNet-34", dense["resnet34"], 0.024, within=0.0005)
    widths = sorted({m.out_channels for m in nets["resnet34"].modules() if isinstance(m, nn.Conv2d)})
    exhibit.expect("filters of ResNet-34's layers (E-33)", widths, [64, 128, 256, 512])
    layers = {
        name: sum(isinstance(m, (nn.Conv2d, nn.Linear)) for n, m in net.named_modules() if "downsample" not in n)
        for name, net in nets.items()
    }
    exhibit.expect("layers with weights", [layers[name] for name in ("vgg19", "resnet34", "resnet20 (CIFAR)")], [19, 34, 20])
    work = {name: cost(nets[name], (3, 224, 224)).flops for name in ("vgg19", "resnet34")}
    exhibit.above("work of VGG-19 over that of ResNet-34", work["vgg19"] / work["resnet34"], 4)
    table = {
        "network": list(counts),
        "layers": list(layers.values()),
        "numbers": list(counts.values()),
        "in dense layers": [f"{d:.1%}" for d in dense.values()],
    }
    exhibit.show(Table("Depth and numbers", table))
    return f"VGG-19 {counts['vgg19']:,} ({dense['vgg19']:.0%} dense), ResNet-34 {counts['resnet34']:,} ({dense['resnet34']:.1%} dense)"


def res_10(exhibit: Exhibit) -> str:
    """Train a few layers, freeze them, put new ones on top that begin as the identity: nothing is lost at the hand-over."""
    data = load("digits", seed=exhibit.seed)
    before, over, after, learners, frozen = [], [], [], [], []
    for seed in exhibit.seeds(3):
        small = _recipe(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)), data, steps=60)
        old = exhibit.train(small, f"first-{seed}", seed=seed).model()
        before.append(_loss(old, data))
        grown = nn.Sequential(old[:-1], *(_corrects(24) for _ in range(3)), old[-1])
        freeze(grown, "0.*")
        kept = {name: p.clone() for name, p in grown.named_parameters() if not p.requires_grad}
        learners.append(sorted({name.split(".")[0] for name in trainable_names(grown)}))
        over.append(_loss(grown, data))
        final = exhibit.train(_recipe(partial(nn.Sequential, *grown), data, steps=60), f"grown-{seed}", seed=seed).model()
        same = all(torch.equal(final.get_parameter(name), value) for name, value in kept.items())
        frozen.append([same, len(kept)])
        after.append(_loss(final, data))
    exhibit.expect("layers that learn", learners, [["1", "2", "3", "4"]] * len(before))
    exhibit.expect("frozen numbers are the same bit for bit", frozen, [[True, 2]] * len(before))
    exhibit.expect("loss at the hand-over, less that before", np.subtract(over, before), np.zeros(len(before)), within=1e-6)
    exhibit.below("training loss after the next stage, less that before", np.subtract(after, before).tolist(), -0.15)
    return f"loss {spread(before, '.3f')} before and after the hand-over, {spread(after, '.3f')} at the end; frozen numbers unchanged"


def _corrects(width: int) -> Residual:
    """A residual block that begins as the identity."""
    return Residual(nn.Sequential(nn.Linear(width, width), nn.ReLU(), _zero(nn.Linear(width, width))))
