"""What a rank says to the others in a step: calls and bytes of every collective, by axis."""

from workshop.predict.traffic.prediction import TrafficPrediction, predict_traffic

__all__ = ["TrafficPrediction", "predict_traffic"]
