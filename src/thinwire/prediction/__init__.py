"""What an epoch of each method would take, predicted before training: recorded here, replayed on the target network.

record     runs a few epochs of every method and notes each step and transfer (a script)
replay     takes the same steps with the transfers of another network. Pure
predict    gives a row for each method, the recommended one, and how that changes with the rate. Pure
"""

from thinwire.prediction.comparison import Prediction, Row, predict
from thinwire.prediction.recording import Recording, record
from thinwire.prediction.wires import even

__all__ = ["Prediction", "Recording", "Row", "even", "predict", "record"]
