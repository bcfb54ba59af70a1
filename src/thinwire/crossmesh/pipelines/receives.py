"""When a stage posts which receive: as soon as the sender can send, and not before. Pure.

Posted later, the transfer would wait for its receive; posted earlier, the buffer would take memory without use
(pytorch#188833). A sender can run its action once all that the action waits for is done. That may include actions of
this stage: the receive is posted after the last of them. So the receive of each send is already posted, and the stages
don't deadlock, also if sends block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.crossmesh.pipelines.edges import Edge
from thinwire.crossmesh.pipelines.schedule import FORWARD, Action, Schedule


@dataclass(frozen=True)
class Receive:
    """The receive of an edge's tensor of one micro-batch if `forward`, otherwise of its gradient."""

    edge: Edge
    forward: bool
    microbatch: int


def receives(schedule: Schedule, edges: Sequence[Edge], stage: int) -> list[list[Receive]]:
    """Entry p: what to post once p of the stage's actions are done, in the order in which it is sent."""
    after = _after(schedule, edges, stage)
    pending: list[tuple[int, int, Receive]] = []
    for edge in edges:
        if stage not in (edge.source, edge.destination):
            continue
        forward = stage == edge.destination
        sender = edge.source if forward else edge.destination
        for place, action in enumerate(schedule.stages[sender]):
            if action.kind == FORWARD if forward else action.sends_back:
                pending.append((after[sender][place], place, Receive(edge, forward, action.microbatch)))
    posts: list[list[Receive]] = [[] for _ in range(len(schedule.stages[stage]) + 1)]
    for number, _, receive in sorted(pending, key=lambda entry: entry[:2]):
        posts[number].append(receive)
    return posts


def _after(schedule: Schedule, edges: Sequence[Edge], stage: int) -> list[list[int]]:
    """For each action of each stage: how many of `stage`'s actions end before it. Its own actions count themselves."""
    needs: list[list[int]] = [[] for _ in schedule.stages]
    done: list[dict[Action, int]] = [{} for _ in schedule.stages]
    moved = True
    while moved:
        moved = False
        for at, actions in enumerate(schedule.stages):
            while len(needs[at]) < len(actions):
                action = actions[len(needs[at])]
                waits = [done[other].get(before) for other, before in _before(schedule, edges, at, action)]
                if None in waits:
                    break
                number = max([*needs[at][-1:], *(wait for wait in waits if wait is not None), 0])
                if at == stage:
                    number = len(needs[at]) + 1
                needs[at].append(number)
                done[at][action] = number
                moved = True
    return needs


def _before(schedule: Schedule, edges: Sequence[Edge], stage: int, action: Action) -> list[tuple[int, Action]]:
    """Actions of other stages whose results this action needs."""
    if action.kind == FORWARD:
        return [(edge.source, action) for edge in edges if edge.destination == stage]
    if not action.sends_back:
        return []
    earlier = []
    for edge in edges:
        if edge.source == stage:
            back = [other for other in schedule.stages[edge.destination] if other.sends_back]
            earlier.append((edge.destination, next(other for other in back if other.microbatch == action.microbatch)))
    return earlier
