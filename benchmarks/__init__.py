"""What the workshop claims about speed and about failures, measured on the machine at hand."""
