"""Compressed gradients, sent in planned groups (Cupcake, MLSys 2023), for a user's own model and loop.

The groups are the best ones for a model of the timeline, or their gap is said. The machine is not that model.

plan = gradients.plan(gradients.profile(model, batch, loss_fn, door), codec="topk:0.01")
model = gradients.wrap(model, plan)
"""

from thinwire.gradients.costs import Profile
from thinwire.gradients.hook import Hook
from thinwire.gradients.memory import mean_of
from thinwire.gradients.planning import Plan, plan, predict
from thinwire.gradients.profiling import profile
from thinwire.gradients.wrapping import hook_of, wrap

__all__ = ["Hook", "Plan", "Profile", "hook_of", "mean_of", "plan", "predict", "profile", "wrap"]
