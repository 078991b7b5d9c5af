"""Models that see: what their layers hold (`layers`), and the ways to train them on a few ranks (`ways`)."""

from workshop.predict.vision.layers import Piece, Spec, pieces
from workshop.predict.vision.ways import Profile, VisionSetting, Way, plan_vision, predict_way

__all__ = ["Piece", "Profile", "Spec", "VisionSetting", "Way", "pieces", "plan_vision", "predict_way"]
