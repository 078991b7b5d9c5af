"""What runs outside the notebook's process: the supervisor, the elastic agent, and the ranks themselves.

Modules here may import torch; nothing else in `workshop.launch` imports from here (a rule that is
tested). The notebook starts ``workshop.launch.child.supervisor`` and talks to it over a socket pair.
"""
