"""What each method would take, before training: a few epochs recorded here, replayed on the wires there will be.

record     a few epochs of every method, each step and transfer noted (script)
replay     the same steps with the transfers of another network. Pure
predict    a row for each method, which one to take, and how that changes with the rate. Pure
"""

from thinwire.prediction.comparison import Prediction, Row, predict
from thinwire.prediction.recording import Recording, record
from thinwire.prediction.wires import even

__all__ = ["Prediction", "Recording", "Row", "even", "predict", "record"]
