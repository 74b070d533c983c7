"""FLOPs, sizes and receptive fields against hand counts, torch's own counter and measured gradients."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.lenses.cost import cost
from sonde.models.vit import ViT
from sonde.nn import features
from sonde.nn.short_conv import ShortConv
from sonde.report.explain import explain_model

IMAGE = 256 * 256 * 3


def worked() -> nn.Module:
    """The network of atlas row CNN-12."""
    return nn.Sequential(
        *(nn.Conv2d(1, 5, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(5, 10, 5), nn.ReLU(), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(10, 20, 2, 2), nn.ReLU(), nn.MaxPool2d(5, 2), nn.Flatten(), nn.Linear(2800, 6)),
    )


def test_worked_network_of_the_notes() -> None:
    costs = cost(worked, (1, 192, 256))
    rows = [row for row in costs.rows if row.kind not in ("ReLU", "Flatten")]
    sizes = [(5, 192, 256), (5, 96, 128), (10, 92, 124), (10, 46, 62), (20, 23, 31), (20, 10, 14), (6,)]
    assert [row.output for row in rows] == sizes
    assert [row.weights for row in rows] == [45, 0, 1250, 0, 800, 0, 16800]
    assert [row.biases for row in rows] == [5, 0, 10, 0, 20, 0, 6]
    assert costs.parameters == 18936
    # by hand: outputs x (2 x 9 + 1), windows of 4 with 3 comparisons, ...
    assert rows[0].flops == 192 * 256 * 5 * 19 and rows[1].flops == 96 * 128 * 5 * 3
    assert rows[2].flops == 92 * 124 * 10 * (2 * 125 + 1) and rows[-1].flops == 6 * (2 * 2800 + 1)
    assert rows[0].memory == 4 * 5 * 192 * 256


def test_a_77_billion_parameter_network_needs_no_memory() -> None:
    costs = cost(lambda: nn.Sequential(nn.Linear(IMAGE, IMAGE), nn.Linear(IMAGE, IMAGE)), (IMAGE,))
    assert costs.parameters == 77309804544
    assert costs.flops == 2 * (2 * IMAGE * IMAGE + IMAGE)
    assert cost(lambda: nn.Sequential(nn.Linear(65536, 65536), nn.Linear(65536, 65536)), (65536,)).parameters == 8590065664
    three = cost(lambda: nn.Sequential(nn.Linear(IMAGE, IMAGE), nn.Linear(IMAGE, IMAGE), nn.Linear(IMAGE, 3)), (IMAGE,))
    assert three.parameters == 77310394371


def products(model: nn.Module, x: torch.Tensor) -> int:
    """Matrix products and convolutions of a forward pass, by torch's own counter; on meta, where it sees into fused layers."""
    with FlopCounterMode(display=False) as counter:
        copy.deepcopy(model).to("meta").eval()(x.to("meta"))
    return counter.get_total_flops()


def bare(model: nn.Module) -> nn.Module:
    """Without biases, so that a layer's FLOPs are its products alone."""
    for module in model.modules():
        if getattr(module, "bias", None) is not None and isinstance(module.bias, nn.Parameter):
            module.bias = None
    return model


NETS = [
    (lambda: nn.Sequential(nn.Linear(7, 11), nn.Linear(11, 3)), (7,)),
    (lambda: nn.Linear(7, 11), (5, 7)),
    (lambda: nn.Sequential(nn.Conv1d(3, 8, 5, stride=2, padding=1), nn.Conv1d(8, 6, 3, dilation=2)), (3, 41)),
    (lambda: nn.Sequential(nn.Conv2d(4, 6, (3, 5), padding=1), nn.Conv2d(6, 9, 2, groups=3)), (4, 13, 17)),
    (lambda: nn.Conv3d(2, 5, 3, stride=(1, 2, 3)), (2, 7, 9, 11)),
    (lambda: nn.ConvTranspose1d(6, 4, 3, stride=2, groups=2), (6, 11)),
    (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (3, 8, 6)),
    (lambda: nn.ConvTranspose3d(2, 3, 2), (2, 4, 5, 6)),
]


@pytest.mark.parametrize("make, size", NETS)
def test_products_equal_torchs_own_counter(make, size) -> None:
    model = bare(make())
    assert cost(model, size).flops == products(model, torch.randn(1, *size))


