"""Old name: see `workshop.published.predicted`."""

from workshop.published.predicted import predict_times as predict_cases

__all__ = ["predict_cases"]
