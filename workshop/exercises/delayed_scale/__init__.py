"""Exercise: delayed scaling, one step of the amax history."""
