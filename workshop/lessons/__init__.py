"""Old names of `workshop.exercises`, which lessons use."""
