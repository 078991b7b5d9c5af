"""Choosing a layout: the fastest that fits, and why; the lecture is in `choose`."""

from workshop.predict.plan.candidates import SearchSpace
from workshop.predict.plan.choose import Search, plan
from workshop.predict.plan.proposal import Plan, Proposal

Limits = SearchSpace  # the name in lessons: `Search(limits=Limits(context=(1,)))`

__all__ = ["Limits", "Plan", "Proposal", "Search", "SearchSpace", "plan"]
