"""From an objective to a gradient: the gradient of a mean, Jacobians, Hessians, graphs, and the rules behind them."""
