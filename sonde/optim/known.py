"""Properties of torch's optimizers, which cannot declare them themselves; nothing is imported.

A rule of `sonde.optim.rules` declares the same as attributes of its class:

    elementwise   the update of an entry does not depend on other entries, so parameters may share one flat buffer
    linear_in_lr  a step is proportional to the learning rate, so many runs that differ in it can be stepped at once
    also          (rule of torch, option, setting): the rule is also an option of a rule of torch
"""

REFUSED = {
    "lbfgs": "it evaluates the loss several times per step, and a step here is one evaluation",
    "sparseadam": "it takes sparse gradients only",
    "newton": "it needs the loss as a function of the weights; in Python see sonde.optim.newton",
    "descent": "a line search evaluates the loss several times per step; in Python see sonde.optim.line_search",
}
FUSED = ("adam", "adamw", "sgd", "adagrad")
"""torch has a one-pass kernel for these on a CPU"""
WHOLE = ("muon", "adafactor")
"""rules that are not elementwise"""
LINEAR = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam")
"""rules whose step is proportional to the learning rate"""
