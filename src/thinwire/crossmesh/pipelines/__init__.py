"""Pipelines whose transfers hide behind computation: eager-1F1B and delayed weight gradients (arXiv 2211.05322).

plan = schedule.split(schedule.eager_1f1b(num_stages=4, num_microbatches=16))
pipe = Pipeline(my_stage, [(0,), (1,), (2,), (3,)], plan, door, loss=loss)
loss = pipe.step(x, y)
"""

from thinwire.crossmesh.pipelines.edges import Edge, StageRanks
from thinwire.crossmesh.pipelines.profiling import profile
from thinwire.crossmesh.pipelines.run import Pipeline
from thinwire.crossmesh.pipelines.schedule import Schedule
from thinwire.crossmesh.pipelines.simulator import Costs, simulate
from thinwire.crossmesh.pipelines.warm_up import warm_up_under

__all__ = ["Costs", "Edge", "Pipeline", "Schedule", "StageRanks", "profile", "simulate", "warm_up_under"]
