"""A joint loss is the weighted sum of its parts as torch computes them; a weight of 0 leaves the others alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sonde.core.batch import Batch
from sonde.core.errors import BadInput
from sonde.models.bert import Bert
from sonde.models.fine_tune import SequenceHead
from sonde.models.language_model import LanguageModel
from sonde.objectives.categorical import Categorical
from sonde.objectives.joint import Joint, Part, tiny


def small() -> tuple[SequenceHead, Batch]:
    torch.manual_seed(0)
    model = SequenceHead(LanguageModel(11, 8, 1, "attention heads=2"), 3, language=True).double()
    x = torch.randint(11, (5, 6))
    lengths = torch.tensor([6, 4, 2, 6, 5])
    mask = torch.arange(6) < (lengths - 1).unsqueeze(1)
    labeled = torch.tensor([True, True, False, True, False])
    return model, Batch(x=x, lengths=lengths, y=torch.tensor([0, 2, 1, 1, 0]), next=x.roll(-1, 1), mask=mask, labeled=labeled)


def test_two_terms_and_their_gradients_are_torchs():
    model, batch = small()
    joint = Joint({"label": Part(mask="labeled"), "tokens": Part("next", "mask", weight=0.5)})
    joint.check(batch)
    terms = joint(model, batch)
    out = model(batch.x, batch.lengths)
    label = F.cross_entropy(out["label"][batch.labeled], batch.y[batch.labeled])
    tokens = F.cross_entropy(out["tokens"][batch.mask], batch.next[batch.mask])
    assert terms.means() == pytest.approx({"label_nll": label.item(), "tokens_nll": tokens.item()})
    assert terms.counts() == joint.counts(batch) == {"label_nll": 3, "tokens_nll": float(batch.mask.sum())}
    weights = list(model.parameters())
    expected = torch.autograd.grad(label + 0.5 * tokens, weights)
    for grad, right in zip(terms.gradients(weights), expected, strict=True):
        torch.testing.assert_close(grad, right)
    assert joint.measures(out, batch).keys() == {"label_accuracy", "tokens_accuracy"}
    torch.testing.assert_close(joint.predict(out), out["label"].softmax(-1))


def test_lambda_0_is_the_classifier_bit_for_bit():
    model, batch = small()
    joint = Joint({"label": Part(), "tokens": Part("next", "mask", weight=0.0)})
    terms = joint(model, batch)
    assert terms.means()["tokens_nll"] > 0  # still told
    alone, _ = small()
    alone.language = False
    plain = Batch(x=batch.x, lengths=batch.lengths, y=batch.y)
    weights, others = list(model.parameters()), list(alone.parameters())
    for grad, right in zip(terms.gradients(weights), Categorical()(alone, plain).gradients(others), strict=True):
        assert (grad is None and right is None) or torch.equal(grad, right)
    assert terms.loss().item() == Categorical()(alone, plain).loss().item()


def test_language_of_labeled_or_of_other_texts():
    """Which rows the language term learns from is a mask: those with a label, those without, or all."""
    model, batch = small()
    rows = {"labeled": batch.labeled, "unlabeled": ~batch.labeled}
    losses = {}
    for name, which in rows.items():
        chosen = batch.replace(mask=batch.mask & which.unsqueeze(1))
        losses[name] = Joint({"label": Part(mask="labeled"), "tokens": Part("next", "mask", 0.5)})(model, chosen)
    assert losses["labeled"]["label_nll"].sum == losses["unlabeled"]["label_nll"].sum
    whole = Joint({"tokens": Part("next", "mask")})(model, batch)["tokens_nll"]
    torch.testing.assert_close(sum(terms["tokens_nll"].sum for terms in losses.values()), whole.sum)


def test_bert_learns_its_two_tasks():
    torch.manual_seed(0)
    model = Bert(13, 12, 1, "attention heads=2", max_positions=9)
    x = torch.randint(13, (4, 7))
    batch = Batch(x=x, y=x, mask=torch.rand(4, 7) < 0.4, follows=torch.tensor([0, 1, 1, 0]), lengths=torch.tensor([7, 6, 5, 7]))
    terms = Joint({"tokens": Part("y", "mask"), "pair": Part("follows")})(model, batch)
    out = model(x, None, batch.lengths)
    expected = F.cross_entropy(out["tokens"][batch.mask], x[batch.mask]) + F.cross_entropy(out["pair"], batch.follows)
    torch.testing.assert_close(terms.loss(), expected)


def test_what_is_missing_is_named():
    _, model, batch = tiny()
    with pytest.raises(BadInput, match="no output 'lable'.*did you mean 'label'"):
        Joint({"lable": Part()})(model, batch)
    with pytest.raises(BadInput, match="part 'label' needs a field 'labels'"):
        Joint({"label": Part("labels")})(model, batch)
    with pytest.raises(BadInput, match="outputs have names"):
        Joint({"label": Part()})(torch.nn.Linear(3, 2), batch)
    with pytest.raises(BadInput, match="argument 'weight' of Part must be >= 0, not -1"):  # a dataclass, which the contract does not see
        Part(weight=-1)
    with pytest.raises(BadInput, match="no parts"):
        Joint({})