def test_whole_networks_against_torchs_own_counter() -> None:
    """Where a net has more than products, those are taken off by hand."""
    vgg = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10), nn.Softmax(-1)),
    )
    costs = cost(vgg, (3, 20, 14))
    rest = {"BatchNorm2d": 4 * 8 * 280, "MaxPool2d": 3 * 8 * 70, "Softmax": 30}
    rest["AdaptiveAvgPool2d"] = 16 * (4 + 4 + 4) * (3 + 3 + 3)  # 10 x 7 into windows of 4 and 3 on each side
    rest["ReLU"] = 8 * 280 + 16 * 70 + 32
    assert {kind: sum(r.flops for r in costs.rows if r.kind == kind) for kind in rest} == rest
    biases = 8 * 280 + 16 * 70 + 32 + 10
    assert costs.flops - sum(rest.values()) - biases == products(vgg, torch.randn(1, 3, 20, 14))


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_by_hand_and_by_torch(batch_first: bool) -> None:
    t, e, h, f = 9, 16, 4, 40
    layer = nn.TransformerEncoderLayer(e, h, f, batch_first=batch_first)
    size = (t, e)
    costs = cost(layer, size)
    n, t = (1, t) if batch_first else (t, 1)  # without batch_first torch takes the first axis for time
    # projections, scale, scores and mixing, softmax, output; then the two norms and the two dense layers
    attention = n * t * (3 * e * (2 * e + 1) + e + 4 * t * e + 3 * t * h + e * (2 * e + 1))
    if batch_first:
        residual, relu = 2 * e, f
        assert costs.flops == attention + n * t * (2 * 7 * e + f * (2 * e + 1) + e * (2 * f + 1) + residual + relu)
        matmul = n * t * (3 * e * 2 * e + 4 * t * e + 2 * e * e + 4 * e * f)
        assert matmul == products(layer, torch.randn(1, *size))
    assert costs.parameters == sum(p.numel() for p in layer.parameters()) and not costs.unknown


@pytest.mark.parametrize("kind, gates, pointwise", [(nn.RNN, 1, 1), (nn.LSTM, 4, 9), (nn.GRU, 3, 8)])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers(kind, gates: int, pointwise: int, both: bool) -> None:
    t, d, h, ways = 6, 7, 5, 1 + both
    net = kind(d, h, num_layers=2, batch_first=True, bidirectional=both)
    flops = cost(net, (t, d)).flops
    extras = 2 * ways * t * h * (gates * 3 + pointwise)  # sum of both parts and two biases per gate, then the cell
    assert flops - extras == products(net, torch.randn(1, t, d))


def test_norms_pools_and_lookups_by_hand() -> None:
    assert cost(nn.LayerNorm(6), (5, 6)).flops == 30 * 7
    assert cost(nn.LayerNorm(6, elementwise_affine=False), (5, 6)).flops == 30 * 5
    assert cost(nn.GroupNorm(2, 4), (4, 3, 3)).flops == 36 * 7
    assert cost(nn.BatchNorm1d(4), (4, 9)).flops == 36 * 4
    assert cost(nn.BatchNorm1d(4, track_running_stats=False), (4, 9)).flops == 36 * 7
    assert cost(nn.RMSNorm(6), (5, 6)).flops == 30 * 4
    assert cost(nn.AvgPool1d(3, 2), (2, 9)).flops == 2 * 4 * 3
    assert cost(nn.AdaptiveMaxPool1d(4), (2, 9)).flops == 2 * (12 - 4)  # windows of 3, but 2.25 apart: they overlap
    lookup = cost(nn.Embedding(11, 3), (7,), dtype=torch.int64)
    assert (lookup.flops, lookup.weights, lookup.rows[0].output) == (0, 33, (7, 3))


def test_real_meta_and_factory_agree_and_the_model_stays_real() -> None:
    net = worked()
    x = torch.randn(3, 1, 192, 256)
    before = [p.data_ptr() for p in net.parameters()]
    assert cost(net, (1, 192, 256)) == cost(worked, Batch(x=x)) == cost(net.to("meta"), x)
    assert before and all(p.device.type == "meta" for p in net.parameters())


def test_unknown_layers_are_never_taken_for_zero() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))
            self.bias = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return torch.cumsum(x * self.scale + self.bias, -1)

    class Lora(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    costs = cost(nn.Sequential(nn.Linear(4, 5), Odd(), Lora(5, 3)), (4,))
    assert [row.flops for row in costs.rows] == [5 * 9, None, None]
    assert costs.unknown == ("1", "2") and (costs.weights, costs.biases) == (20 + 5 + 15, 5 + 5 + 3)
    assert "at least 45 FLOPs" in _text(explain_model(nn.Sequential(nn.Linear(4, 5), Odd()), (4,), "t")) and "≥" in _text(
        explain_model(nn.Sequential(nn.Linear(4, 5), Odd()), (4,), "t")
    )


def test_a_container_that_only_moves_its_own_parameter_computes_nothing() -> None:
    class Begins(nn.Module):
        """A token of its own before what one layer made; `odd` sends it through something nobody counts."""

        def __init__(self, odd: bool) -> None:
            super().__init__()
            self.token, self.inner, self.odd = nn.Parameter(torch.ones(1, 1, 5)), nn.Linear(4, 5), odd

        def forward(self, x):
            token = self.token.expand(len(x), -1, -1)
            return torch.cat([token.cumsum(-1) if self.odd else token, self.inner(x)], 1)[:, 0]

    plain, odd = (cost(Begins(odd), (3, 4)) for odd in (False, True))
    assert (plain.flops, plain.unknown) == (3 * 5 * 9, ()) and odd.unknown == ("Begins",)
    vit = ViT((8, 6), patch=2, width=8, depth=2, heads=2, classes=3, channels=1)
    costs = cost(vit, (1, 8, 6))
    assert costs.unknown == () and costs.parameters == sum(p.numel() for p in vit.parameters())
    assert next(row for row in costs.rows if row.name == "ViT").flops == 0


def test_operations_written_out_in_a_container_have_their_own_row() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4, bias=False)
            self.position = nn.Parameter(torch.zeros(5, 6))
            self.never = nn.Linear(2, 3)

        def forward(self, x):
            x = F.relu(x + self.position)
            return self.inner(x @ x.transpose(-1, -2) @ x)

    costs = cost(Block(), (5, 6))
    by_name = {row.name: row for row in costs.rows}
    assert by_name["Block"].flops == 2 * (5 * 6 * 5) * 2 + 30 + 30 and by_name["Block"].weights == 30  # products, sum, relu
    assert by_name["inner"].flops == 5 * 4 * 12
    assert by_name["never"].kind == "Linear, not run" and costs.parameters == 30 + 24 + 9


