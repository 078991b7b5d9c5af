"""What we talk about: units, models, devices, layouts, runs and measurements.

Everything here is a fact or a frozen record of facts. This is the ground floor: standard library only, and it
imports no other room.
"""
