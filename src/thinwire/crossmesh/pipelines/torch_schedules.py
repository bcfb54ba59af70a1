"""Our schedules for torch's own pipeline runtime: eager-1F1B and delayed weights with torch.distributed.pipelining.

The only file that uses torch's private names for this (torch 2.13). For stages of one rank each, which send to the
next stage only. `Pipeline` can do more: stages with different numbers of ranks, edges between distant stages, sends in
the order of need, counted bytes, errors that name lost ranks, and a simulator that predicts it.
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
    """A torch schedule whose `step` follows ours. `more` are options of torch's schedules.

    `defer_pp_recv=True` posts receives late, which saves memory.
    """
    if stage.num_stages != schedule.num_stages:
        raise ValueError(f"the stage is one of {stage.num_stages}, the schedule has {schedule.num_stages} stages")
    if stage.group_size != schedule.num_stages:
        raise ValueError(
            f"{stage.group_size} ranks for {schedule.num_stages} stages: torch's runtime takes one each; "
            "for stages of several ranks use thinwire.crossmesh.pipelines.run"
        )
    torch_runtime = _PipelineScheduleRuntime([stage], schedule.num_microbatches, loss_fn=loss, **more)
    torch_runtime.pipeline_order = {
        rank: [_Action.from_str(f"{rank}{action}") for action in actions]
        for rank, actions in enumerate(schedule.stages)
    }
    torch_runtime._prepare_schedule_with_comms(torch_runtime.pipeline_order)
    return torch_runtime
