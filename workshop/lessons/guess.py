"""`beside`, under the name that lessons import it by; it lives in `workshop.exercises.engine.guess`."""

from workshop.exercises.engine.guess import beside

__all__ = ["beside"]