def test_shared_weights_are_counted_once_and_calls_add_up() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.outside.weight = self.inside.weight
            self.mix = nn.Linear(4, 4)

        def forward(self, ids):
            return self.outside(self.mix(self.mix(self.inside(ids))))

    costs = cost(Twice(), (7,), dtype=torch.int64)
    assert costs.parameters == 36 + 20
    mix = next(row for row in costs.rows if row.name == "mix")
    assert mix.calls == 2 and mix.flops == 2 * 7 * 4 * 9


CHAINS = [
    [nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(2, 1, 3)],
    [nn.Conv2d(1, 2, 5, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.Conv2d(2, 1, 3, dilation=2)],
    [nn.Conv2d(1, 1, (3, 5), dilation=(2, 1)), nn.AvgPool2d((2, 3)), nn.Dropout(), nn.Conv2d(1, 1, 2, stride=3)],
    [nn.Conv2d(1, 1, 1), nn.AvgPool2d(2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(1, 1, 3)],
]


@pytest.mark.parametrize("layers", CHAINS)
def test_receptive_field_is_the_support_of_the_input_gradient(layers) -> None:
    net = nn.Sequential(*layers).eval()
    for parameter in net.parameters():
        nn.init.uniform_(parameter, 0.1, 1.0)  # positive weights and inputs: nothing cancels, no unit is dead
    x = torch.rand(1, 1, 61, 67, requires_grad=True)
    y = net(x)
    y[0, 0, y.shape[2] // 2, y.shape[3] // 2].backward()
    touched = x.grad[0, 0].abs() > 0
    rows, columns = touched.any(1).nonzero().flatten(), touched.any(0).nonzero().flatten()
    measured = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
    assert cost(net, (1, 61, 67)).rows[-1].field == measured


def test_receptive_field_by_hand_and_where_there_is_none() -> None:
    rows = cost(nn.Sequential(nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3)), (1, 30)).rows
    assert [row.field for row in rows] == [(3,), (5,), (7,)]
    assert [row.field for row in cost(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), (1, 5, 5)).rows] == [
        (3, 3),
        None,
        None,
    ]


@pytest.mark.parametrize("size, words", [((3, 192, 256), r"layer '0' \(Conv2d\)"), ((1, 90, 90), r"layer '10' \(Linear\)")])
def test_a_wrong_size_names_the_layer(size, words) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        cost(worked, size)
    assert "\n" not in str(caught.value)


@given(st.lists(st.one_of(st.integers(-3, 12), st.floats(), st.text(max_size=3), st.none()), max_size=5))
def test_any_size_is_counted_or_refused_in_one_line(size) -> None:
    try:
        cost(nn.Conv2d(1, 2, 3), size)
    except BadInput as error:
        assert "\n" not in str(error)


def test_a_factory_that_fails_is_a_users_mistake() -> None:
    with pytest.raises(BadInput, match="cannot be built on the meta device"):
        cost(lambda: nn.Linear(3, int(torch.ones(()).item())), (3,))


def _text(renderable) -> str:
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_explain_shows_rows_totals_and_hostile_names_as_text() -> None:
    text = _text(explain_model(worked, (1, 192, 256), "[red]CNN-12[/]\x1b[2J"))
    assert "[red]CNN-12[/]\\x1b[2J" in text and "18,936 parameters" in text
    assert "5 × 192 × 256" in text and "1,250" in text and "50 × 50" in text


@pytest.mark.parametrize(
    "layer, size, flops",
    [
        (ShortConv(5, taps=3, bias=True), (7, 5), 7 * 5 * (2 * 3 - 1 + 1 + 1)),  # products and their sums, a bias, a SiLU
        (features.Elu(), (7, 5), 7 * 5 * 2),
        # norm 2 and division 1 for each of 6 x 4 numbers, 6 sums with the guard, sigma W of 2 x 3 x 4, the product, sin, cos, the scale
        (features.Fourier(heads=2, width=4, count=3), (2, 3, 4), 3 * 24 + 6 + 24 + 2 * 6 * 4 * 3 + 2 * 6 * 3 + 6 * 6),
    ],
)
def test_small_layers_of_the_library_are_counted_as_written(layer: nn.Module, size: tuple[int, ...], flops: int) -> None:
    costs = cost(layer, size)
    assert costs.flops == flops and not costs.unknown
