"""What this machine and this site can do, one line a check, and what to do about each ``no``."""

from workshop.doctor.diagnosis import diagnose
from workshop.doctor.findings import Check, Diagnosis, Finding, Line, render, summary

__all__ = ["Check", "Diagnosis", "Finding", "Line", "diagnose", "render", "summary"]
