"""Our schedules for torch's own pipeline runtime: eager-1F1B and delayed weights with torch.distributed.pipelining.

The only file that knows torch's private names for it (torch 2.13). For stages of one rank each, which send to the next
stage only. `Pipeline` goes further: stages of different numbers of ranks, edges between distant stages, sends in the
order of need, bytes counted and lost ranks named at the door, and a simulator that knows what it does.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from thinwire.crossmesh.pipelines.schedule import Schedule


def runtime(
    schedule: Schedule, stage: PipelineStage, loss: Callable[..., Tensor], **more: Any
) -> _PipelineScheduleRuntime:
    """Something whose `step` obeys the schedule, like torch's own schedules; `more` are their options.

    `defer_pp_recv=True` posts receives late, which saves memory.
    """
    if stage.num_stages != schedule.num_stages:
        raise ValueError(f"the stage is one of {stage.num_stages}, the schedule has {schedule.num_stages} stages")
    if stage.group_size != schedule.num_stages:
        raise ValueError(
            f"{stage.group_size} ranks for {schedule.num_stages} stages: torch's runtime takes one each; "
            "for stages of several ranks use thinwire.crossmesh.pipelines.run"
        )
    made = _PipelineScheduleRuntime([stage], schedule.num_microbatches, loss_fn=loss, **more)
    made.pipeline_order = {
        rank: [_Action.from_str(f"{rank}{action}") for action in own] for rank, own in enumerate(schedule.stages)
    }
    made._prepare_schedule_with_comms(made.pipeline_order)
    return made
