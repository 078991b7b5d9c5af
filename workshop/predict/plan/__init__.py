"""Choosing a layout: the fastest that fits, and why; the lecture is in `choose`."""

from workshop.predict.plan.candidates import Limits
from workshop.predict.plan.choose import Search, plan
from workshop.predict.plan.proposal import Plan, Proposal

__all__ = ["Limits", "Plan", "Proposal", "Search", "plan"]
